"""What ``import llmtrace`` costs, loads and offers."""

import statistics

import pytest

import llmtrace
from llmtrace import errors

HEAVY = ("torch", "transformers", "numpy", "rich", "opentelemetry.sdk", "opentelemetry.exporter")


def loaded(run_program, source, **variables):
    printed = run_program(source + "\nimport sys; print(sorted(sys.modules))", **variables).stdout
    return eval(printed.splitlines()[-1])


@pytest.mark.parametrize("variables", [{}, {"OTEL_TRACES_EXPORTER": "otlp"}])
def test_importing_loads_nothing_heavy(run_program, variables):
    """Neither torch nor transformers nor the SDK nor an exporter comes with the import."""
    modules = loaded(run_program, "import llmtrace", **variables)
    assert "llmtrace.seams.generate" in modules
    assert [m for m in modules if m.startswith(HEAVY)] == []


def test_turning_it_on_loads_nothing_heavy(run_program):
    """``instrument()`` waits with everything heavy until there is something to trace."""
    modules = loaded(run_program, "import llmtrace; llmtrace.instrument()")
    assert [m for m in modules if m.startswith(HEAVY)] == []


def test_importing_is_quick(run_program):
    """The import takes some milliseconds beyond what it is built on."""
    times = [
        float(
            run_program(
                """
                import time
                import opentelemetry.trace, wrapt
                begun = time.perf_counter()
                import llmtrace
                print(time.perf_counter() - begun)
                """
            ).stdout
        )
        for _ in range(9)
    ]
    median_ms = statistics.median(times) * 1e3
    print(f"import llmtrace: median {median_ms:.1f} ms of {len(times)} processes")
    assert median_ms < 300


def test_importing_prints_nothing(run_program):
    """An import is silent."""
    done = run_program("import llmtrace")
    assert (done.stdout, done.stderr) == ("", "")


def test_disabled_arms_nothing(run_program):
    """``LLMTRACE_DISABLED=1`` leaves no import hook, records nothing and writes nothing."""
    done = run_program(
        """
        import llmtrace, os
        seen = []
        llmtrace.subscribe(seen.append)
        with llmtrace.instrument() as handle:
            with llmtrace.request() as r:
                r.token()
        from llmtrace.session import session
        print([session().arming.armed, seen, os.listdir(".")])
        """,
        LLMTRACE_DISABLED="1",
    )
    assert eval(done.stdout) == [False, [], []]


def test_a_bad_variable_does_not_fail_the_import(run_program):
    """A typing error in the environment is silent at import, and an error at ``instrument()``."""
    done = run_program(
        """
        import llmtrace
        try:
            llmtrace.instrument()
        except llmtrace.ConfigError as error:
            print(error)
        """,
        LLMTRACE_STEPS="some",
    )
    assert done.stdout.startswith("LLMTRACE_STEPS='some' is none of")
    assert done.stderr == ""


def test_the_public_names_are_those_of_the_contract():
    """What is offered is the documented API and the errors, in order, and each name exists."""
    documented = {
        "instrument",
        "uninstrument",
        "request",
        "capture",
        "subscribe",
        "RequestRecord",
        "StepRecord",
        "__version__",
    }
    raised = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.LlmtraceError)
    }
    assert set(llmtrace.__all__) == documented | raised
    assert llmtrace.__all__ == sorted(llmtrace.__all__)
    assert all(hasattr(llmtrace, name) for name in llmtrace.__all__)


def test_all_errors_are_of_one_family():
    """Whoever catches ``LlmtraceError`` has caught all that is raised on purpose."""
    for name in llmtrace.__all__:
        value = getattr(llmtrace, name)
        if isinstance(value, type) and issubclass(value, BaseException):
            assert issubclass(value, llmtrace.LlmtraceError)

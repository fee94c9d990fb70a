"""The five ways of turning llmtrace on, each in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IDS = "print(generate(4))\n"


def trace_files(folder):
    return sorted((folder / "llmtrace-traces").glob("*.jsonl"))


def spans_in(file):
    return [
        span
        for line in file.read_text().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def test_a_mere_import_writes_nothing(program, start, tmp_path):
    """``import llmtrace`` alone leaves no file and no output."""
    done = start(program(IDS))
    assert done.returncode == 0
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == [tmp_path / "app.py"]


def test_a_mere_import_uses_the_apps_providers(program, start):
    """An app that sets its provider after importing us gets its spans, also at ``shutdown()``."""
    done = start(
        program(
            """
            from opentelemetry import trace
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
            exporter = InMemorySpanExporter()
            provider = TracerProvider()
            provider.add_span_processor(BatchSpanProcessor(exporter))
            trace.set_tracer_provider(provider)
            generate(4)
            provider.force_flush()
            print(sorted(s.name for s in exporter.get_finished_spans()))
            assert trace.get_tracer_provider() is provider
            """
        )
    )
    assert done.stdout.strip() == str(
        ["decode", "decode", "decode", "first_token", "prefill", "text_completion llama"]
    )
    assert done.stderr == ""


def test_a_mere_import_after_transformers(program, start):
    """The order of the imports does not matter."""
    text = "import llmtrace\nwith llmtrace.capture() as got:\n    generate(4)\nprint(len(got))\n"
    assert start(program(text, head="")).stdout.strip() == "1"


def test_disabled(program, start, tmp_path):
    """``LLMTRACE_DISABLED=1`` wraps nothing, whatever the program asks for."""
    done = start(
        program(
            """
            from transformers.generation.utils import GenerationMixin
            llmtrace.instrument()
            with llmtrace.capture() as records, llmtrace.request():
                generate(2)
            print(type(vars(GenerationMixin)["generate"]).__name__, records)
            """
        ),
        LLMTRACE_DISABLED="1",
    )
    assert done.stdout.strip() == "function []"
    assert trace_files(tmp_path) == []


def test_one_line_writes_the_local_file(program, start, tmp_path):
    """``llmtrace.instrument()`` with nothing set up writes one file, complete at exit."""
    done = start(program("llmtrace.instrument()\n" + IDS))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (file,) = trace_files(tmp_path)
    assert file.name.startswith("llmtrace-app-")
    spans = spans_in(file)
    assert sorted(s["name"] for s in spans) == sorted(
        ["text_completion llama", "prefill", "first_token", "decode", "decode", "decode"]
    )
    assert spans[-1]["name"] == "text_completion llama"
    report = start("-m", "llmtrace", "report", file)
    assert report.returncode == 0
    assert "TTFT" in report.stdout


def test_run(program, start, tmp_path):
    """``llmtrace run app.py args`` traces an unchanged program and prints a summary."""
    app = program("print(sys.argv[1:], __name__)\n" + IDS + "sys.exit(7)\n", head="")
    plain = start(app, "--steps", "x")
    done = start("-m", "llmtrace", "run", "--service", "shop", app, "--steps", "x")
    assert done.returncode == plain.returncode == 7
    assert done.stdout == plain.stdout
    assert "TTFT" in done.stderr
    assert "TTFT" not in done.stdout
    (file,) = trace_files(tmp_path)
    assert file.name.startswith("llmtrace-shop-")


def test_run_a_module(program, start, tmp_path):
    """``llmtrace run -m module args`` runs the module as ``python -m`` does."""
    program("print(sys.argv[1:], __name__)\n" + IDS, name="shop.py", head="")
    done = start("-m", "llmtrace", "run", "--no-summary", "-m", "shop", "-v")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("['-v'] __main__")
    assert done.stderr == ""
    assert len(trace_files(tmp_path)) == 1


def test_run_without_a_program(start):
    """A missing program is one line and exit code 2."""
    for arguments in (["run"], ["run", "nowhere.py"]):
        done = start("-m", "llmtrace", *arguments)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("llmtrace run: ")


def test_run_does_not_hide_the_machines_sitecustomize(program, start, tmp_path):
    """A ``sitecustomize`` that was there before still runs."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("print('theirs')\n")
    app = program(IDS, head="")
    done = start("-m", "llmtrace", "run", app, PYTHONPATH=str(own))
    assert done.stdout.splitlines()[-2] == "theirs"
    assert "TTFT" in done.stderr


def test_opentelemetry_instrument(program, start, tmp_path):
    """``opentelemetry-instrument python app.py`` finds us by our entry point."""
    app = program(IDS, head="")
    done = start(
        Path(sys.executable).with_name("opentelemetry-instrument"),
        sys.executable,
        app,
        OTEL_TRACES_EXPORTER="console",
        OTEL_METRICS_EXPORTER="none",
        OTEL_LOGS_EXPORTER="none",
    )
    assert done.returncode == 0, done.stderr
    assert '"name": "text_completion llama"' in done.stdout
    assert done.stdout.count('"name": "decode"') == 3
    assert trace_files(tmp_path) == []


def test_children_write_files_of_their_own(program, start, tmp_path):
    """Forked and spawned workers trace too; nothing of theirs is lost at their end."""
    done = start(
        program(
            """
            import multiprocessing
            llmtrace.instrument()

            def work(n):
                generate(n)

            if __name__ == "__main__":
                generate(2)
                for way in ("fork", "spawn"):
                    child = multiprocessing.get_context(way).Process(target=work, args=(3,))
                    child.start()
                    child.join(60)
                    assert child.exitcode == 0
            """
        )
    )
    assert done.returncode == 0, done.stderr
    files = trace_files(tmp_path)
    assert len(files) == 3
    assert sorted(len(spans_in(f)) for f in files) == [4, 5, 5]


def test_sigterm_keeps_what_has_finished(program, tmp_path):
    """A process ended by a signal has written every request that had returned."""
    app = program(
        """
        import time
        llmtrace.instrument()
        generate(3)
        time.sleep(1)
        print('up', flush=True)
        time.sleep(60)
        """
    )
    process = subprocess.Popen([sys.executable, app], cwd=tmp_path, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == -signal.SIGTERM
    process.stdout.close()
    (file,) = trace_files(tmp_path)
    assert len(spans_in(file)) == 5


TERMINATED = """
    import signal, time
    {setup}
    generate(3)
    print("up", flush=True)
    time.sleep(60)
    """


@pytest.mark.parametrize("own", [False, True], ids=["default", "a handler of its own"])
def test_sigterm_in_a_program_we_started(program, tmp_path, own):
    """The summary is printed and the signal ends the program; its own handler stays its own."""
    setup = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))" if own else "pass"
    app = program(TERMINATED.format(setup=setup), head="")
    process = subprocess.Popen(
        [sys.executable, "-m", "llmtrace", "run", app],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == (7 if own else -signal.SIGTERM), errors
    assert b"1 request, 1 ok" in errors
    (file,) = trace_files(tmp_path)
    assert len(spans_in(file)) == 5


def test_sigterm_where_the_program_calls_the_handler_before_its_own(program, tmp_path):
    """It asks for what was there to go on, which is to end: once, and by the signal."""
    setup = """
    def clean_up(number, frame):
        print("cleaned up", flush=True)
        before(number, frame)

    before = signal.signal(signal.SIGTERM, clean_up)
    """
    app = program(TERMINATED.format(setup=setup.strip()), head="")
    process = subprocess.Popen(
        [sys.executable, "-m", "llmtrace", "run", app],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGTERM, errors
    assert output == b"cleaned up\n"
    assert b"1 request, 1 ok" in errors


def test_sigterm_ends_a_forked_child_at_once(program, tmp_path, start):
    """A child has the default back, and ``Process.terminate()`` does what it says."""
    app = program(
        """
        import multiprocessing, signal, time

        def work(pipe):
            pipe.send(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
            time.sleep(60)

        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=work, args=(theirs,))
        child.start()
        assert ours.recv()
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        child.terminate()
        child.join(30)
        assert child.exitcode == -signal.SIGTERM
        """,
        head="",
    )
    done = start("-m", "llmtrace", "run", app, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr


def test_ctrl_c_ends_the_request_and_the_program_as_ever(program, tmp_path):
    """Ctrl-C in a long ``generate()``: the usual exit, and a failed request in the file."""
    app = program(
        """
        llmtrace.instrument()

        def announce(input_ids, scores):
            if input_ids.shape[1] == 8:
                print("up", flush=True)
            return scores

        model.generate(ids, max_new_tokens=100_000, do_sample=False, logits_processor=[announce])
        """
    )
    process = subprocess.Popen(
        [sys.executable, app],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # As in a terminal: what is started in the background inherits that it ignores Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    try:
        process.stdout.readline()
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGINT
    assert errors.decode().rstrip().endswith("KeyboardInterrupt")
    (file,) = trace_files(tmp_path)
    request = spans_in(file)[-1]
    assert request["status"] == {"code": 2}

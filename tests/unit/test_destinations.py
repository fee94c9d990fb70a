"""Where telemetry goes: arguments, the app's providers, ``OTEL_*`` variables, the local file.

Each program runs in a process of its own, since a global provider can be set only once.
"""

from pathlib import Path

import pytest

REQUEST = """
import llmtrace

def request(name):
    with llmtrace.request(name=name) as r:
        r.token()
        r.token()
"""

PROVIDERS = """
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

class Sink:
    def __init__(self):
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracing = TracerProvider()
        self.tracing.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.metering = MeterProvider([self.reader])

    def set_global(self):
        trace.set_tracer_provider(self.tracing)
        metrics.set_meter_provider(self.metering)

    def spans(self):
        return sorted({s.name for s in self.exporter.get_finished_spans()})

    def requests(self):
        data = self.reader.get_metrics_data()
        return 0 if data is None else sum(
            point.value
            for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics
            if m.name == "llmtrace.requests" for point in m.data.data_points
        )
"""

ALL = ["decode", "first_token"]


@pytest.fixture
def run(run_program, tmp_path):
    """Run a program; returns what it printed last, evaluated."""

    def run(source, **variables):
        done = run_program(REQUEST + PROVIDERS + source, **variables)
        run.errors = done.stderr
        return eval(done.stdout.strip().splitlines()[-1])

    run.files = lambda: sorted(p.name for p in tmp_path.glob("**/*.jsonl"))
    return run


@pytest.fixture
def installed_exporters(tmp_path):
    """Install exporters that write down what they are given, and one that does not start."""
    (tmp_path / "exporters.py").write_text(
        """
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

class Keeping(SpanExporter):
    def export(self, spans):
        with open("exported.txt", "a") as file:
            for span in spans:
                service = span.resource.attributes["service.name"]
                file.write(f"{service}/{span.name}\\n")
        return SpanExportResult.SUCCESS

class Failing(SpanExporter):
    def export(self, spans):
        raise ConnectionError("nobody is there")

class Broken:
    def __init__(self):
        raise OSError(98, "Address already in use")

class Reader(InMemoryMetricReader):
    made = []
    def __init__(self):
        super().__init__()
        self.made.append(self)
"""
    )
    info = tmp_path / "exporters-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: exporters\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        """
[opentelemetry_traces_exporter]
keeping = exporters:Keeping
failing = exporters:Failing
broken = exporters:Broken
missing = exporters:NotThere

[opentelemetry_metrics_exporter]
broken = exporters:Broken
reader = exporters:Reader
"""
    )
    return tmp_path / "exported.txt"


@pytest.mark.parametrize("exporter", ["", "keeping", "none"])
def test_turning_it_on_for_nothing_ends_quietly(run, installed_exporters, exporter):
    """A program that is instrumented and generates nothing makes nothing, and says nothing."""
    run("llmtrace.instrument(); print([])", OTEL_TRACES_EXPORTER=exporter)
    assert run.errors == ""
    assert run.files() == []


def test_merely_importing_writes_nothing(run):
    """Without ``instrument()`` and without providers nothing is recorded or written."""
    assert run("request('r'); print([])") == []
    assert run.files() == []


def test_importing_is_enough_where_the_app_has_providers(run):
    """Telemetry goes to the app's global providers without ``instrument()``."""
    found = run(
        """
app = Sink(); app.set_global()
request("r")
app.tracing.force_flush()
print([app.spans(), app.requests()])
"""
    )
    assert found == [[*ALL, "r"], 1]


@pytest.fixture(params=["before", "after"])
def order(request):
    """Whether the app's providers are set before or after ``instrument()``."""
    set_them, instrument = "app.set_global()", "handle = llmtrace.instrument()"
    both = [set_them, instrument] if request.param == "before" else [instrument, set_them]
    return "app = Sink()\n" + "\n".join(both) + "\n"


def test_the_app_s_providers_count_whenever_they_are_set(run, order):
    """Providers set before or after ``instrument()`` get everything, and no file is written."""
    spans, requests = run(
        order + "request('r'); handle.flush(); print([app.spans(), app.requests()])"
    )
    assert spans == [*ALL, "r"]
    assert requests == 1
    assert run.files() == []


def test_providers_set_between_two_requests_count_from_then_on(run):
    """A request before goes to the file, one after to the app."""
    found = run(
        """
handle = llmtrace.instrument()
request("early"); handle.flush()
path = handle.path
app = Sink(); app.set_global()
request("late"); handle.flush()
print([app.spans(), handle.path, "early" in open(path).read(), "late" in open(path).read()])
"""
    )
    assert found == [[*ALL, "late"], None, True, False]


def test_arguments_go_before_the_app_s_providers(run, order):
    """Providers given to ``instrument()`` get everything, the global ones nothing."""
    source = order.replace(
        "instrument()",
        "instrument(tracer_provider=mine.tracing, meter_provider=mine.metering)",
    )
    found = run(
        "mine = Sink()\n"
        + source
        + "request('r'); handle.flush()\n"
        + "print([mine.spans(), mine.requests(), app.spans(), app.requests()])"
    )
    assert found == [[*ALL, "r"], 1, [], 0]


@pytest.mark.parametrize("variables", [{}, {"OTEL_TRACES_EXPORTER": "keeping"}])
def test_no_global_provider_is_set_or_replaced(run, installed_exporters, variables):
    """What was global stays the very object it was, wherever telemetry goes."""
    found = run(
        """
before = trace.get_tracer_provider(), metrics.get_meter_provider()
with llmtrace.instrument() as handle:
    request("r"); handle.flush()
    during = trace.get_tracer_provider(), metrics.get_meter_provider()
after = trace.get_tracer_provider(), metrics.get_meter_provider()
print([a is b is c for a, b, c in zip(before, during, after)])
""",
        **variables,
    )
    assert found == [True, True]


def test_with_nothing_else_there_is_the_file(run):
    """Without arguments, providers and variables, spans go to the local file."""
    path = run("handle = llmtrace.instrument(); request('r'); handle.flush(); print([handle.path])")
    assert Path(path[0]).is_absolute()
    assert Path(path[0]).parent.name == "llmtrace-traces"
    assert Path(path[0]).name.startswith("llmtrace-python-")
    assert len(run.files()) == 1


def test_the_file_goes_where_it_is_told(run):
    """Folder and service come from argument and variables."""
    run(
        "llmtrace.instrument(dir='here'); request('r'); print([])",
        OTEL_SERVICE_NAME="my app",
        LLMTRACE_DIR="there",
    )
    (name,) = run.files()
    assert name.startswith("llmtrace-my_app-")


@pytest.mark.parametrize(
    ("attributes", "service"),
    [
        ("service.name=mine", "mine"),
        ("service.namespace=team", "python"),
        ("team=x, service.name = mine", "mine"),
    ],
)
def test_only_a_service_name_names_the_service(run, attributes, service):
    """Resource attributes that merely look like a service's name leave the script's."""
    run(
        "llmtrace.instrument(); request('r'); print([])",
        OTEL_RESOURCE_ATTRIBUTES=attributes,
    )
    (name,) = run.files()
    assert name.startswith(f"llmtrace-{service}-")


def test_variables_go_before_the_file(run, installed_exporters):
    """A named exporter gets the spans at exit, and no file is written."""
    run(
        "llmtrace.instrument(); request('r'); print([])",
        OTEL_TRACES_EXPORTER="keeping",
        OTEL_SERVICE_NAME="app",
    )
    assert sorted(installed_exporters.read_text().split()) == [
        "app/decode",
        "app/first_token",
        "app/r",
    ]
    assert run.files() == []


def test_the_app_s_providers_go_before_variables(run, installed_exporters, order):
    """A named exporter is the app's affair once it has providers of its own."""
    spans = run(
        order + "request('r'); handle.flush(); print(app.spans())", OTEL_TRACES_EXPORTER="keeping"
    )
    assert spans == [*ALL, "r"]
    assert not installed_exporters.exists()


def test_no_exporter_is_made_that_is_not_needed(run, installed_exporters):
    """A provider given as an argument leaves a named exporter unmade, not merely unused."""
    made = run(
        """
from llmtrace.telemetry import exporters
exporters.tracer_provider = lambda *_: 1 / 0
mine = Sink()
handle = llmtrace.instrument(tracer_provider=mine.tracing)
request("r"); handle.flush()
print(mine.spans())
""",
        OTEL_TRACES_EXPORTER="broken",
    )
    assert made == [*ALL, "r"]
    assert run.errors == ""


def test_an_unknown_exporter_is_said_once_and_the_file_is_written(run):
    """A name that no package has costs one line, and the traces are kept in the file."""
    run(
        "handle = llmtrace.instrument(); request('a'); request('b'); handle.flush(); print([])",
        OTEL_TRACES_EXPORTER="nowhere",
    )
    assert run.errors.count("OTEL_TRACES_EXPORTER names 'nowhere'") == 1
    assert "Traceback" not in run.errors
    assert len(run.files()) == 1


@pytest.mark.parametrize("name", ["broken", "missing"])
def test_an_exporter_that_does_not_start_is_said_once(run, installed_exporters, name):
    """An exporter whose own set-up fails reaches neither ``generate()`` nor the user's block."""
    run(
        "handle = llmtrace.instrument(); request('a'); request('b'); handle.flush(); print([])",
        OTEL_TRACES_EXPORTER=name,
    )
    assert run.errors.count("Traces go to the local file instead") == 1
    assert "Traceback" not in run.errors
    assert len(run.files()) == 1


@pytest.mark.parametrize("name", ["broken", "nowhere"])
def test_metrics_that_go_nowhere_leave_traces_alone(run, installed_exporters, name):
    """A bad exporter of metrics is said once; spans still go to their own exporter."""
    run(
        "handle = llmtrace.instrument(); request('a'); request('b'); handle.flush(); print([])",
        OTEL_TRACES_EXPORTER="keeping",
        OTEL_METRICS_EXPORTER=name,
        OTEL_SERVICE_NAME="app",
    )
    assert run.errors.count("Metrics go nowhere") == 1
    assert "Traceback" not in run.errors
    assert {"app/a", "app/b"} <= set(installed_exporters.read_text().split())


def test_a_named_reader_of_metrics_is_used(run, installed_exporters):
    """An entry point may be a reader instead of an exporter; the file still gets the spans."""
    requests = run(
        """
handle = llmtrace.instrument(); request("r"); handle.flush()
import exporters
app = Sink(); app.reader, = exporters.Reader.made
print([app.requests()])
""",
        OTEL_METRICS_EXPORTER="reader",
    )
    assert requests == [1]
    assert len(run.files()) == 1


def test_an_exporter_that_fails_is_said_once_and_in_one_line(run, installed_exporters):
    """A collector that is not there costs one warning without a traceback."""
    run(
        """
handle = llmtrace.instrument()
for name in "ab":
    request(name); handle.flush()
print([])
""",
        OTEL_TRACES_EXPORTER="failing",
    )
    assert run.errors.count("could not export spans (ConnectionError: nobody is there)") == 1
    assert len(run.errors.splitlines()) == 1


def test_none_means_no_spans_anywhere(run):
    """``OTEL_TRACES_EXPORTER=none`` writes no file; records still reach subscribers."""
    seen = run(
        """
seen = []
llmtrace.subscribe(lambda r: seen.append(r.output_tokens))
handle = llmtrace.instrument(); request("r"); handle.flush()
print(seen)
""",
        OTEL_TRACES_EXPORTER="none",
    )
    assert seen == [2]
    assert run.files() == []


def test_a_disabled_sdk_writes_nothing(run):
    """``OTEL_SDK_DISABLED=true`` leaves no file and raises nothing."""
    run(
        "handle = llmtrace.instrument(); request('r'); handle.flush(); print([])",
        OTEL_SDK_DISABLED="true",
    )
    assert run.files() == []
    assert "Traceback" not in run.errors


def test_many_threads_at_once_make_one_provider(run, installed_exporters):
    """The first requests of eight threads share what is made for them."""
    made = run(
        """
import threading, time
from llmtrace.telemetry import exporters
made, really = [], exporters.tracer_provider
def slowly(*args):
    made.append(1); time.sleep(0.05)
    return really(*args)
exporters.tracer_provider = slowly
handle = llmtrace.instrument()
start = threading.Barrier(8)
threads = [threading.Thread(target=lambda: (start.wait(), request("r"))) for _ in range(8)]
for t in threads: t.start()
for t in threads: t.join()
handle.flush()
print([len(made)])
""",
        OTEL_TRACES_EXPORTER="keeping",
        OTEL_SERVICE_NAME="app",
    )
    assert made == [1]
    assert installed_exporters.read_text().split().count("app/r") == 8


def test_closing_flushes(run, installed_exporters):
    """After ``close()`` what had finished has been exported, without waiting for the exit."""
    exported = run(
        """
import os
handle = llmtrace.instrument(); request("r"); handle.close()
print([os.path.exists("exported.txt")])
""",
        OTEL_TRACES_EXPORTER="keeping",
    )
    assert exported == [True]


def test_a_resource_of_our_own_says_what_the_figures_hang_on(monkeypatch):
    """Versions of the packages in use, and nothing of those that are not installed."""
    from importlib import metadata

    from llmtrace.telemetry import exporters

    def version(package):
        if package == "bitsandbytes":
            raise metadata.PackageNotFoundError(package)
        return f"{package}-1"

    monkeypatch.setattr(exporters.metadata, "version", version)
    found = exporters.resource({"RANK": "1", "WORLD_SIZE": "2"}).attributes
    assert found["llmtrace.version.torch"] == "torch-1"
    assert found["llmtrace.version.transformers"] == "transformers-1"
    assert "llmtrace.version.bitsandbytes" not in found
    assert (found["llmtrace.rank"], found["llmtrace.world_size"]) == (1, 2)
    alone = exporters.resource({"RANK": "0", "WORLD_SIZE": "1"}).attributes
    assert "llmtrace.rank" not in alone

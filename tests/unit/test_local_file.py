"""The local trace file: made late, written whole, lost with one warning."""

import json
import os

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from llmtrace.telemetry.local_file import BufferedProcessor, LocalFileExporter, default_service

root = hasattr(os, "geteuid") and os.geteuid() == 0


def provider_of(exporter, **more):
    provider = TracerProvider(shutdown_on_exit=False, **more)
    provider.add_span_processor(BufferedProcessor(exporter))
    return provider


def spans_of(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        [
            s["name"]
            for r in line["resourceSpans"]
            for scope in r["scopeSpans"]
            for s in scope["spans"]
        ]
        for line in lines
    ]


def test_nothing_is_written_before_the_first_span(tmp_path):
    """Neither folder nor file is made by turning it on, or by flushing nothing."""
    folder = tmp_path / "traces" / "deep"
    provider = provider_of(LocalFileExporter(str(folder), "app"))
    provider.force_flush()
    assert not folder.parent.exists()
    provider.get_tracer("t").start_span("one").end()
    assert not folder.parent.exists()
    provider.force_flush()
    assert [p.name for p in folder.iterdir()] == [f"llmtrace-app-{os.getpid()}.jsonl"]


def test_each_flush_is_one_line(tmp_path):
    """A batch is a line; what was flushed is not written again."""
    exporter = LocalFileExporter(str(tmp_path), "app")
    provider = provider_of(exporter)
    tracer = provider.get_tracer("t")
    tracer.start_span("one").end()
    tracer.start_span("two").end()
    provider.force_flush()
    provider.force_flush()
    tracer.start_span("three").end()
    provider.shutdown()
    assert spans_of(exporter.path) == [["one", "two"], ["three"]]


def test_spans_that_were_not_sampled_are_not_written(tmp_path):
    """A sampler's decision holds for the file too."""
    exporter = LocalFileExporter(str(tmp_path), "app")
    provider = provider_of(exporter, sampler=ALWAYS_OFF)
    provider.get_tracer("t").start_span("one").end()
    provider.force_flush()
    assert not exporter.path.exists()


@pytest.mark.parametrize(
    ("service", "name"),
    [("a b/c", "a_b_c"), ("../../etc", ".._.._etc"), ("", "python"), ("näme-1.x", "näme-1.x")],
)
def test_a_service_is_a_part_of_a_file_s_name(tmp_path, service, name):
    """Whatever the service is called, the file stays in its folder."""
    path = LocalFileExporter(str(tmp_path), service).path
    assert path.name == f"llmtrace-{name}-{os.getpid()}.jsonl"
    assert path.parent == tmp_path


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["/x/serve.py"], "serve"),
        (["/x/package/__main__.py"], "package"),
        (["-c"], "python"),
        ([""], "python"),
        ([], "python"),
    ],
)
def test_a_program_without_a_name_goes_by_its_script(monkeypatch, argv, name):
    """The default service is the script, or the package that was run."""
    monkeypatch.setattr("sys.argv", argv)
    assert default_service() == name


def test_a_folder_that_is_a_file_loses_traces_with_one_warning(tmp_path, caplog):
    """Where no folder can be made, exporting fails, once said, and never raises."""
    (tmp_path / "taken").write_text("")
    exporter = LocalFileExporter(str(tmp_path / "taken"), "app")
    provider = provider_of(exporter)
    for name in ("one", "two"):
        provider.get_tracer("t").start_span(name).end()
        assert provider.force_flush() is False
    (line,) = caplog.records
    assert "LLMTRACE_DIR" in line.getMessage()
    assert str(exporter.path) in line.getMessage()


@pytest.mark.skipif(root, reason="nothing is read-only for root")
def test_a_read_only_folder_loses_traces_with_one_warning(tmp_path, caplog):
    """A folder that may not be written to fails an export without raising."""
    tmp_path.chmod(0o500)
    exporter = LocalFileExporter(str(tmp_path), "app")
    provider = provider_of(exporter)
    provider.get_tracer("t").start_span("one").end()
    assert provider.force_flush() is False
    assert len(caplog.records) == 1
    tmp_path.chmod(0o700)


def test_writing_is_tried_again(tmp_path):
    """Once the trouble is over, later batches are written."""
    folder = tmp_path / "taken"
    folder.write_text("")
    exporter = LocalFileExporter(str(folder), "app")
    provider = provider_of(exporter)
    tracer = provider.get_tracer("t")
    tracer.start_span("lost").end()
    provider.force_flush()
    folder.unlink()
    tracer.start_span("kept").end()
    provider.force_flush()
    assert spans_of(exporter.path) == [["kept"]]


def test_a_folder_removed_meanwhile_is_made_again(tmp_path):
    """Cleaning up the traces of a running program does not stop it."""
    folder = tmp_path / "traces"
    exporter = LocalFileExporter(str(folder), "app")
    provider = provider_of(exporter)
    tracer = provider.get_tracer("t")
    for name in ("one", "two"):
        tracer.start_span(name).end()
        provider.force_flush()
        assert spans_of(exporter.path) == [[name]]
        exporter.path.unlink()
        folder.rmdir()


def test_a_full_disk_leaves_whole_lines(run_program, tmp_path):
    """A write that stops half-way is undone, said once, and the next small one is whole."""
    pytest.importorskip("resource")
    done = run_program(
        """
        import resource
        from opentelemetry.sdk.trace import TracerProvider
        from llmtrace.telemetry.local_file import BufferedProcessor, LocalFileExporter

        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
        provider = TracerProvider()
        provider.add_span_processor(BufferedProcessor(LocalFileExporter(".", "app")))
        tracer = provider.get_tracer("t")

        def write(name, size):
            tracer.start_span(name, attributes={"text": "x" * size}).end()
            return provider.force_flush()

        print([write("one", 1), write("big", 5000), write("big", 5000), write("two", 1)])
        """
    )
    assert done.stdout.strip() == "[True, False, False, True]"
    (path,) = tmp_path.glob("llmtrace-app-*.jsonl")
    assert spans_of(path) == [["one"], ["two"]]
    assert done.stderr.count("cannot write") == 1
    assert "File too large" in done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_writes_a_file_of_its_own(tmp_path):
    """The child's file has the child's id and holds the child's spans only."""
    exporter = LocalFileExporter(str(tmp_path), "app")
    provider = provider_of(exporter)
    tracer = provider.get_tracer("t")
    tracer.start_span("parent's").end()  # not yet written when the child comes
    child = os.fork()
    if child == 0:
        tracer.start_span("child's").end()
        provider.force_flush()
        os._exit(0)
    os.waitpid(child, 0)
    provider.force_flush()
    assert spans_of(tmp_path / f"llmtrace-app-{child}.jsonl") == [["child's"]]
    assert spans_of(exporter.path) == [["parent's"]]


def test_an_export_says_how_it_went(tmp_path):
    """The SDK is told success or failure."""
    good = LocalFileExporter(str(tmp_path), "app")
    assert good.export([]) is SpanExportResult.SUCCESS

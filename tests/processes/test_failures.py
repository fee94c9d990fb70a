"""Telemetry that fails leaves the program's output, exit code and speed as they were."""

import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.processes.conftest import TINY

APP = "llmtrace.instrument()\nprint(generate(4))\nsys.exit(3)\n"
PLAIN = "print(generate(4))\nsys.exit(3)\n"
EXIT_BOUND_S = 5
"""The documented bound on the wait at exit (``flush_timeout_s``)."""


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What the program prints and returns without llmtrace."""
    path = tmp_path_factory.mktemp("plain") / "plain.py"
    path.write_text(TINY + PLAIN)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    return done.stdout, done.returncode


def test_a_folder_that_cannot_be_made(program, start, expected, tmp_path):
    """Output and exit code as ever, one warning that names the place and the remedy."""
    (tmp_path / "occupied").write_text("a file")
    done = start(program(APP), LLMTRACE_DIR=str(tmp_path / "occupied" / "traces"))
    assert (done.stdout, done.returncode) == expected
    (warning,) = done.stderr.splitlines()
    assert "occupied" in warning
    assert "LLMTRACE_DIR" in warning


def test_a_full_file_system(program, start, expected):
    """Writing stops half-way with an error: one warning, and nothing else happens."""
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
    done = start(program(limit + "generate(2)\n" + APP))
    assert (done.stdout, done.returncode) == expected
    assert len(done.stderr.splitlines()) == 1
    assert "File too large" in done.stderr


def test_an_exporter_that_raises(program, start, expected):
    """An app's own broken exporter: the SDK says so, the answer stays."""
    done = start(
        program(
            """
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter

            class Broken(SpanExporter):
                def export(self, spans):
                    raise OSError("no")

            provider = TracerProvider()
            provider.add_span_processor(SimpleSpanProcessor(Broken()))
            llmtrace.instrument(tracer_provider=provider)
            print(generate(4))
            sys.exit(3)
            """
        )
    )
    assert (done.stdout, done.returncode) == expected


def test_a_processor_that_raises(program, start, expected):
    """An app's own broken span processor raises into us, not into ``generate()``."""
    done = start(
        program(
            """
            from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

            class Broken(SpanProcessor):
                def on_start(self, span, parent_context=None):
                    raise RuntimeError("start")
                def on_end(self, span):
                    raise RuntimeError("end")

            provider = TracerProvider()
            provider.add_span_processor(Broken())
            llmtrace.instrument(tracer_provider=provider)
            print(generate(4))
            sys.exit(3)
            """
        )
    )
    assert (done.stdout, done.returncode) == expected
    assert done.stderr.count("Traceback") == 1


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("answers", [False, "never"])
def test_a_collector_that_cannot_be_reached(program, start, expected, protocol, answers):
    """A closed port, and one that accepts and never answers: one warning, exit in time."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    if answers:
        listener.listen()
    timed = "import time\n" + APP.replace(
        "sys.exit(3)", "print(time.monotonic(), file=open('left', 'w'))\nsys.exit(3)"
    )
    path = program(timed)
    done = start(
        path,
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}",
        OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
    )
    left = float((path.parent / "left").read_text())
    took = time.monotonic() - left
    listener.close()
    assert (done.stdout, done.returncode) == expected
    assert took < EXIT_BOUND_S + 3
    (warning,) = done.stderr.splitlines()
    assert "collector" in warning


class Collector(BaseHTTPRequestHandler):
    """A real OTLP/HTTP receiver that keeps what it gets."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        kind = (
            ExportTraceServiceRequest if self.path == "/v1/traces" else ExportMetricsServiceRequest
        )
        self.server.got.append(kind.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def test_otlp_over_http(program, start, expected, tmp_path):
    """``OTEL_EXPORTER_OTLP_ENDPOINT`` alone sends spans and metrics there, and no file is made."""
    server = HTTPServer(("127.0.0.1", 0), Collector)
    server.got = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    done = start(
        program(APP),
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{server.server_port}",
        OTEL_SERVICE_NAME="shop",
    )
    server.shutdown()
    server.server_close()
    assert (done.stdout, done.returncode) == expected
    assert done.stderr == ""
    spans = [
        span.name
        for message in server.got
        if isinstance(message, ExportTraceServiceRequest)
        for resource in message.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert sorted(spans) == sorted(
        ["text_completion llama", "prefill", "first_token", "decode", "decode", "decode"]
    )
    metrics = {
        metric.name
        for message in server.got
        if isinstance(message, ExportMetricsServiceRequest)
        for resource in message.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert "gen_ai.server.time_to_first_token" in metrics
    assert not (tmp_path / "llmtrace-traces").exists()


def test_otlp_over_grpc(program, start, expected):
    """The same over gRPC, into a real gRPC server."""
    from concurrent.futures import ThreadPoolExecutor

    import grpc
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceResponse,
    )

    got = []

    class Receiver(service.TraceServiceServicer):
        def Export(self, request, context):  # noqa: N802 - gRPC's name
            got.append(request)
            return ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    service.add_TraceServiceServicer_to_server(Receiver(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    done = start(
        program(APP),
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}",
        OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
        OTEL_METRICS_EXPORTER="none",
    )
    server.stop(None)
    assert (done.stdout, done.returncode) == expected
    assert done.stderr == ""
    spans = [s for r in got for rs in r.resource_spans for ss in rs.scope_spans for s in ss.spans]
    assert len(spans) == 6


def test_console(program, start):
    """``OTEL_TRACES_EXPORTER=console`` prints the spans."""
    done = start(program(APP), OTEL_TRACES_EXPORTER="console")
    assert done.stdout.count('"name": "decode"') == 3


def test_an_exporter_that_does_not_exist(program, start, expected, tmp_path):
    """A wrong ``OTEL_TRACES_EXPORTER`` is one warning; traces go to the local file."""
    done = start(program(APP), OTEL_TRACES_EXPORTER="nonsense")
    assert (done.stdout, done.returncode) == expected
    (warning,) = done.stderr.splitlines()
    assert "nonsense" in warning
    assert len(list((tmp_path / "llmtrace-traces").iterdir())) == 1
    done = start("-m", "llmtrace", "run", program(PLAIN), OTEL_TRACES_EXPORTER="nonsense")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""

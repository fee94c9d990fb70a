"""A real OTLP backend: Arize Phoenix, in a process of its own."""

import base64
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.processes.conftest import TINY

ROOT = Path(__file__).parents[2]
NAMES = sorted(["text_completion llama", "prefill", "first_token", "decode", "decode"])


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory):
    """Start Phoenix; returns its address for HTTP."""
    command = ROOT / ".venv" / "phoenix" / "bin" / "phoenix"
    assert command.exists(), "scripts/install PYTHON test installs it"
    port = free_port()
    folder = tmp_path_factory.mktemp("phoenix")
    environ = {
        **os.environ,
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [command, "serve"], env=environ, stdout=log, stderr=subprocess.STDOUT
        )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            assert server.poll() is None, (folder / "log").read_text()
            try:
                urllib.request.urlopen(f"{address}/healthz", timeout=2)
                break
            except OSError:
                time.sleep(0.5)
        yield address
    finally:
        server.terminate()
        server.wait(20)


def spans_at(address, trace_id, expected):
    """Return the spans that Phoenix has of a trace, once it has *expected*."""
    found = []
    for _ in range(60):
        with urllib.request.urlopen(f"{address}/v1/projects/default/spans?limit=1000") as reply:
            spans = json.load(reply)["data"]
        found = [s for s in spans if s["context"]["trace_id"] == trace_id]
        if len(found) >= expected:
            break
        time.sleep(0.5)
    return found


def run(folder, **variables):
    """Trace one request of 3 tokens in a process; returns its trace id."""
    app = folder / "app.py"
    app.write_text(
        "import llmtrace\nllmtrace.instrument()\n"
        + TINY
        + "with llmtrace.capture() as records:\n    generate(3)\nprint(records[0].trace_id)\n"
    )
    done = subprocess.run(
        [sys.executable, app],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_spans_arrive_over_otlp(phoenix, tmp_path):
    """Sent over OTLP, a request's tree is in the backend with its attributes."""
    trace_id = run(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=phoenix, OTEL_METRICS_EXPORTER="none")
    spans = spans_at(phoenix, trace_id, len(NAMES))
    assert sorted(s["name"] for s in spans) == NAMES
    (request,) = (s for s in spans if s["parent_id"] is None)
    assert request["attributes"]["gen_ai.usage.output_tokens"] == 3
    assert request["attributes"]["llmtrace.ttft"] > 0
    inner = {s["parent_id"] for s in spans if s is not request}
    assert inner == {request["context"]["span_id"]}


def test_the_local_file_is_good_otlp(phoenix, tmp_path):
    """A file of one request, posted as it is, gives the same tree in the backend."""
    trace_id = run(tmp_path)
    (file,) = (tmp_path / "llmtrace-traces").iterdir()
    for line in file.read_text().splitlines():
        post(phoenix, json.loads(line))
    spans = spans_at(phoenix, trace_id, len(NAMES))
    assert sorted(s["name"] for s in spans) == NAMES
    report = subprocess.run(
        [sys.executable, "-m", "llmtrace", "report", "--json", "--include-cold", file],
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(report.stdout)
    assert told["requests"] == {"total": 1, "ok": 1, "error": 0, "cold": 1}
    (request,) = (s for s in spans if s["parent_id"] is None)
    assert told["ttft_s"]["mean"] == pytest.approx(request["attributes"]["llmtrace.ttft"])


def post(address, message):
    """Post OTLP/JSON as protobuf, which is all that Phoenix takes; ids are base64 there."""
    for resource in message["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in ("traceId", "spanId", "parentSpanId"):
                    if name in span:
                        span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    body = ParseDict(message, ExportTraceServiceRequest()).SerializeToString()
    request = urllib.request.Request(
        f"{address}/v1/traces", body, {"Content-Type": "application/x-protobuf"}
    )
    with urllib.request.urlopen(request) as reply:
        assert reply.status == 200


def test_export_sends_a_recorded_file_on(phoenix, tmp_path):
    """A file of one request, sent by ``llmtrace export``, gives the same tree in the backend."""
    trace_id = run(tmp_path)
    (file,) = (tmp_path / "llmtrace-traces").iterdir()
    done = subprocess.run(
        [sys.executable, "-m", "llmtrace", "export", "--json", "--otlp", phoenix, file],
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    assert (told["spans"], told["rejected"], told["problems"]) == (len(NAMES), 0, 0)
    spans = spans_at(phoenix, trace_id, len(NAMES))
    assert sorted(s["name"] for s in spans) == NAMES
    (request,) = (s for s in spans if s["parent_id"] is None)
    assert request["attributes"]["llmtrace.ttft"] > 0
    assert {s["parent_id"] for s in spans if s is not request} == {request["context"]["span_id"]}

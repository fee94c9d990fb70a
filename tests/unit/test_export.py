"""``llmtrace export``, to a backend of our own in a thread that takes OTLP/HTTP."""

from __future__ import annotations

import gzip
import http.server
import json
import socket
import threading

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from llmtrace.cli import main
from llmtrace.errors import SendError
from llmtrace.telemetry.otlp_http import ATTEMPTS, Sender, endpoint
from llmtrace.telemetry.otlp_message import MOST_SPANS, messages
from tests.unit.test_sources import REQUEST, STEPS, line, span


class Backend:
    """Answers as it was told to, in turn, then with 200; keeps what it was sent."""

    def __init__(self):
        self.answers = []
        self.messages = []
        self.headers = []
        self.posts = 0
        backend = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                backend.posts += 1
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, headers, answer = (
                    backend.answers.pop(0) if backend.answers else (200, {}, b"")
                )
                if status == 200:
                    assert self.path == "/v1/traces"
                    assert self.headers["Content-Type"] == "application/x-protobuf"
                    unpacked = gzip.decompress(body)
                    backend.messages.append(ExportTraceServiceRequest.FromString(unpacked))
                    backend.headers.append({k.lower(): v for k, v in self.headers.items()})
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def spans(self):
        return [
            span
            for message in self.messages
            for resource in message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def backend(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "OTEL_EXPORTER_OTLP_HEADERS"):
        monkeypatch.delenv(name, raising=False)
    made = Backend()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(line(*STEPS, REQUEST) + "\n")
    return path


def run(*argv):
    return main(["export", *map(str, argv)])


def sender(backend):
    waits = []
    return Sender(backend.url, wait=waits.append), waits


def test_spans_arrive_as_they_were_recorded(backend, file, capsys):
    """Ids, times, parent, attributes of every type, scope and resource."""
    assert run(file, "--otlp", backend.url) == 0
    (message,) = backend.messages
    resource = message.resource_spans[0]
    assert resource.resource.attributes[0].value.string_value == "app"
    assert resource.scope_spans[0].scope.name == "llmtrace"
    sent = {s.span_id.hex(): s for s in backend.spans()}
    assert set(sent) == {s["spanId"] for s in (*STEPS, REQUEST)}
    request = sent[REQUEST["spanId"]]
    assert request.trace_id.hex() == REQUEST["traceId"]
    assert str(request.start_time_unix_nano) == REQUEST["startTimeUnixNano"]
    values = {a.key: a.value for a in request.attributes}
    assert values["gen_ai.request.model"].string_value == "m"
    assert values["gen_ai.usage.input_tokens"].int_value == 12
    assert values["llmtrace.ttft"].double_value == 0.25
    assert [v.double_value for v in values["llmtrace.itl"].array_value.values] == [0.125, 0.25]
    assert sent[STEPS[0]["spanId"]].parent_span_id.hex() == REQUEST["spanId"]
    out, err = capsys.readouterr()
    assert out == f"5 spans sent to {backend.url}/v1/traces (messages: 1)\n"
    assert err == ""


def test_everything_in_the_file_is_sent(backend, tmp_path, capsys):
    """Other people's spans too, with status, events and links; lines of metrics are passed over."""
    foreign = span("GET /", "00000000000000f1", 0, 1, {}) | {
        "kind": "SPAN_KIND_SERVER",
        "status": {"code": "STATUS_CODE_ERROR", "message": "x"},
        "links": [{"traceId": "0" * 31 + "1", "spanId": "0" * 15 + "2"}],
        "events": [{"name": "e", "timeUnixNano": "5"}],
        "aFieldOfLater": 1,
    }
    path = tmp_path / "t.jsonl"
    path.write_text(
        f'{line(foreign, scope="fastapi")}\n{{"resourceMetrics":[]}}\n{line(REQUEST)}\n'
    )
    assert run(path, "--otlp", backend.url, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["spans"], told["messages"], told["problems"]) == (2, 1, 0)
    sent = {s.name: s for s in backend.spans()}["GET /"]
    assert (sent.kind, sent.status.code, sent.status.message) == (2, 2, "x")
    assert sent.links[0].span_id.hex() == "0" * 15 + "2"
    assert sent.events[0].name == "e"


def test_many_spans_go_in_portions(backend, tmp_path):
    """2,500 spans of one scope, and small documents are put together: never above the limit."""
    many = [span("x", f"{i:016x}", 0, 1, {}) for i in range(2500)]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join([line(*many), *[line(s) for s in many[:300]]]) + "\n")
    assert run(path, "--otlp", backend.url) == 0
    counts = [
        sum(len(s.spans) for r in message.resource_spans for s in r.scope_spans)
        for message in backend.messages
    ]
    assert sum(counts) == 2800
    assert max(counts) <= MOST_SPANS
    assert len(counts) == 3
    assert {s.span_id.hex() for s in backend.spans()} == {s["spanId"] for s in many}


def test_bad_lines_are_told_and_the_rest_is_sent(backend, file, capsys):
    """A malformed span, resource and line: each with its place."""
    bad = {**REQUEST, "spanId": "nothex"}
    parts = '{"resourceSpans":[5, {"scopeSpans":[7]}]}'
    file.write_text("\n".join(["junk", line(bad, STEPS[0]), parts, line(REQUEST)]) + "\n")
    assert run(file, "--otlp", backend.url) == 0
    err = capsys.readouterr().err.splitlines()
    assert [text.split(": ")[1].removeprefix(f"{file}") for text in err] == [":1", ":2", ":3", ":3"]
    assert "malformed span" in err[1]
    assert len(backend.spans()) == 2


@pytest.mark.parametrize("content", ["", "junk\n", line(scope="llmtrace") + "\n"])
def test_nothing_to_send_is_one_line(backend, file, capsys, content):
    """No message is sent."""
    file.write_text(content)
    assert run(file, "--otlp", backend.url) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()
    assert backend.posts == 0


def test_headers_from_the_environment(backend, file, monkeypatch):
    """As any exporter takes them."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc,x-tenant=t")
    assert run(file, "--otlp", backend.url) == 0
    assert backend.headers[0]["authorization"] == "Bearer abc"
    assert backend.headers[0]["x-tenant"] == "t"


def test_spans_that_the_backend_rejects_are_exit_code_1(backend, file, capsys):
    """Its partial success says how many, and why."""
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = 2
    answer.partial_success.error_message = "too old\x1b"
    backend.answers = [(200, {}, answer.SerializeToString())]
    assert run(file, "--otlp", backend.url) == 1
    out, err = capsys.readouterr()
    assert out.startswith("3 spans sent")
    assert err == "llmtrace export: 2 spans rejected: too old?\n"


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_what_may_be_tried_again_is(backend, status):
    """Twice no, then yes: each wait longer than the one before, or as long as was asked."""
    backend.answers = [(status, {}, b""), (status, {"Retry-After": "7"}, b"")]
    to, waits = sender(backend)
    assert to.send(ExportTraceServiceRequest()) == (0, "")
    assert backend.posts == 3
    assert 0.4 <= waits[0] <= 0.6
    assert waits[1] == 7.0
    assert to.retries == 2


def test_retries_are_bounded(backend):
    """Five attempts, and waits that double."""
    backend.answers = [(503, {}, b"busy")] * 99
    to, waits = sender(backend)
    with pytest.raises(SendError, match=r"503 .*: busy \(5 attempts\)"):
        to.send(ExportTraceServiceRequest())
    assert backend.posts == ATTEMPTS
    assert [0.4 * 2**i <= w <= 0.6 * 2**i for i, w in enumerate(waits)] == [True] * 4


def test_a_backend_that_asks_for_too_much_patience(backend):
    """An hour is not waited for."""
    backend.answers = [(429, {"Retry-After": "3600"}, b"")]
    to, waits = sender(backend)
    with pytest.raises(SendError, match=r"429 .*\(1 attempt\)"):
        to.send(ExportTraceServiceRequest())
    assert waits == []


@pytest.mark.parametrize(("status", "headers"), [(400, {}), (404, {}), (302, {"Location": "/x"})])
def test_what_will_not_get_better_is_not_tried_again(backend, file, capsys, status, headers):
    """A refusal, no endpoint, a redirect, which would lose the spans: one line, exit code 2."""
    backend.answers = [(status, headers, b"why\nnot\x1b")]
    assert run(file, "--otlp", backend.url) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"llmtrace export: {backend.url}/v1/traces: {status} ")
    assert err.endswith(": why not?; 0 spans were sent before\n")
    assert backend.posts == 1


def test_nobody_listens():
    """Tried again as well: it may just be starting."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        waits = []
        with pytest.raises(SendError, match=r"efused.*\(5 attempts\)"):
            Sender(url, wait=waits.append).send(ExportTraceServiceRequest())
    assert len(waits) == 4


def test_what_does_not_speak_http():
    """A gRPC port, for one: told so."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            peer, _ = server.accept()
            with peer:
                peer.recv(1 << 16)
                peer.sendall(b"\x00\x00\x18\x04\x00\x00\x00\x00\x00 not http\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(SendError, match=r"does not speak HTTP .* at port 4318"):
            Sender(url, wait=lambda _: None).send(ExportTraceServiceRequest())
        thread.join()


@pytest.mark.parametrize(
    ("url", "sent_to"),
    [
        ("http://h:4318", "http://h:4318/v1/traces"),
        ("http://h:4318/", "http://h:4318/v1/traces"),
        ("https://h/otlp", "https://h/otlp/v1/traces"),
        ("http://h:4318/v1/traces", "http://h:4318/v1/traces"),
    ],
)
def test_where_traces_go(url, sent_to):
    """The path is added to a backend's address, once."""
    assert endpoint(url) == sent_to


@pytest.mark.parametrize(
    "url", ["", "localhost:4318", "ftp://h", "http://", "http://h:x", "http://[::1", "http://h/ a"]
)
def test_what_is_no_address(url, file, capsys):
    """One line, before anything is read."""
    assert run(file, "--otlp", url) == 2
    assert "is no address of OTLP over HTTP" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["http://me:secret@h", "ftp://me:secret@h"])
def test_a_password_in_the_address_is_refused_and_not_repeated(url, file, capsys):
    """It would be taken for a part of the host's name."""
    assert run(file, "--otlp", url) == 2
    said = capsys.readouterr().err
    assert "OTEL_EXPORTER_OTLP_HEADERS" in said
    assert "secret" not in said


def test_an_unreadable_file_is_told_before_anything_is_sent(backend, file, tmp_path, capsys):
    """The good one named before it is not sent alone."""
    assert run(file, tmp_path / "none.jsonl", "--otlp", backend.url) == 2
    assert capsys.readouterr().err.endswith("none.jsonl: no such file\n")
    assert backend.posts == 0


def test_no_spans_are_no_message():
    """Documents without spans."""
    refused = []
    assert list(messages([("a:1", [{"scopeSpans": []}, {}])], lambda *x: refused.append(x))) == []
    assert refused == []


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_what_is_no_time_to_wait(file, capsys, seconds):
    """argparse says so."""
    with pytest.raises(SystemExit) as caught:
        run(file, "--otlp", "http://h", f"--timeout={seconds}")
    assert caught.value.code == 2
    assert "is no number of seconds to wait" in capsys.readouterr().err

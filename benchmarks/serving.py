"""Streaming clients against ``examples/fastapi_stream.py``, with and without llmtrace.

Two servers, a process each: with llmtrace, and without (``LLMTRACE_DISABLED=1``, all else the
same). They are asked in turns, the same questions by the same number of clients at once, on
loopback. It says

- throughput: output tokens per second of wall time with llmtrace over that without, pair by pair;
- answers: whether they are the same, byte for byte;
- completeness: one trace per answer, and no span of it missing;
- truth: each client's own stopwatch against the sums in its trace. Client and server share a host
  and so a clock. Compared are, per answer, sent-to-first-text at the client with the sum of the
  parts (queue, tokenize, prepare, prefill, sampling, delivery, hold_back), and first-to-last-text
  at the client with first text to last token in the trace. What the client's stopwatch has more is
  also said: the way in, from sent to the server span, and the way out, from the text in the
  response's hands to the client's. Both go through HTTP and the server's event loop and wait for a
  core where there are fewer cores than busy threads, so medians are what counts.

    python benchmarks/serving.py [--clients N] [--pairs N] [--tokens N] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import http.client
import json
import os
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

APP = Path(__file__).parents[1] / "examples" / "fastapi_stream.py"
PARTS = ("queue", "tokenize", "prepare", "prefill", "sampling", "delivery", "hold_back")
TOPICS = ("a river", "the moon", "bread", "winter", "a violin", "salt", "an island", "a clock")
START_S = 240
"""Longest wait for a server's start: it loads a model."""
SERVER_KIND = 2
SAME_NS = 1e6
"""Server span and request have a clock reading each."""


class Collector:
    """An OTLP/HTTP endpoint that keeps every span."""

    def __init__(self):
        self.spans = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path == "/v1/traces":
                    collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, request):
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def by_trace(self):
        """Return the spans of each trace."""
        traces: dict[str, list] = {}
        for span in self.spans:
            traces.setdefault(span.trace_id.hex(), []).append(span)
        return traces


@dataclass
class Answer:
    """What one client saw; nanoseconds since the epoch."""

    trace_id: str
    question: str
    sent: int = 0
    first: int = 0
    last: int = 0
    text: bytes = b""


def ask(port: int, question: str, tokens: int) -> Answer:
    """Ask as one client, and read the answer as it comes."""
    answer = Answer(secrets.token_hex(16), question)
    headers = {
        "Content-Type": "application/json",
        "traceparent": f"00-{answer.trace_id}-{secrets.token_hex(8)}-01",
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.connect()
    answer.sent = time.time_ns()
    body = json.dumps({"question": question, "max_new_tokens": tokens})
    connection.request("POST", "/chat", body, headers)
    response = connection.getresponse()
    if response.status != http.HTTPStatus.OK:
        raise SystemExit(f"the server answered {response.status}: {response.read()!r}")
    while chunk := response.read1():
        answer.last = time.time_ns()
        answer.text += chunk
        if not answer.first and answer.text.strip():
            answer.first = answer.last
    connection.close()
    return answer


@contextlib.contextmanager
def serving(collector: Collector | None, *, traced: bool):
    """Run the app in a process of its own; yields its port. It ends as after Ctrl-C.

    Args:
        collector: Where its spans go, the HTTP server's included; None for a plain start.
        traced: Whether llmtrace is on.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "LLMTRACE_"))}
    environ["OMP_NUM_THREADS"] = "1"
    if not traced:
        environ["LLMTRACE_DISABLED"] = "1"
    command = [sys.executable, str(APP), "--port", str(port)]
    if collector is not None:
        environ |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_LOGS_EXPORTER": "none",
            "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "threading",
            "OTEL_SERVICE_NAME": "chat",
        }
        tool = Path(sys.executable).with_name("opentelemetry-instrument")
        command.insert(0, str(tool))
    process = subprocess.Popen(command, env=environ)
    try:
        _wait_for(port, process)
        yield port
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(port: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise SystemExit(f"{APP.name} did not start (exit code {process.poll()})")


@dataclass
class Burst:
    """What all clients got at once."""

    answers: list[Answer]
    seconds: float


def burst(port: int, clients: int, tokens: int) -> Burst:
    """Have *clients* ask at once."""
    questions = [f"Tell me about {TOPICS[i % len(TOPICS)]}, number {i}." for i in range(clients)]
    with ThreadPoolExecutor(clients) as pool:
        begun = time.perf_counter()
        answers = list(pool.map(lambda question: ask(port, question, tokens), questions))
        return Burst(answers, time.perf_counter() - begun)


def attributes(span) -> dict:
    """Return a span's attributes."""
    found = {}
    for attribute in span.attributes:
        value = attribute.value
        kind = value.WhichOneof("value")
        if kind == "array_value":
            found[attribute.key] = [item.string_value for item in value.array_value.values]
        else:
            found[attribute.key] = getattr(value, kind)
    return found


@dataclass
class Check:
    """One answer's trace beside its client's stopwatch; seconds."""

    problem: str = ""
    """What is wrong with the trace; empty if nothing is."""
    tokens: int = 0
    client_first: float = 0.0
    way_in: float = 0.0
    way_out: float = 0.0
    rest_off: float = 0.0
    findings: tuple[str, ...] = ()


def check(answer: Answer, spans: list) -> Check:
    """Compare the trace of *answer* with what its client saw."""
    requests = [s for s in spans if s.name.startswith("chat ")]
    servers = [s for s in spans if s.kind == SERVER_KIND]
    if len(requests) != 1 or len(servers) != 1:
        return Check(f"{len(requests)} request spans, {len(servers)} server spans")
    (request,), (server,) = requests, servers
    found = attributes(request)
    tokens = int(found["gen_ai.usage.output_tokens"])
    names = [s.name for s in spans if s.parent_span_id == request.span_id]
    expected = {"prefill": 1, "first_token": 1, "decode": tokens - 1}
    if {name: names.count(name) for name in expected} != expected:
        return Check(f"{len(names)} spans of {tokens} tokens")
    if request.parent_span_id != server.span_id:
        return Check("its parent is not the server's span")
    parts = sum(found.get(f"llmtrace.{name}", 0.0) for name in PARTS)
    start = request.start_time_unix_nano
    visible = start + found["llmtrace.first_visible_text"] * 1e9
    if abs(server.start_time_unix_nano + parts * 1e9 - visible) > SAME_NS:
        return Check("the parts do not add up to the first visible text")
    last = start + found["llmtrace.e2e"] * 1e9
    return Check(
        tokens=tokens,
        client_first=(answer.first - answer.sent) / 1e9,
        way_in=(server.start_time_unix_nano - answer.sent) / 1e9,
        way_out=(answer.first - visible) / 1e9,
        rest_off=(answer.last - answer.first - (last - visible)) / 1e9,
        findings=tuple(found.get("llmtrace.findings", ())),
    )


def quartiles(values: list[float]) -> list[float]:
    """Return quartiles in milliseconds."""
    cut = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return [round(value * 1e3, 2) for value in cut]


def measure(clients: int, pairs: int, tokens: int) -> dict[str, object]:
    collector = Collector()
    on: list[Burst] = []
    off: list[Burst] = []
    with (
        serving(collector, traced=True) as traced,
        serving(collector, traced=False) as plain,
    ):
        for pair in range(pairs + 1):
            turns = [(traced, on), (plain, off)]
            for port, bursts in turns if pair % 2 else reversed(turns):
                # The first of each pays for what is done once, and is no measurement.
                done = burst(port, clients, tokens if pair else 2)
                if pair:
                    bursts.append(done)
    traces = collector.by_trace()
    answers = [answer for one in on for answer in one.answers]
    checks = [check(answer, traces.get(answer.trace_id, [])) for answer in answers]
    good = [c for c in checks if not c.problem]
    per_burst = sum(c.tokens for c in good) / pairs
    # The answers are the same, so the ratio of rates is that of times.
    ratios = [b.seconds / a.seconds for a, b in zip(on, off, strict=True)]
    return {
        "clients": clients,
        "pairs": pairs,
        "answers": len(answers),
        "answers_identical": all(
            a.text == b.text
            for one, other in zip(on, off, strict=True)
            for a, b in zip(one.answers, other.answers, strict=True)
        ),
        "traces_complete": len(good),
        "problems": sorted({c.problem for c in checks if c.problem}),
        "findings": dict(Counter(code for c in good for code in c.findings)),
        "throughput_ratio_median": round(statistics.median(ratios), 3),
        "throughput_ratios": [round(ratio, 3) for ratio in ratios],
        "tokens_per_second_with": round(statistics.median(per_burst / b.seconds for b in on), 1),
        "first_text_ms_median": round(statistics.median(c.client_first for c in good) * 1e3, 1),
        "first_text_client_minus_trace_ms": quartiles([c.way_in + c.way_out for c in good]),
        "of_that_way_in_ms": quartiles([c.way_in for c in good]),
        "of_that_way_out_ms": quartiles([c.way_out for c in good]),
        "first_to_last_text_client_minus_trace_ms": quartiles([c.rest_off for c in good]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = measure(arguments.clients, arguments.pairs, arguments.tokens)
    if arguments.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:46} {value}")
    return 0 if result["answers_identical"] and not result["problems"] else 1


if __name__ == "__main__":
    sys.exit(main())

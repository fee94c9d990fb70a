"""``transformers serve`` in a process of its own, asked over HTTP, stopped by a signal."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from llmtrace import demo
from tests.processes.test_failures import Collector

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("openai")

EXAMPLE = Path(__file__).parents[2] / "examples" / "transformers_serve"
SERVE = "transformers.cli.transformers"
UP_S, STOP_S = 120, 60
SERVER_KIND = 2
BATCHING = (
    "--continuous-batching",
    "--attn-implementation=sdpa",
    "--cb-num-blocks=16",
    "--cb-max-batch-tokens=64",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny Llama with random weights, and SmolLM2's tokenizer and chat template."""
    path = tmp_path_factory.mktemp("serve") / "tiny"
    gguf = demo.model_file()
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


class Server:
    """The server's process, and what its clients are told."""

    def __init__(self, command, where, **variables):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = where / "server.log"
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **variables}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*map(str, command), "--device=cpu", "--host=127.0.0.1", f"--port={self.port}"],
                cwd=where,
                env=environ,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_until_up(self):
        limit = time.monotonic() + UP_S
        while not self.up():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < limit, self.log.read_text()
            time.sleep(0.1)

    def up(self):
        try:
            urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return True

    def post(self, path, body):
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        begun = time.perf_counter()
        with urllib.request.urlopen(request, timeout=UP_S) as response:
            answer = response.read().decode()
        return answer, time.perf_counter() - begun

    def stop(self, number):
        self.process.send_signal(number)
        return self.process.wait(STOP_S)

    def __enter__(self):
        self.wait_until_up()
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def requests(model):
    """Return the requests to make: path, body, whether it is a chat, tokens asked for."""
    chat = {"model": str(model), "messages": [{"role": "user", "content": "Name three rivers."}]}
    text = {"model": str(model), "prompt": "Once upon a time"}
    answer = {"model": str(model), "input": "Hello there"}
    return [
        ("/v1/chat/completions", {**chat, "max_tokens": 5}, True, 5),
        ("/v1/chat/completions", {**chat, "max_tokens": 6, "stream": True}, True, 6),
        ("/v1/completions", {**text, "max_tokens": 7}, False, 7),
        ("/v1/completions", {**text, "max_tokens": 8, "stream": True}, False, 8),
        ("/v1/responses", {**answer, "max_output_tokens": 9, "stream": True}, True, 9),
    ]


def ask(server, model, workers=1):
    """Make every request; return seconds by tokens asked for, which tells them apart."""
    asked = requests(model)
    with ThreadPoolExecutor(workers) as pool:
        answers = list(pool.map(lambda one: server.post(*one[:2]), asked))
    return {tokens: took for (*_, tokens), (_, took) in zip(asked, answers, strict=True)}


def file_spans(where):
    """Return every span in the trace file of *where*, attributes as a plain dictionary."""
    (file,) = (where / "traces").glob("*.jsonl")
    spans = []
    for line in file.read_text().splitlines():
        for resource in json.loads(line).get("resourceSpans", ()):
            for scope in resource["scopeSpans"]:
                spans += scope["spans"]
    for span in spans:
        span["attributes"] = {
            a["key"]: next(iter(a["value"].values())) for a in span.get("attributes", ())
        }
    return spans


def request_spans(spans):
    """Return the request spans by how many tokens were asked for."""
    found = [s for s in spans if "llmtrace.strategy" in s["attributes"]]
    by_tokens = {int(s["attributes"]["gen_ai.request.max_tokens"]): s for s in found}
    assert len(by_tokens) == len(found)
    return by_tokens


def check(spans, took, model):
    """Assert that each request is in *spans*, whole, and within what its client saw."""
    by_tokens = request_spans(spans)
    assert by_tokens.keys() == took.keys()
    for path, body, is_chat, tokens in requests(model):
        span = by_tokens[tokens]
        given = span["attributes"]
        assert span["name"] == f"{'chat' if is_chat else 'text_completion'} {model.name}", path
        assert int(given["gen_ai.usage.output_tokens"]) == tokens
        assert ("gen_ai.request.stream" in given) == (
            bool(body.get("stream")) or path == "/v1/responses"
        )
        assert 0 < given["llmtrace.tokenize"] < took[tokens]
        assert 0 < given["llmtrace.ttft"] < took[tokens]
        decode = [s for s in spans if s["name"] == "decode" and s["parentSpanId"] == span["spanId"]]
        assert len(decode) == tokens - 1


def test_run_plain(folder, tmp_path):
    """``llmtrace run -m``: a trace per request, a summary at Ctrl-C, and the usual exit."""
    where = tmp_path / "traces"
    command = [sys.executable, "-m", "llmtrace", "run", f"--dir={where}", "-m", SERVE, "serve"]
    with Server([*command, folder], tmp_path) as server:
        took = ask(server, folder)
        code = server.stop(signal.SIGINT)
    assert code in {0, 1, 130, -signal.SIGINT}, server.log.read_text()
    spans = file_spans(tmp_path)
    check(spans, took, folder)
    assert all("parentSpanId" not in s for s in request_spans(spans).values())
    assert "5 requests, 5 ok, 0 failed" in server.log.read_text()


def test_run_batched(folder, tmp_path):
    """With continuous batching, several at once: queue times, steps, and SIGTERM loses nothing."""
    where = tmp_path / "traces"
    command = [sys.executable, "-m", "llmtrace", "run", f"--dir={where}", "-m", SERVE, "serve"]
    with Server([*command, folder, *BATCHING], tmp_path) as server:
        took = ask(server, folder, workers=5)
        code = server.stop(signal.SIGTERM)
    assert code == -signal.SIGTERM, server.log.read_text()
    spans = file_spans(tmp_path)
    check(spans, took, folder)
    for span in request_spans(spans).values():
        given = span["attributes"]
        assert given["llmtrace.strategy"] == "continuous"
        assert 0 < given["llmtrace.queue"] < given["llmtrace.ttft"]
        assert ("llmtrace.first_delivery" in given) == ("gen_ai.request.stream" in given)
    steps = [s for s in spans if s["name"] == "batch_step"]
    decoded = sum(int(s["attributes"]["llmtrace.batch.decode_tokens"]) for s in steps)
    assert decoded == sum(tokens - 1 for tokens in took)
    assert "5 requests, 5 ok, 0 failed" in server.log.read_text()


@pytest.mark.parametrize("batching", [(), BATCHING], ids=["plain", "batched"])
def test_under_the_http_request(folder, tmp_path, batching):
    """``opentelemetry-instrument`` with FastAPI's: every request lies under its SERVER span."""
    pytest.importorskip("opentelemetry.instrumentation.fastapi")
    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    collector.got = []
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    # What the command opentelemetry-instrument is.
    starter = "from opentelemetry.instrumentation.auto_instrumentation import run; run()"
    command = [sys.executable, "-c", starter, sys.executable, "-m", SERVE, "serve"]
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_LOGS_EXPORTER": "none",
        # So that only a flush at the end can bring the spans out.
        "OTEL_BSP_SCHEDULE_DELAY": "600000",
        "OTEL_METRIC_EXPORT_INTERVAL": "600000",
    }
    with Server([*command, folder, *batching], tmp_path, **variables) as server:
        took = ask(server, folder, workers=3)
        code = server.stop(signal.SIGTERM)
    collector.shutdown()
    collector.server_close()
    assert code == -signal.SIGTERM, server.log.read_text()
    spans = [
        {
            "name": span.name,
            "kind": span.kind,
            "traceId": span.trace_id.hex(),
            "spanId": span.span_id.hex(),
            "parentSpanId": span.parent_span_id.hex(),
            "attributes": {
                a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes
            },
        }
        for message in collector.got
        if isinstance(message, ExportTraceServiceRequest)
        for resource in message.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    check(spans, took, folder)
    servers = {s["spanId"]: s for s in spans if s["kind"] == SERVER_KIND}
    paths = {tokens: path for path, _, _, tokens in requests(folder)}
    for tokens, span in request_spans(spans).items():
        server_span = servers[span["parentSpanId"]]
        assert server_span["traceId"] == span["traceId"]
        assert paths[tokens] in server_span["name"]
        from_request = span["attributes"]["llmtrace.ttft.from_request"]
        assert span["attributes"]["llmtrace.ttft"] < from_request < took[tokens]


@pytest.mark.smollm2
def test_the_example(tmp_path):
    """The example's own scripts, with the real model: as its README says."""
    model = tmp_path / "smollm2"
    saved = subprocess.run(
        [sys.executable, EXAMPLE / "save_model.py", model],
        capture_output=True,
        text=True,
        check=False,
    )
    assert saved.returncode == 0, saved.stderr
    where = tmp_path / "traces"
    command = [sys.executable, "-m", "llmtrace", "run", f"--dir={where}", "-m", SERVE, "serve"]
    try:
        with Server([*command, model], tmp_path, OMP_NUM_THREADS="2") as server:
            told = subprocess.run(
                [sys.executable, EXAMPLE / "client.py", server.url, model],
                capture_output=True,
                text=True,
                check=False,
                timeout=UP_S,
            )
            server.stop(signal.SIGTERM)
    finally:
        shutil.rmtree(model)
    assert told.returncode == 0, told.stderr
    assert told.stdout.count("first words after") == 3
    assert "4 requests, 4 ok, 0 failed" in server.log.read_text()

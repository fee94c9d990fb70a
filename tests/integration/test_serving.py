"""Real FastAPI apps under uvicorn: parents, the parts of TTFT, and what holds text up."""

import asyncio
import socket
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.trace import SpanKind
from transformers import AsyncTextIteratorStreamer, TextIteratorStreamer, TextStreamer

import llmtrace

TOKENS = 30
STEP_S = 0.01
FAULT_S = 0.4


class Words:
    """A tokenizer of one word per token."""

    def decode(self, ids, **_):
        ids = ids if isinstance(ids, list) else [ids]
        return "".join(f"w{int(i)} " for i in ids)


class Server:
    """An app behind a real socket, in a thread of this process."""

    def __init__(self, app):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        config = uvicorn.Config(app, port=self.port, log_level="error", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self):
        self._thread.start()
        deadline = time.monotonic() + 10
        while not self._server.started and time.monotonic() < deadline:
            time.sleep(0.005)
        return f"http://127.0.0.1:{self.port}"

    def __exit__(self, *_):
        self._server.should_exit = True
        self._thread.join(10)


@pytest.fixture
def model(tiny):
    """A model whose forward takes 10 ms, in which others can run."""
    handle = tiny.register_forward_pre_hook(lambda *_: time.sleep(STEP_S))
    tiny.generate(torch.tensor([[5, 6]]), max_new_tokens=2)
    yield tiny
    handle.remove()


@pytest.fixture
def app(telemetry):
    """An app with SERVER spans."""
    app = FastAPI()
    FastAPIInstrumentor.instrument_app(app, tracer_provider=telemetry.tracer_provider)
    yield app
    FastAPIInstrumentor.uninstrument_app(app)


def start(model, streamer, **arguments):
    """Generate in a thread of its own, as streaming servers do."""
    arguments = {"max_new_tokens": TOKENS, "do_sample": False, "streamer": streamer, **arguments}
    thread = threading.Thread(
        target=model.generate, args=(torch.tensor([[5, 6, 7]]),), kwargs=arguments
    )
    thread.start()
    return thread


def get(url):
    with urllib.request.urlopen(url, timeout=20) as response:
        return response.read().decode()


def ask(app, *paths):
    """Return records and answers of GETs of *paths*, all at once."""
    with Server(app) as url, llmtrace.capture() as records, ThreadPoolExecutor() as pool:
        return records, list(pool.map(lambda path: get(url + path), paths))


def codes(record):
    """Return the codes of what was found about delivery."""
    return [f.code for f in record.findings if f.code in {"slow_consumer", "event_loop_blocked"}]


def sync_endpoint(app, model, path, between=lambda number: None):
    """A sync generator over ``TextIteratorStreamer``; *between* runs after each item."""

    @app.get(path)
    def stream():
        streamer = TextIteratorStreamer(Words(), skip_prompt=True)
        start(model, streamer)

        def body():
            for number, text in enumerate(streamer, start=1):
                yield text
                between(number)

        return StreamingResponse(body(), media_type="text/plain")


def async_endpoint(app, model, path, between):
    """An async generator over ``AsyncTextIteratorStreamer``; *between* is awaited."""

    @app.get(path)
    async def stream():
        streamer = AsyncTextIteratorStreamer(Words(), skip_prompt=True)
        start(model, streamer)

        async def body():
            number = 0
            async for text in streamer:
                number += 1
                yield text
                await between(number)

        return StreamingResponse(body(), media_type="text/plain")


async def nothing(number):
    """A healthy consumer."""


async def awaits(number):
    """A consumer that waits for a slow client, and lets others run."""
    if number == 1:
        await asyncio.sleep(FAULT_S)


async def blocks(number):
    """A consumer that writes a log, and lets nobody run."""
    if number == 1:
        time.sleep(FAULT_S)  # noqa: ASYNC251 - the fault


def test_a_healthy_app_has_no_findings(app, model):
    """Sync and async streams that are read in time: nothing is reported."""
    sync_endpoint(app, model, "/sync")
    async_endpoint(app, model, "/async", nothing)
    records, _ = ask(app, "/sync", "/async", "/sync", "/async")
    assert [codes(record) for record in records] == [[]] * 4


def test_a_stall_after_the_first_token_is_the_consumers(app, model):
    """Blocking log I/O after the first item: the long stall is called what it is."""
    sync_endpoint(app, model, "/", lambda number: number == 1 and time.sleep(FAULT_S))
    (record,), _ = ask(app, "/")
    (finding,) = (f for f in record.findings if f.code == "slow_consumer")
    assert codes(record) == ["slow_consumer"]
    assert finding.severity == "warning"
    assert "text item 2 lay ready" in finding.evidence
    assert max(record.itl_s) < FAULT_S / 2
    assert record.delivery_s < FAULT_S / 2


def test_an_async_consumer_that_waits(app, model):
    """The loop runs, the consumer is elsewhere."""
    async_endpoint(app, model, "/", awaits)
    (record,), _ = ask(app, "/")
    assert codes(record) == ["slow_consumer"]


def test_an_async_consumer_that_blocks_the_loop(app, model):
    """Nothing reaches the queue while the loop does not run."""
    async_endpoint(app, model, "/", blocks)
    (record,), _ = ask(app, "/")
    assert codes(record) == ["event_loop_blocked"]


def test_another_endpoint_that_blocks_the_loop(app, model):
    """The reader waits in time, and somebody else's code stops the loop."""
    async_endpoint(app, model, "/stream", nothing)

    @app.get("/block")
    async def block():
        await asyncio.sleep(0.1)
        time.sleep(FAULT_S)  # noqa: ASYNC251 - the fault
        return "done"

    (record,), _ = ask(app, "/stream", "/block")
    assert codes(record) == ["event_loop_blocked"]


def test_generate_in_an_async_endpoint(app, model):
    """``generate()`` without a thread holds up everyone: found; in a plain endpoint it is not."""

    @app.get("/async")
    async def in_the_loop():
        model.generate(torch.tensor([[5, 6]]), max_new_tokens=TOKENS)
        return "done"

    @app.get("/sync")
    def in_a_thread():
        model.generate(torch.tensor([[5, 6]]), max_new_tokens=TOKENS)
        return "done"

    (record,), _ = ask(app, "/async")
    (finding,) = (f for f in record.findings if f.code == "event_loop_blocked")
    assert "in the event loop's thread" in finding.evidence
    (record,), _ = ask(app, "/sync")
    assert codes(record) == []


def test_a_streamer_that_blocks_in_put(app, model):
    """Log I/O inside the streamer holds the model itself up: not the model's fault."""

    class Logging(TextStreamer):
        def on_finalized_text(self, text, stream_end=False):
            if not hasattr(self, "said"):
                self.said = text
                time.sleep(FAULT_S)

    @app.get("/")
    def answer():
        start(model, Logging(Words(), skip_prompt=True)).join()
        return "done"

    (record,), _ = ask(app, "/")
    assert codes(record) == ["slow_consumer"]
    assert max(record.itl_s) >= FAULT_S


def test_a_slow_model_is_a_slow_model(app, tiny, telemetry):
    """A forward that takes as long as the faults above: nothing is said of the consumer."""
    slow = iter([0.0, 0.0, FAULT_S])
    handle = tiny.register_forward_pre_hook(lambda *_: time.sleep(next(slow, STEP_S)))
    sync_endpoint(app, tiny, "/sync")
    (record,), _ = ask(app, "/sync")
    assert codes(record) == []
    assert max(record.itl_s) >= FAULT_S
    handle.remove()


def server_span(telemetry, path="/"):
    (span,) = (
        s
        for s in telemetry.spans()
        if s.kind is SpanKind.SERVER and s.attributes.get("http.route") == path
    )
    return span


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_parts_add_up_under_a_server_span(app, model, telemetry, kind):
    """Queue to first text: attributes that add up, against a stopwatch in the app itself.

    50 ms of waiting before ``generate()`` are the queue. The stopwatch runs from the handler's
    first line to the first text in its hands; the server span began before that.
    """
    marks = {}

    @app.get("/")
    async def answer():
        marks["begun"] = time.time_ns()
        await asyncio.sleep(0.05)
        kinds = {"sync": TextIteratorStreamer, "async": AsyncTextIteratorStreamer}
        streamer = kinds[kind](Words(), skip_prompt=True)
        start(model, streamer)

        def read():
            for text in streamer:
                marks.setdefault("text", time.time_ns())
                yield text

        async def read_async():
            async for text in streamer:
                marks.setdefault("text", time.time_ns())
                yield text

        return StreamingResponse(read() if kind == "sync" else read_async())

    ask(app, "/")
    (request,) = (s for s in telemetry.requests() if s.attributes.get("llmtrace.queue"))
    server = server_span(telemetry)
    assert request.parent.span_id == server.context.span_id
    found = request.attributes
    names = ("queue", "prepare", "prefill", "sampling", "delivery", "hold_back")
    parts = [found[f"llmtrace.{name}"] for name in names]
    assert "llmtrace.tokenize" not in found
    assert sum(parts[:4]) == pytest.approx(found["llmtrace.ttft.from_request"], abs=1e-6)
    assert parts[0] >= 0.05
    assert parts[2] >= STEP_S
    first_text = server.start_time + sum(parts) * 1e9
    own = marks["text"] - marks["begun"]
    assert first_text - marks["text"] <= 1e6  # before the app had it in its hands
    assert sum(parts) * 1e9 >= 0.9 * own
    phases = telemetry.metrics()["llmtrace.first_text.phase.duration"].data.data_points
    sums = {p.attributes["llmtrace.phase"]: p.sum for p in phases if p.count == 1}
    for name in ("queue", "delivery", "hold_back"):
        assert sums[name] == found[f"llmtrace.{name}"]

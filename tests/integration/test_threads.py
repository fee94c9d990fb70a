"""The right parent and the right steps, whatever thread or task ``generate()`` runs in."""

import asyncio
import contextvars
import importlib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.instrumentation.threading import ThreadingInstrumentor
from opentelemetry.instrumentation.utils import suppress_instrumentation
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from transformers import TextIteratorStreamer

import llmtrace
from llmtrace.recording.active import active
from llmtrace.recording.block import current_block


class Words:
    """A tokenizer of one word per token."""

    def decode(self, ids, **_):
        return "w "


@contextmanager
def threads_carry_context(on):
    """With or without opentelemetry-instrumentation-threading."""
    if not on:
        yield
        return
    ThreadingInstrumentor().instrument()
    try:
        yield
    finally:
        ThreadingInstrumentor().uninstrument()


def plain_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def pool(work):
    with ThreadPoolExecutor(1) as executor:
        executor.submit(work).result()


def to_thread(work):
    asyncio.run(asyncio.to_thread(work))


def run_in_executor(work):
    async def main():
        await asyncio.get_running_loop().run_in_executor(None, work)

    asyncio.run(main())


def starlettes_pool(work):
    asyncio.run(run_in_threadpool(work))


def copied_context(work):
    contextvars.copy_context().run(work)


WAYS = [plain_thread, pool, to_thread, run_in_executor, starlettes_pool, copied_context]
CARRIES_ITSELF = {to_thread, starlettes_pool, copied_context}


@pytest.mark.parametrize("instrumented", [False, True], ids=["bare", "threading"])
@pytest.mark.parametrize("streams", [False, True], ids=["plain", "streamer"])
@pytest.mark.parametrize("way", WAYS)
def test_the_parent_is_where_the_request_came_from(
    tiny, prompt, telemetry, way, streams, instrumented
):
    """The handler's span, where the thread has it or a streamer tells it; else none."""
    streamer = None
    with threads_carry_context(instrumented):
        with telemetry.tracer.start_as_current_span("handler") as handler:
            if streams:
                streamer = TextIteratorStreamer(Words(), skip_prompt=True)

            def work():
                tiny.generate(prompt, max_new_tokens=3, streamer=streamer)
                left.append((active.get(), current_block.get()))

            left = []
            way(work)
            if streams:
                list(streamer)
        (request,) = telemetry.requests()
    known = way in CARRIES_ITSELF or streams or instrumented
    assert (request.parent and request.parent.span_id) == (
        handler.get_span_context().span_id if known else None
    )
    assert left == [(None, None)]


def test_a_worker_keeps_nothing_of_the_request_before(tiny, prompt, telemetry):
    """One pool thread serves requests of several traces, and one of none: each has its own."""
    parents = []
    after = []

    def work(streamer):
        tiny.generate(prompt, max_new_tokens=2, streamer=streamer)
        after.append((otel_context.get_current(), active.get()))

    with ThreadPoolExecutor(1) as executor:
        for turn in range(4):
            if turn == 2:
                executor.submit(work, None).result()
                parents.append(None)
                continue
            with telemetry.tracer.start_as_current_span(f"handler {turn}") as handler:
                streamer = TextIteratorStreamer(Words(), skip_prompt=True)
            parents.append(handler.get_span_context().span_id)
            executor.submit(work, streamer).result()
            list(streamer)
    found = [r.parent and r.parent.span_id for r in telemetry.requests()]
    assert found == parents
    assert after == [({}, None)] * 4


def test_a_failed_request_leaves_nothing_behind(tiny, prompt, telemetry):
    """The thread that has seen a failure is as clean as any."""

    def work():
        with pytest.raises(RuntimeError, match="gone"):
            tiny.generate(prompt, max_new_tokens=4, streamer=Broken())
        return otel_context.get_current(), active.get()

    class Broken:
        def put(self, value):
            if value.dim() == 1:
                raise RuntimeError("gone")

        def end(self):
            pass

    with ThreadPoolExecutor(1) as executor:
        assert executor.submit(work).result() == ({}, None)
        executor.submit(tiny.generate, prompt, max_new_tokens=2).result()
    assert telemetry.requests()[-1].parent is None


def test_nothing_is_current_while_a_stream_is_read(tiny, prompt, telemetry):
    """A consumer in starlette's pool, item by item: no context is held between two items."""
    seen = []

    def look():
        seen.append((active.get(), trace.get_current_span().get_span_context().span_id))

    def stream():
        streamer = TextIteratorStreamer(Words(), skip_prompt=True)
        thread = threading.Thread(
            target=tiny.generate,
            args=(prompt,),
            kwargs={"max_new_tokens": 5, "streamer": streamer},
        )
        thread.start()
        for text in streamer:
            seen.append((active.get(), trace.get_current_span().get_span_context().span_id))
            yield text
        thread.join()

    async def respond():
        with telemetry.tracer.start_as_current_span("handler") as handler:
            async for _ in iterate_in_threadpool(stream()):
                look()
        return handler.get_span_context().span_id

    handler = asyncio.run(respond())
    assert set(seen) == {(None, handler)}
    (request,) = telemetry.requests()
    assert request.parent.span_id == handler


def test_eight_threads_on_one_model(tiny, telemetry):
    """Prompts and answers of different lengths at once: every step belongs to its request.

    Counted beside llmtrace by a hook of the model's, by thread.
    """
    calls: dict[int, int] = {}

    def count(module, args, kwargs):
        calls[threading.get_ident()] = calls.get(threading.get_ident(), 0) + 1

    tiny.register_forward_pre_hook(count, with_kwargs=True)
    together = threading.Barrier(8)
    counted, alone, answers = {}, {}, {}

    def prompt_of(number):
        return torch.arange(5, 5 + 3 * (number + 1)).unsqueeze(0)

    def arguments(number):
        return {"max_new_tokens": 6 + 5 * number, "do_sample": False}

    def work(number):
        together.wait(10)
        calls[threading.get_ident()] = 0
        with telemetry.tracer.start_as_current_span(f"handler {number}"):
            answers[number] = tiny.generate(prompt_of(number), **arguments(number))
        counted[number] = calls[threading.get_ident()]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans = {s.context.span_id: s for s in telemetry.spans()}
    requests = telemetry.requests()
    assert len(requests) == 8
    for request in requests:
        number = int(spans[request.parent.span_id].name.split()[1])
        steps = telemetry.children(request, "decode")
        assert request.attributes["gen_ai.usage.input_tokens"] == 3 * (number + 1)
        assert request.attributes["gen_ai.usage.output_tokens"] == 6 + 5 * number
        assert len(steps) + 1 == counted[number] == 6 + 5 * number
        assert [s.attributes["llmtrace.step.index"] for s in steps] == [*range(1, len(steps) + 1)]
        own = {s.context.trace_id for s in steps} | {request.context.trace_id}
        assert len(own) == 1
    llmtrace.uninstrument()
    for number in range(8):
        alone[number] = tiny.generate(prompt_of(number), **arguments(number))
        assert torch.equal(alone[number], answers[number])


@pytest.mark.parametrize("under_a_span", [False, True])
def test_a_wish_not_to_be_traced_reaches_the_thread(tiny, prompt, telemetry, under_a_span):
    """It is made where the streamer is built; a plain thread knows nothing of it."""
    tracer = telemetry.tracer if under_a_span else trace.NoOpTracer()
    with tracer.start_as_current_span("app"), llmtrace.capture() as records:
        with suppress_instrumentation():
            streamer = TextIteratorStreamer(Words())
        call = {"max_new_tokens": 3, "do_sample": False, "streamer": streamer}
        plain_thread(lambda: tiny.generate(prompt, **call))
    assert records == []
    assert telemetry.requests() == []
    assert "".join(streamer)


@pytest.fixture
def half_imported(tmp_path, monkeypatch):
    """A module in the middle of its import, in another thread."""
    events = SimpleNamespace(begun=threading.Event(), go_on=threading.Event())
    monkeypatch.setitem(sys.modules, "half_imported_events", events)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "half_imported.py").write_text(
        "import half_imported_events as events\nevents.begun.set()\nevents.go_on.wait()\n"
    )
    importing = threading.Thread(target=importlib.import_module, args=("half_imported",))
    importing.start()
    assert events.begun.wait(10)
    yield sys.modules["half_imported"]
    events.go_on.set()
    importing.join()
    del sys.modules["half_imported"]


@pytest.mark.parametrize("name", ["torch._dynamo.utils", "asyncio"])
def test_another_thread_is_importing_what_we_look_into(
    tiny, prompt, telemetry, half_imported, monkeypatch, name
):
    """First requests of two threads come at the same time, and one of them imports dynamo."""
    monkeypatch.setitem(sys.modules, name, half_imported)
    with llmtrace.capture() as records:
        tiny.generate(prompt, max_new_tokens=3, do_sample=False)
    monkeypatch.undo()
    (record,) = records
    assert record.output_tokens == 3

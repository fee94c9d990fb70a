"""Streamers: put times, first delivery, first visible text; the prompt is never a token."""

import asyncio
import threading
import time

import pytest
from transformers import (
    AsyncTextIteratorStreamer,
    GenerationConfig,
    TextIteratorStreamer,
    TextStreamer,
)
from transformers.generation.streamers import BaseStreamer

import llmtrace


class Letters:
    """A tokenizer whose words end after every third token."""

    def decode(self, ids, **_):
        ids = ids if isinstance(ids, list) else [ids]
        return "".join("-" if i % 3 else " x" for i in ids)


class Own(BaseStreamer):
    """A user's own streamer, with its own independent stopwatch."""

    def __init__(self):
        self.puts = []
        self.ended = 0

    def put(self, value):
        self.puts.append((time.perf_counter(), tuple(value.shape)))

    def end(self):
        self.ended += 1


class Duck:
    """No BaseStreamer at all, and no room for other attributes or weak references."""

    __slots__ = ("ended", "puts")
    put = Own.put
    end = Own.end

    def __init__(self):
        self.puts, self.ended = [], 0


class _GenerationCancelled(Exception):  # noqa: N818 - as transformers serve calls it
    """The reader has left."""


def test_a_reader_that_has_left_is_no_error(tiny, prompt, telemetry):
    """``transformers serve`` ends a request by raising out of its streamer."""

    class Left(Own):
        def put(self, value):
            super().put(value)
            if len(self.puts) == 4:  # the prompt, and three tokens
                raise _GenerationCancelled

    with llmtrace.capture() as records, pytest.raises(_GenerationCancelled):
        tiny.generate(prompt, max_new_tokens=9, do_sample=False, streamer=Left())
    (record,) = records
    assert record.error is None
    assert record.finish_reasons == ("cancelled",)
    assert record.output_tokens == 3
    assert "error.type" not in telemetry.requests()[0].attributes


def generate(model, prompt, streamer, n=6):
    begun = time.perf_counter()
    with llmtrace.capture() as records:
        model.generate(prompt, max_new_tokens=n, do_sample=False, streamer=streamer)
    (record,) = records
    return begun, record


@pytest.mark.parametrize("kind", [Own, Duck])
def test_put_times_match_the_streamers_own_clock(tiny, prompt, telemetry, kind):
    """Each step's put time is when the user's own ``put`` was entered, after the prompt's."""
    generate(tiny, prompt, kind())
    streamer = kind()
    begun, record = generate(tiny, prompt, streamer)
    (_, prompt_shape), *tokens = streamer.puts
    assert prompt_shape == (1, 5)
    assert streamer.ended == 1
    assert len(tokens) == 6
    for step, (at, _) in zip(record.steps, tokens, strict=True):
        assert step.put_s == pytest.approx(at - begun, abs=2e-3)
        assert step.put_s <= at - begun
    assert (
        record.ttft_s <= record.first_delivery_s == pytest.approx(record.steps[0].put_s, abs=1e-3)
    )
    assert record.first_visible_text_s is None
    assert record.parameters.stream


def test_the_prompt_put_is_not_the_first_token(tiny, prompt, telemetry):
    """With a prefill of 40 ms TTFT and first delivery are above 40 ms, echo or not."""
    handle = tiny.model.register_forward_pre_hook(lambda *_: time.sleep(0.04))
    for skip in (True, False):
        streamer = TextIteratorStreamer(Letters(), skip_prompt=skip)
        found = {}

        def consume(streamer=streamer, found=found):
            begun = time.perf_counter()
            for text in streamer:
                found.setdefault(bool(text), time.perf_counter() - begun)

        consumer = threading.Thread(target=consume)
        consumer.start()
        _, record = generate(tiny, prompt, streamer, n=3)
        consumer.join()
        assert record.ttft_s > 0.04
        assert record.first_delivery_s > 0.04
        assert record.first_visible_text_s >= record.first_delivery_s
    handle.remove()


def test_delivery_is_when_the_consumer_took_it(tiny, prompt, telemetry):
    """A consumer that comes 50 ms late has its first token late; ITL and TTFT do not show it."""
    streamer = TextIteratorStreamer(Letters(), skip_prompt=True)
    taken = []

    def consume():
        for _ in streamer:
            taken.append(time.perf_counter())
            time.sleep(0.05)

    begun = time.perf_counter()
    consumer = threading.Thread(target=lambda: (time.sleep(0.1), consume()))
    consumer.start()
    begun, record = generate(tiny, prompt, streamer)
    consumer.join()
    assert record.first_delivery_s == pytest.approx(taken[0] - begun, abs=5e-3)
    assert record.first_delivery_s > record.ttft_s + 0.03
    assert max(record.itl_s) < 0.04


def test_first_visible_text_comes_after_held_back_text(tiny, prompt, telemetry):
    """Text that the streamer holds back is not visible yet; the consumer's clock agrees."""
    streamer = TextIteratorStreamer(Letters(), skip_prompt=True)
    seen = {}

    def consume():
        for text in streamer:
            if text.strip():
                seen.setdefault("at", time.perf_counter())

    consumer = threading.Thread(target=consume)
    consumer.start()
    begun, record = generate(tiny, prompt, streamer, n=12)
    consumer.join()
    assert record.first_visible_text_s == pytest.approx(seen["at"] - begun, abs=5e-3)


def test_a_printing_streamer_shows_its_text(tiny, prompt, telemetry, capsys):
    """``TextStreamer``: delivered when handed over, visible when first printed."""

    class Watched(TextStreamer):
        at = None

        def on_finalized_text(self, text, stream_end=False):
            if text.strip() and self.at is None:
                self.at = time.perf_counter()
            super().on_finalized_text(text, stream_end)

    streamer = Watched(Letters(), skip_prompt=True)
    begun, record = generate(tiny, prompt, streamer, n=12)
    assert record.first_visible_text_s == pytest.approx(streamer.at - begun, abs=5e-3)
    assert record.first_delivery_s <= record.first_visible_text_s
    assert capsys.readouterr().out.strip()


def test_the_record_is_there_when_the_consumer_has_the_end(tiny, prompt, telemetry):
    """The consumer may be done before ``generate()`` returns in its thread: that is waited for."""

    class Slow(TextIteratorStreamer):
        def end(self):
            super().end()
            time.sleep(0.1)

    streamer = Slow(Letters(), skip_prompt=True)
    arguments = {"max_new_tokens": 3, "streamer": streamer}
    thread = threading.Thread(target=tiny.generate, args=(prompt,), kwargs=arguments)
    with llmtrace.capture() as records:
        thread.start()
        list(streamer)
    assert [r.output_tokens for r in records] == [3]
    thread.join()


def test_async_consumer(tiny, prompt, telemetry):
    """``AsyncTextIteratorStreamer``: the event loop's side is seen as well."""

    async def serve():
        streamer = AsyncTextIteratorStreamer(Letters(), skip_prompt=True)
        begun = time.perf_counter()
        work = asyncio.get_running_loop().run_in_executor(
            None,
            lambda: tiny.generate(prompt, max_new_tokens=12, do_sample=False, streamer=streamer),
        )
        first = None
        async for text in streamer:
            if first is None and text.strip():
                first = time.perf_counter() - begun
        await work
        return first

    with llmtrace.capture() as records:
        first = asyncio.run(serve())
    (record,) = records
    assert record.first_visible_text_s == pytest.approx(first, abs=1e-2)
    assert record.first_delivery_s is not None


class Handover:
    """A queue that says nothing of its size."""

    def __init__(self):
        self._queue = asyncio.Queue()
        self.put_nowait, self.get = self._queue.put_nowait, self._queue.get


def test_an_async_streamer_with_a_queue_of_its_own(tiny, prompt, telemetry):
    """The reader gets its text; what the queue does not say is not known."""

    async def read():
        streamer = AsyncTextIteratorStreamer(Letters(), skip_prompt=True)
        streamer.text_queue = Handover()
        options = {"max_new_tokens": 6, "do_sample": False, "streamer": streamer}
        task = asyncio.create_task(asyncio.to_thread(tiny.generate, prompt, **options))
        texts = [text async for text in streamer]
        await task
        return texts

    with llmtrace.capture() as records:
        texts = asyncio.run(read())
    assert "".join(texts).strip()
    (record,) = records
    assert record.first_delivery_s > 0
    assert record.findings == ()


def test_a_streamer_used_again(tiny, prompt, telemetry, capsys):
    """A second request with the same streamer has its own times."""
    streamer = TextStreamer(Letters(), skip_prompt=True)
    for _ in range(2):
        _, record = generate(tiny, prompt, streamer)
        assert len([s for s in record.steps if s.put_s is not None]) == 6
        assert record.first_delivery_s >= record.ttft_s


def test_a_streamer_that_raises(tiny, prompt, telemetry):
    """Its own exception comes out; the tokens before it are counted."""

    class Broken(Own):
        def put(self, value):
            super().put(value)
            if len(self.puts) == 4:
                raise RuntimeError("the socket is gone")

    streamer = Broken()
    with llmtrace.capture() as records, pytest.raises(RuntimeError, match="socket"):
        tiny.generate(prompt, max_new_tokens=9, streamer=streamer)
    (record,) = records
    assert record.error == "RuntimeError"
    assert record.output_tokens == 3


def test_a_streamer_as_the_eighth_argument(tiny, prompt, telemetry):
    """Given by position it is watched all the same."""
    streamer = Own()
    with llmtrace.capture() as records:
        config = GenerationConfig(max_new_tokens=4)
        tiny.generate(prompt, config, None, None, None, None, None, streamer)
    assert records[0].steps[0].put_s is not None
    assert len(streamer.puts) == records[0].output_tokens + 1


def test_beams_still_refuse_a_streamer(tiny, prompt, telemetry):
    """transformers' own refusal comes out, and nothing is injected where none was given."""
    with pytest.raises(ValueError, match="streamer"):
        tiny.generate(prompt, max_new_tokens=2, num_beams=2, streamer=Own())
    tiny.generate(prompt, max_new_tokens=2, num_beams=2)

"""``request()``, ``capture()`` and ``subscribe()``."""

import asyncio
import statistics
import threading
import time
from itertools import pairwise

import pytest
import torch
from opentelemetry import context as otel_context
from transformers.generation.stopping_criteria import MaxLengthCriteria, StoppingCriteriaList

import llmtrace
from llmtrace.recording.active import active


def greedy_loop(model, ids, n, mark=lambda: None):
    """Return *n* tokens of a hand-written greedy loop, and its own stopwatch's readings."""
    out, cache, times = [], None, []
    with torch.no_grad():
        current = ids
        for _ in range(n):
            result = model(current, cache=cache, use_cache=True)
            cache = result.cache
            current = result.logits[:, -1:].argmax(-1)
            out.append(int(current[0, 0]))
            times.append(time.perf_counter())
            mark()
    return out, times


def test_an_own_loop_with_one_added_line(tiny, prompt, telemetry):
    """A custom greedy loop is one request of 1 prefill and N-1 decode steps."""
    greedy_loop(tiny, prompt, 3)
    with llmtrace.capture() as records:
        begun = time.perf_counter()
        with llmtrace.request():
            tokens, times = greedy_loop(tiny, prompt, 6)
    (record,) = records
    assert tokens == tiny.generate(prompt, max_new_tokens=6, do_sample=False)[0, 5:].tolist()
    assert [s.phase for s in record.steps] == ["prefill"] + ["decode"] * 5
    assert record.output_tokens == 6
    assert record.input_tokens == 5
    assert record.strategy == "custom"
    assert record.model == "llama"
    own = [b - a for a, b in pairwise([begun, *times])]
    off = [abs(a - b) for a, b in zip(own, [record.ttft_s, *record.itl_s], strict=True)]
    assert statistics.median(off) < 2e-3  # in between, others may have the processor
    assert [f.code for f in record.findings] == ["tokens_from_forwards"]
    request = next(s for s in telemetry.requests() if s.attributes["llmtrace.strategy"] == "custom")
    assert request.name == "text_completion llama"
    assert len(telemetry.children(request, "decode")) == 5
    assert len(telemetry.children(request, "prefill")) == 1


def test_marked_tokens(tiny, prompt, telemetry):
    """With ``token()`` times are those of the selection, and chunks are one prefill."""
    with llmtrace.capture() as records, llmtrace.request(tiny) as request, torch.no_grad():
        first = tiny(prompt[:, :3], use_cache=True)
        second = tiny(prompt[:, 3:], cache=first.cache, use_cache=True)
        token = second.logits[:, -1:].argmax(-1)
        time.sleep(0.02)
        request.token()
        tiny(token, cache=second.cache, use_cache=True)
        request.token()
    (record,) = records
    assert [s.forwards for s in record.steps] == [2, 1]
    assert record.output_tokens == 2
    assert record.ttft_s > record.prefill_s + 0.02
    assert record.findings == ()


def test_a_one_token_prompt_has_a_prefill(tiny, telemetry):
    """Prefill and decode are told apart by order and cache, not by the input's length."""
    with llmtrace.capture() as records, llmtrace.request():
        greedy_loop(tiny, torch.tensor([[1]]), 3)
    assert [s.phase for s in records[0].steps] == ["prefill", "decode", "decode"]


def test_around_generate_ttft_counts_from_the_block(tiny, prompt, telemetry):
    """One request, ``generate()``'s own; the block's span is around it and is no request."""
    with llmtrace.capture() as records, llmtrace.request(name="chat turn", attributes={"user": 7}):
        time.sleep(0.03)
        tiny.generate(prompt, max_new_tokens=3)
    (record,) = records
    assert record.queue_s >= 0.03
    assert record.ttft_from_request_s == pytest.approx(record.queue_s + record.ttft_s, abs=1e-4)
    (request,) = telemetry.requests()
    assert request.attributes["user"] == 7
    (block,) = telemetry.spans("chat turn")
    assert request.parent.span_id == block.context.span_id
    assert not [n for n in block.attributes if n.startswith("gen_ai.")]
    active = telemetry.metrics()["llmtrace.requests.active"]
    assert all(p.value == 0 for p in active.data.data_points)


def test_a_block_that_fails(tiny, prompt, telemetry):
    """The error passes through; what was generated counts."""
    with llmtrace.capture() as records, pytest.raises(LookupError), llmtrace.request():
        greedy_loop(tiny, prompt, 2)
        raise LookupError
    assert records[0].error == "LookupError"
    assert records[0].output_tokens == 2


def test_bare_forwards_are_no_request(tiny, prompt, telemetry):
    """Training steps and plain calls emit nothing."""
    optimizer = torch.optim.SGD(tiny.parameters(), lr=0.01)
    for _ in range(20):
        tiny(prompt, labels=prompt).loss.backward()
        optimizer.step()
    assert telemetry.spans() == []
    assert telemetry.metrics() == {}


def test_blocks_in_tasks_do_not_mix(tiny, prompt, telemetry):
    """Two asyncio tasks that take turns inside their blocks keep their own steps."""

    async def task(n):
        with llmtrace.request(attributes={"n": n}) as request:
            for _ in range(n):
                tiny(prompt)
                request.token()
                await asyncio.sleep(0)

    async def both():
        await asyncio.gather(task(3), task(5))

    with llmtrace.capture() as records:
        asyncio.run(both())
    assert sorted((r.attributes["n"], len(r.steps)) for r in records) == [(3, 3), (5, 5)]


def test_a_block_in_a_closed_generator(tiny, prompt, telemetry):
    """A generator closed in another context ends its request once and leaves nothing behind."""

    def stream():
        with llmtrace.request():
            yield from greedy_loop(tiny, prompt, 3)[0]

    with llmtrace.capture() as records:
        made = stream()
        threading.Thread(target=lambda: next(made)).start()
        time.sleep(0.1)
        made.close()
        tiny.generate(prompt, max_new_tokens=2)
    assert [(r.strategy, r.error, r.output_tokens) for r in records] == [
        ("custom", None, 3),
        ("greedy", None, 2),
    ]


def test_capture_collects_from_every_thread(tiny, prompt):
    """Requests of other threads are there when the block has ended; later ones are not."""
    with llmtrace.capture() as records:
        threads = [
            threading.Thread(target=tiny.generate, args=(prompt,), kwargs={"max_new_tokens": n})
            for n in (2, 3, 4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    tiny.generate(prompt, max_new_tokens=5)
    assert sorted(r.output_tokens for r in records) == [2, 3, 4]


def test_capture_needs_no_provider(tiny, prompt):
    """Merely imported, records are to be had without any telemetry set up."""
    with llmtrace.capture() as records:
        tiny.generate(prompt, max_new_tokens=2)
    assert records[0].trace_id is None
    assert records[0].output_tokens == 2


def test_subscribers_get_each_record_in_another_thread(tiny, prompt, telemetry):
    """A subscriber is called off the request's thread, until it unsubscribes."""
    seen = []
    unsubscribe = llmtrace.subscribe(lambda r: seen.append((r, threading.current_thread())))
    tiny.generate(prompt, max_new_tokens=2)
    telemetry.handle.flush()
    unsubscribe()
    tiny.generate(prompt, max_new_tokens=2)
    telemetry.handle.flush()
    ((record, thread),) = seen
    assert record.output_tokens == 2
    assert f"{telemetry.requests()[0].context.trace_id:032x}" == record.trace_id
    assert thread is not threading.main_thread()


@pytest.mark.usefixtures("provokes_internal_errors")
def test_a_failing_subscriber_does_no_harm(tiny, prompt, telemetry):
    """Its error stays inside; spans and the answer are as always."""
    unsubscribe = llmtrace.subscribe(lambda _: 1 / 0)
    out = tiny.generate(prompt, max_new_tokens=2)
    assert out.shape == (1, 7)
    assert len(telemetry.requests()) == 1
    unsubscribe()


def test_interleaved_blocks_leave_nothing_behind(tiny, prompt, telemetry):
    """Two blocks that take turns in one thread say so; what comes after them is clean."""

    def loop(name):
        with llmtrace.request(name=name) as request:
            for _ in range(3):
                tiny(prompt)
                request.token()
                yield

    with llmtrace.capture() as records:
        first, second = loop("first"), loop("second")
        for made in (first, second, first, second, first, second):
            next(made)
        first.close()
        second.close()
        tiny.generate(prompt, max_new_tokens=2)
    assert [r.output_tokens for r in records] == [3, 3, 2]
    assert "interleaved_blocks" in [f.code for f in records[0].findings]
    assert telemetry.requests()[-1].parent is None
    assert active.get() is None
    assert otel_context.get_current() == {}


def test_a_block_closed_in_another_thread_stops_recording(tiny, prompt):
    """Its recorder may stay where it was opened, but takes nothing more and holds no model."""
    block = llmtrace.request()
    with llmtrace.capture() as records:
        block.__enter__()
        tiny(prompt)
        thread = threading.Thread(target=block.__exit__, args=(None, None, None))
        thread.start()
        thread.join()
        tiny(prompt)
        assert len(active.get().forward_ends) == 1
        tiny.generate(prompt, max_new_tokens=2)
    assert [r.output_tokens for r in records] == [1, 2]
    assert active.get() is None


def test_a_block_inside_itself(tiny, prompt):
    """One object entered twice is two blocks."""
    block = llmtrace.request()
    with llmtrace.capture() as records, block:
        tiny(prompt)
        with block:
            tiny(prompt)
            block.token()
        tiny(prompt)
        block.token(2)
    assert [r.output_tokens for r in records] == [1, 2]
    assert active.get() is None


def test_a_loop_that_asks_criteria_too(tiny, prompt):
    """transformers' own stopping criteria in an own loop mark no token a second time."""
    criteria = StoppingCriteriaList([MaxLengthCriteria(20)])
    with llmtrace.capture() as records, llmtrace.request() as request:
        for _ in range(3):
            tiny(prompt)
            criteria(prompt, None)
            request.token()
    assert [s.forwards for s in records[0].steps] == [1, 1, 1]


def test_token_takes_whole_numbers(tiny, prompt):
    """A tensor or numpy number will do; anything else is refused at once; 0 is no token."""
    with llmtrace.capture() as records, llmtrace.request() as request:
        tiny(prompt)
        request.token(torch.tensor(2))
        for wrong, error in (
            ("x", TypeError),
            (2.5, TypeError),
            (None, TypeError),
            (-1, ValueError),
        ):
            with pytest.raises(error):
                request.token(wrong)
    assert type(records[0].output_tokens) is int
    assert records[0].output_tokens == 2
    with llmtrace.capture() as records, llmtrace.request() as request:
        tiny(prompt)
        request.token(0)
    assert records[0].ttft_s is None

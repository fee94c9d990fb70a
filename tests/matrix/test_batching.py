"""Continuous batching: many requests in one loop, in a thread of its own.

Before 5.3 a release asks a GPU how much memory is free, and has no answer without one. Here the
test answers; all else is as it is, on the CPU.
"""

import importlib

import pytest
import torch
import transformers
from harness import VERSION, check_times, not_here, remark, tiny_llama, traced

import llmtrace

PROMPTS = [[5, 6, 7], [8, 9, 10, 11], list(range(3, 60))]
STOP = -1  # none
WAIT_S = 60


def cell(mode):
    return pytest.mark.cell(mode)


@pytest.fixture
def packed(monkeypatch, request):
    """A model for continuous batching."""
    if VERSION < (4, 53):
        not_here("continuous batching came with 4.53")
    model = tiny_llama()
    model.generation_config.eos_token_id = STOP
    answer_for_memory(monkeypatch, request)
    return model


def answer_for_memory(monkeypatch, request):
    """Say how much memory is free, where the release can only ask a GPU."""
    if (4, 56) <= VERSION < (5, 3) and not torch.cuda.is_available():
        cache = importlib.import_module("transformers.generation.continuous_batching.cache")
        monkeypatch.setattr(
            cache.PagedAttentionMemoryHandler,
            "get_available_memory",
            lambda *_args, **_kwargs: 1 << 28,
        )
        remark(request, "on the CPU with the amount of free memory given to it: it asks a GPU")


def attention(model):
    """Set the attention anew: a manager may have left another."""
    model.config._attn_implementation = "sdpa_paged" if VERSION < (5, 0) else "sdpa"


def generation(**changes):
    config = transformers.GenerationConfig(
        **{"max_new_tokens": 6, "do_sample": False, "eos_token_id": STOP, "pad_token_id": 0}
        | changes
    )
    if VERSION < (5, 3):
        config.use_cuda_graph = False
        for name, value in cache_size().items():
            setattr(config, name, value)
    return config


def cache_size(blocks=16):
    return {"num_blocks": blocks, "block_size": 32, "max_batch_tokens": 32}


def cache_config(blocks=16):
    """Return what keeps the paged cache from taking most of the memory."""
    if VERSION < (5, 3):
        return {}
    kind = transformers.generation.configuration_utils.ContinuousBatchingConfig
    return {"continuous_batching_config": kind(**cache_size(blocks))}


def managed(model, config, work):
    """Have *work* done with a manager, and return what it returns."""
    attention(model)
    manager = model.init_continuous_batching(
        generation_config=config,
        **({} if VERSION >= (4, 58) else {"streaming": True}),
        **cache_config(),
    )
    try:
        return work(manager)
    finally:
        if manager.is_running():
            manager.stop(block=True, timeout=WAIT_S)


def results(manager, count):
    """Return the last outputs of *count* requests, by id."""
    got = {}
    while len([o for o in got.values() if finished(o)]) < count:
        output = manager.get_result(timeout=WAIT_S)
        assert output is not None
        got[output.request_id] = output
    return got


def finished(output):
    return output.status.name in {"FINISHED", "FAILED"}


def by_id(seen):
    return {record.attributes["llmtrace.batch.request_id"]: record for record in seen.records}


def check_record(record, output, prompt):
    assert record.strategy == "continuous"
    assert record.error is None
    assert record.input_tokens == len(prompt)
    assert record.output_tokens == len(output.generated_tokens)
    assert record.finish_reasons == ("length",)
    assert 0 < record.queue_s < record.ttft_s
    assert record.ttft_from_admission_s == pytest.approx(record.ttft_s - record.queue_s)
    assert record.preemptions == 0
    check_times(record, record.output_tokens)


@cell("continuous batching (generate_batch)")
def test_generate_batch(packed):
    """A request each, under the span of who called; a long prompt's chunks are one prefill."""

    def call():
        attention(packed)
        outputs = packed.generate_batch(PROMPTS, generation_config=generation(), **cache_config())
        return list(outputs.values())

    llmtrace.uninstrument()
    without = [output.generated_tokens for output in call()]
    seen = traced(call)
    assert seen.error is None, seen.error
    assert [output.generated_tokens for output in seen.result] == without
    records = by_id(seen)
    assert len(records) == 3
    for output in seen.result:
        record = records[output.request_id]
        check_record(record, output, output.prompt_ids)
        chunks = {2, 3} if record.input_tokens == 57 else {1}
        assert record.steps[0].forwards in chunks
    names = seen.names()
    assert (names["prefill"], names["first_token"], names["decode"]) == (3, 3, 15)
    steps = [span for span in seen.spans if span.name == "batch_step"]
    assert sum(s.attributes["llmtrace.batch.prefill_tokens"] for s in steps) == 64
    # Before 5.3 a request that ends by length is run once more, for nothing.
    surplus = 3 if VERSION < (5, 3) else 0
    assert sum(s.attributes["llmtrace.batch.decode_tokens"] for s in steps) == 15 + surplus


@cell("continuous batching (manager, streamed)")
def test_streamed(packed):
    """Outputs come one by one; the first that is taken is the delivery."""

    def call():
        def work(manager):
            manager.start()
            new = {"streaming": True} if VERSION >= (4, 58) else {}
            key = manager.add_request(PROMPTS[0], **new)
            got = results(manager, 1)
            return got[key]

        return managed(packed, generation(), work)

    seen = traced(call)
    assert seen.error is None, seen.error
    check_record(seen.record, seen.result, PROMPTS[0])
    assert seen.record.parameters.stream
    assert seen.record.first_delivery_s > seen.record.ttft_s


@cell("continuous batching (cancelled)")
def test_cancelled(packed):
    """One is given up before it is admitted: no error, no token."""
    if VERSION < (4, 57):
        not_here("requests can be cancelled since 4.57")
    keys = []

    def call():
        def work(manager):
            keys[:] = [manager.add_request(prompt) for prompt in PROMPTS[:2]]
            if VERSION < (5, 9):  # it must have been seen by the loop
                wait_for_first_step(manager, keys[0])
            else:
                manager.cancel_request(keys[0])
                manager.start()
            return results(manager, 1)

        return managed(packed, generation(max_new_tokens=60), work)

    seen = traced(call)
    assert seen.error is None, seen.error
    record = by_id(seen)[keys[0]]
    assert record.finish_reasons == ("cancelled",)
    assert record.error is None
    assert record.output_tokens < 60
    assert len(record.itl_s) == max(record.output_tokens - 1, 0)
    assert by_id(seen)[keys[1]].output_tokens == 60


def wait_for_first_step(manager, key):
    """Start *manager*, and cancel *key* from inside its loop, once that has begun."""
    step = manager.model.forward

    def forward(*args, **kwargs):
        manager.model.forward = step
        manager.cancel_request(key)
        return step(*args, **kwargs)

    manager.model.forward = forward
    manager.start()


@cell("continuous batching (loop fails)")
def test_the_loop_fails(packed):
    """Every request ends with the error, and what it had got."""

    def call():
        forward, calls = packed.forward, []

        def failing(*args, **kwargs):
            calls.append(1)
            if len(calls) > 3:
                raise ZeroDivisionError
            return forward(*args, **kwargs)

        def work(manager):
            packed.forward = failing
            for prompt in PROMPTS[:2]:
                manager.add_request(prompt)
            manager.start()
            manager._generation_thread.join(WAIT_S)

        try:
            return managed(packed, generation(), work)
        finally:
            packed.forward = forward

    seen = traced(call)
    assert seen.error is None, seen.error
    assert [(r.error, r.output_tokens) for r in seen.records] == [("ZeroDivisionError", 3)] * 2
    assert all(len(r.itl_s) == 2 for r in seen.records)


@cell("continuous batching (put back into the queue)")
def test_put_back(packed):
    """The cache is too small for all: nothing that was generated is lost."""
    if VERSION < (5, 0):
        not_here("requests are put back into the queue since 5.0")
    prompts = [[5 + i, *range(3, 32)] for i in range(3)]

    def call():
        attention(packed)
        config = generation(max_new_tokens=40)
        config.num_blocks = 4
        outputs = packed.generate_batch(prompts, generation_config=config, **cache_config(4))
        return list(outputs.values())

    llmtrace.uninstrument()
    without = [output.generated_tokens for output in call()]
    seen = traced(call)
    assert seen.error is None, seen.error
    assert [output.generated_tokens for output in seen.result] == without
    assert sum(record.preemptions for record in seen.records) > 0
    for output in seen.result:
        record = by_id(seen)[output.request_id]
        assert record.output_tokens == len(output.generated_tokens) == 40
        assert record.input_tokens == 30
        check_times(record, 40)
        assert any(f.code == "preempted" for f in record.findings) == (record.preemptions > 0)


@cell('continuous batching (cache_implementation="paged")')
def test_paged_generate(packed):
    """Each row is a request; the call is what they have in common."""
    if VERSION < (5, 0):
        not_here("paged generate() came with 5.0")
    prompt = torch.tensor([[5, 6, 7], [8, 9, 10]])

    def call():
        attention(packed)
        size = cache_config()
        return packed.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            cache_implementation="paged",
            **({"max_new_tokens": 4, "do_sample": False} if size else {}),
            **(size or {"generation_config": generation(max_new_tokens=4)}),
        )

    seen = traced(call)
    assert seen.error is None, seen.error
    assert [(r.input_tokens, r.output_tokens) for r in seen.records] == [(3, 4)] * 2
    (group,) = [span for span in seen.spans if span.name == "llmtrace.request"]
    assert {span.parent.span_id for span in seen.requests()} == {group.context.span_id}

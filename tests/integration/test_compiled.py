"""Compiled models: nothing of ours in the graph, every step seen."""

import pytest
import torch
from transformers import CompileConfig, GenerationConfig

import llmtrace
from llmtrace.session import session

STEPS = 6


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """Each test compiles anew and counts from nothing."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def counted(run):
    """Return what *run* returns, and what dynamo did meanwhile; a recompilation is a graph more."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    result = run()
    counters = torch._dynamo.utils.counters
    return result, {
        "graphs": counters["stats"]["unique_graphs"],
        "breaks": sum(counters["graph_break"].values()),
        "frames": counters["frames"]["ok"],
    }


class Counter:
    """An independent count of what really ran, inside the compiled region's caller."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        return scores


def static_compiled(model, prompt):
    compile_config = CompileConfig(backend="eager", fullgraph=True, mode=None)
    compile_config._compile_all_devices = True
    config = GenerationConfig(
        max_new_tokens=STEPS,
        do_sample=False,
        cache_implementation="static",
        compile_config=compile_config,
    )
    counter = Counter()
    out = model.generate(prompt, config, logits_processor=[counter])
    assert counter.calls == STEPS
    return out


def forward_compiled(model, prompt):
    model.forward = torch.compile(model.forward, backend="eager", fullgraph=True)
    try:
        return model.generate(prompt, max_new_tokens=STEPS, do_sample=False)
    finally:
        del model.forward


def module_compiled(model, prompt):
    model.compile(backend="eager")
    try:
        return model.generate(prompt, max_new_tokens=STEPS, do_sample=False)
    finally:
        model._compiled_call_impl = None


def wrapper_compiled(model, prompt):
    compiled = torch.compile(model, backend="eager")
    return compiled.generate(prompt, max_new_tokens=STEPS, do_sample=False)


@pytest.mark.parametrize(
    "how", [static_compiled, forward_compiled, module_compiled, wrapper_compiled]
)
def test_the_graph_is_the_same_and_every_step_is_seen(tiny, prompt, how):
    """As many graphs, breaks and frames as without llmtrace; the same ids; N steps."""
    llmtrace.uninstrument()
    ids, without = counted(lambda: how(tiny, prompt))
    session().arm()
    with llmtrace.capture() as records:
        traced, with_us = counted(lambda: how(tiny, prompt))
    assert torch.equal(ids, traced)
    assert with_us == without
    (record,) = records
    assert len(record.steps) == STEPS
    assert all(step.host_duration_s is not None for step in record.steps)


def test_a_compiled_request_says_so(tiny, prompt):
    """``compiled`` is set, and the request that paid for compilation is cold."""
    with llmtrace.capture() as records:
        for _ in range(2):
            static_compiled(tiny, prompt)
    first, second = records
    assert first.compiled
    assert first.cold_reasons == ("first_request", "compilation")
    assert second.compiled
    assert not second.cold


def test_a_compiled_call_in_an_own_loop(tiny, prompt):
    """``fullgraph=True`` works inside ``request()``; its forwards are seen, marked or not."""
    compiled = torch.compile(tiny, backend="eager", fullgraph=True)
    for given in (compiled, None):
        with torch.no_grad(), llmtrace.capture() as records, llmtrace.request(given):
            for _ in range(3):
                compiled(prompt, use_cache=False)
        (record,) = records
        assert record.output_tokens == 3
        assert record.input_tokens == 5
        assert [s.forwards for s in record.steps] == [1, 1, 1]
        assert record.prefill_s > 0


@pytest.mark.parametrize(
    "how", [static_compiled, forward_compiled, module_compiled, wrapper_compiled]
)
def test_compiled_before_we_were_turned_on(tiny, prompt, how):
    """A model that was compiled and used before is traced from then on, with the same ids."""
    session().arming.disarm()
    plain = how(tiny, prompt)
    session().arm()
    with llmtrace.capture() as records:
        traced = how(tiny, prompt)
    assert torch.equal(plain, traced)
    assert [len(r.steps) for r in records] == [STEPS]

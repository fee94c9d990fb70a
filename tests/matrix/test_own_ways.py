"""Loops that users bring along, and several processes."""

import textwrap

import pytest
import torch
import transformers
from harness import VERSION, check, not_here, observe, tiny_llama, traced


def cell(mode):
    return pytest.mark.cell(mode)


def own_loop(model, input_ids, logits_processor, stopping_criteria, extra=0, **kwargs):
    """Decode greedily, as a user's decoding method does."""
    assert extra in {0, 3}
    done = torch.zeros(input_ids.shape[0], dtype=torch.bool)
    while not done.all():
        scores = logits_processor(input_ids, model(input_ids=input_ids).logits[:, -1])
        input_ids = torch.cat([input_ids, scores.argmax(-1, keepdim=True)], dim=1)
        done = done | stopping_criteria(input_ids, None)
    return input_ids


@cell("custom_generate, a function")
def test_custom_generate_function(tiny, prompt):
    """The function gets its own arguments; what it decodes are the request's steps."""
    if VERSION < (4, 56):
        not_here("custom_generate takes a function since 4.56")
    seen = observe(
        tiny,
        lambda: tiny.generate(
            prompt, custom_generate=own_loop, extra=3, max_new_tokens=5, do_sample=False
        ),
    )
    check(seen, rows=[5], inputs=[5], strategy="custom")


REPOSITORY = """
import torch
from transformers import GenerationMixin

def through_transformers(model, **kwargs):
    kwargs.pop("custom_generate", None)
    return GenerationMixin.generate(model, **kwargs)

def through_a_function(model, **kwargs):
    from transformers import GenerationMixin

    def loop(model, input_ids, logits_processor, stopping_criteria, **kwargs):
        done = False
        while not done:
            scores = logits_processor(input_ids, model(input_ids=input_ids).logits[:, -1])
            input_ids = torch.cat([input_ids, scores.argmax(-1, keepdim=True)], dim=1)
            done = bool(stopping_criteria(input_ids, None).all())
        return input_ids

    kwargs["custom_generate"] = loop
    return GenerationMixin.generate(model, **kwargs)

def alone(model, inputs=None, input_ids=None, max_new_tokens=5, **kwargs):
    ids = inputs if input_ids is None else input_ids
    for _ in range(max_new_tokens):
        logits = model(input_ids=ids).logits[:, -1]
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)
    return ids

generate = {chosen}
"""


@pytest.fixture(params=["through_transformers", "through_a_function", "alone"])
def repository(request, tmp_path, monkeypatch):
    """A model on disk that brings a ``generate()`` along, and how that decodes."""
    if VERSION < (4, 52):
        not_here("repositories bring a generate() along since 4.52")
    if VERSION < (4, 56) and request.param == "through_a_function":
        not_here("custom_generate takes a function since 4.56")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "m"))
    folder = tmp_path / f"repo_{request.param}"
    tiny_llama().save_pretrained(folder)
    code = textwrap.dedent(REPOSITORY).replace("{chosen}", request.param)
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(code)
    return folder, request.param


def check_repository(seen, how):
    """A loop without stopping criteria is counted by its forwards, and the record says so."""
    record = seen.record
    assert record.output_tokens_per_row == (5,)
    assert record.input_tokens == 5
    assert len(record.steps) == seen.forwards == 5
    # Through transformers' own loop the strategy is known.
    assert record.strategy == "custom" or (record.strategy, how[0]) == ("greedy", "t")
    codes = {finding.code for finding in record.findings}
    assert ("tokens_from_forwards" in codes) == (how == "alone")
    assert len(seen.requests()) == 1
    assert seen.names()["prefill"] == 1
    assert len(record.itl_s) == 4


@cell("custom_generate, a repository")
def test_custom_generate_repository(tiny, prompt, repository):
    folder, how = repository
    seen = observe(
        tiny,
        lambda: tiny.generate(
            prompt,
            custom_generate=str(folder),
            trust_remote_code=True,
            max_new_tokens=5,
            do_sample=False,
        ),
    )
    check_repository(seen, how)


@cell("generate() of the instance")
def test_instance_level_generate(prompt, repository):
    """``from_pretrained`` puts the repository's function on the model itself."""
    folder, how = repository

    def load():
        model = transformers.LlamaForCausalLM.from_pretrained(folder, trust_remote_code=True)
        assert "generate" in vars(model)
        model.generation_config.eos_token_id = None
        return model.eval()

    import llmtrace

    llmtrace.uninstrument()
    model = load()
    expected = model.generate(inputs=prompt, max_new_tokens=5, do_sample=False)

    def call():
        model = load()
        return model.generate(inputs=prompt, max_new_tokens=5, do_sample=False)

    seen = traced(call)
    assert seen.error is None, seen.error
    assert torch.equal(seen.result, expected)
    seen.forwards = 5
    check_repository(seen, how)


@cell("synced_gpus")
def test_idle_forwards_for_a_slower_peer(tiny, prompt, monkeypatch, tmp_path):
    """The other process needs two steps more: two forwards that make no tokens."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    slower = []

    def all_reduce(tensor, *args, **kwargs):
        if float(tensor) == 0 and slower:
            slower.pop()
            tensor += 1

    def call():
        slower[:] = [1, 1]
        return tiny.generate(prompt, max_new_tokens=4, do_sample=False, synced_gpus=True)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    try:
        seen = observe(tiny, call)
    finally:
        dist.destroy_process_group()
    assert seen.forwards == 6
    check(seen, rows=[4], inputs=[5], strategy="greedy", idle=2)

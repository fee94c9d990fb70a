"""KV caches of every kind, and prefill in chunks."""

import importlib.util

import pytest
import torch
import transformers
from harness import PAD, VERSION, check, not_here, observe, tiny_llama

CACHE = "cache" if VERSION >= (5, 24) else "past_key_values"


def cell(mode):
    return pytest.mark.cell(mode)


def implementation(name):
    """Return whether this version knows a ``cache_implementation``."""
    from transformers.generation import configuration_utils, utils

    known = set()
    for module in (configuration_utils, utils):
        for table in (
            "ALL_CACHE_IMPLEMENTATIONS",
            "NEEDS_CACHE_CONFIG",
            "NEED_SETUP_CACHE_CLASSES_MAPPING",
        ):
            known |= set(getattr(module, table, ()))
    return name in known or (name == "offloaded" and VERSION[:2] == (4, 44))


@cell("use_cache=False")
def test_without_a_cache(tiny, prompt):
    seen = observe(
        tiny, lambda: tiny.generate(prompt, max_new_tokens=5, use_cache=False, do_sample=False)
    )
    check(seen, rows=[5], inputs=[5], strategy="greedy")
    assert seen.forwards == 5


def two_turns(model, first, cache, name=CACHE, held=None):
    """Generate, add two tokens to all that there is, generate again with the same cache."""
    arguments = {"max_new_tokens": 4, "do_sample": False}
    ids = model.generate(first, **{name: cache}, **arguments)
    if held is not None:
        held.append(int(cache.get_seq_length()))
    more = torch.cat([ids, torch.full((len(ids), 2), 11)], dim=1)
    return model.generate(more, **{name: cache}, **arguments)


@cell("cache over two turns")
@pytest.mark.parametrize("name", sorted({CACHE, "past_key_values"}))
def test_a_cache_used_over_two_turns(tiny, prompt, name):
    """After 5 + 4 tokens 8 are cached: the last one was never run."""
    held = []
    seen = observe(tiny, lambda: two_turns(tiny, prompt, transformers.DynamicCache(), name, held))
    assert seen.forwards == 8
    # 4.38 fills a copy: the cache handed in stays empty.
    assert held[1] == (0 if VERSION < (4, 39) else 8)
    first, second = seen.records
    assert [r.output_tokens for r in seen.records] == [4, 4]
    assert [len(r.steps) for r in seen.records] == [4, 4]
    assert first.input_tokens_cached is None
    assert (second.input_tokens, second.input_tokens_cached) == (11, held[1] or None)


@cell("cache over two turns")
def test_a_cache_of_a_batch_over_two_turns(tiny):
    """Two rows, one with two tokens of padding: 8 + 6 cached tokens of 11 + 9."""
    if VERSION < (4, 39):
        not_here("4.38 leaves a cache that is handed in empty")
    batch = torch.tensor([[PAD, PAD, 5, 6, 7], [5, 6, 7, 8, 9]])

    def call():
        cache = transformers.DynamicCache()
        mask = (batch != PAD).long()
        arguments = {"max_new_tokens": 4, "do_sample": False, CACHE: cache}
        ids = tiny.generate(batch, attention_mask=mask, **arguments)
        more = torch.cat([ids, torch.full((2, 2), 11)], dim=1)
        mask = torch.cat([mask, torch.ones(2, 6, dtype=torch.long)], dim=1)
        return tiny.generate(more, attention_mask=mask, **arguments)

    second = observe(tiny, call).records[1]
    assert second.input_tokens_per_row == (9, 11)
    assert second.input_tokens_cached == 14


@cell("legacy cache (tuple) over two turns")
def test_a_legacy_cache_over_two_turns(tiny, prompt):
    """Before 4.42 the cache is a tuple, which comes with the output."""
    if VERSION >= (4, 42):
        not_here("caches are objects since 4.42")

    def call():
        arguments = {"max_new_tokens": 4, "do_sample": False, "return_dict_in_generate": True}
        first = tiny.generate(prompt, **arguments)
        more = torch.cat([first.sequences, torch.tensor([[11, 12]])], dim=1)
        return tiny.generate(more, past_key_values=first.past_key_values, **arguments)

    second = observe(tiny, call).records[1]
    assert (second.input_tokens, second.input_tokens_cached) == (11, 8)


@cell("static cache over two turns")
def test_a_static_cache_over_two_turns(tiny, prompt):
    """On a GPU only the device knows how full it is; on the CPU it can be asked."""
    if VERSION < (4, 39):
        not_here("a static cache of 4.38 is one layer's, and not for callers to hand in")

    def call():
        try:
            cache = transformers.StaticCache(config=tiny.config, max_cache_len=32)
        except TypeError:
            cache = transformers.StaticCache(
                config=tiny.config,
                max_batch_size=1,
                max_cache_len=32,
                device="cpu",
                dtype=torch.float32,
            )
        return two_turns(tiny, prompt, cache)

    seen = observe(tiny, call)
    assert [r.output_tokens for r in seen.records] == [4, 4]
    assert seen.records[1].input_tokens == 11
    assert seen.records[1].input_tokens_cached == 8


@cell("static cache")
def test_static_cache(tiny, prompt):
    if not implementation("static"):
        not_here("no static cache")
    seen = observe(
        tiny,
        lambda: tiny.generate(
            prompt, max_new_tokens=5, cache_implementation="static", do_sample=False
        ),
    )
    check(seen, rows=[5], inputs=[5], strategy="greedy")
    assert seen.record.cache_implementation == "static"


def tiny_mistral(window=8):
    torch.manual_seed(0)
    config = transformers.MistralConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        sliding_window=window,
        pad_token_id=PAD,
    )
    model = transformers.MistralForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = PAD
    return model


@cell("sliding-window cache")
@pytest.mark.parametrize("named", [False, True])
def test_sliding_window_cache(prompt, named):
    if named and not implementation("sliding_window"):
        not_here('no cache_implementation="sliding_window"')
    if named and VERSION == (4, 44):
        not_here("the sliding-window cache of 4.44 fails while it is made, in transformers itself")
    model = tiny_mistral()
    chosen = {"cache_implementation": "sliding_window"} if named else {}
    seen = observe(
        model, lambda: model.generate(prompt, max_new_tokens=6, do_sample=False, **chosen)
    )
    check(seen, rows=[6], inputs=[5], strategy="greedy")


@cell("quantized cache")
def test_quantized_cache(prompt):
    if not implementation("quantized"):
        not_here("quantized caches came with 4.42")
    if importlib.util.find_spec("hqq") is None:
        not_here("hqq, which quantizes, is not installed")
    model = tiny_llama(hidden_size=128)
    options = {
        "backend": "HQQ" if VERSION < (4, 56) else "hqq",
        "nbits": 4,
        "q_group_size": 64,
        "residual_length": 4,
        "axis_key": 1,
        "axis_value": 1,
    }
    seen = observe(
        model,
        lambda: model.generate(
            prompt,
            max_new_tokens=6,
            do_sample=False,
            cache_implementation="quantized",
            cache_config=dict(options),
        ),
    )
    check(seen, rows=[6], inputs=[5], strategy="greedy")
    assert seen.record.cache_implementation == "quantized"


@cell("offloaded cache")
def test_offloaded_cache(tiny, prompt):
    if not implementation("offloaded"):
        not_here("offloaded caches came with 4.43")
    if not torch.cuda.is_available():
        not_here("an offloaded cache needs a GPU")
    tiny.to("cuda")
    prompt = prompt.to("cuda")
    seen = observe(
        tiny,
        lambda: tiny.generate(
            prompt, max_new_tokens=5, cache_implementation="offloaded", do_sample=False
        ),
    )
    check(seen, rows=[5], inputs=[5], strategy="greedy")


@cell("chunked prefill")
@pytest.mark.parametrize("length", [9, 10])
def test_chunked_prefill(tiny, length):
    """Chunks are one prefill, and the prompt's tokens are counted once."""
    if VERSION < (4, 51):
        not_here("prefill_chunk_size came with 4.51")
    prompt = torch.arange(3, 3 + length)[None]

    def call():
        # 5.0 wants to be handed the cache.
        handed = {CACHE: transformers.DynamicCache()} if VERSION[0] == 5 else {}
        return tiny.generate(
            prompt, max_new_tokens=3, prefill_chunk_size=4, do_sample=False, **handed
        )

    seen = observe(tiny, call)
    check(seen, rows=[3], inputs=[length], strategy="greedy")
    chunks = -(-length // 4) if VERSION >= (5, 0) else -(-(length - 1) // 4) + 1
    assert seen.forwards == chunks + 2
    assert seen.record.steps[0].forwards == chunks

"""Decoding strategies and ways of ending, one behaviour each."""

import pytest
import torch
from harness import (
    EOS,
    PAD,
    VERSION,
    Force,
    check,
    not_here,
    observe,
)
from transformers import LogitsProcessor

BATCH = torch.tensor([[PAD, PAD, 5, 6, 7], [5, 6, 7, 8, 9]])
MASK = (BATCH != PAD).long()


def cell(mode):
    return pytest.mark.cell(mode)


@cell("greedy")
def test_greedy(tiny, prompt):
    seen = observe(tiny, lambda: tiny.generate(prompt, max_new_tokens=6, do_sample=False))
    check(seen, rows=[6], inputs=[5], strategy="greedy")
    assert seen.forwards == 6


@cell("greedy")
def test_greedy_batch_with_left_padding(tiny):
    seen = observe(
        tiny,
        lambda: tiny.generate(BATCH, attention_mask=MASK, max_new_tokens=4, do_sample=False),
    )
    check(seen, rows=[4, 4], inputs=[3, 5], padded=10, strategy="greedy")


@cell("sample")
def test_sample(tiny, prompt):
    seen = observe(
        tiny,
        lambda: tiny.generate(
            prompt, max_new_tokens=6, do_sample=True, temperature=0.7, top_p=0.9, top_k=9
        ),
    )
    check(seen, rows=[6], inputs=[5], strategy="sample")
    assert seen.forwards == 6


@cell("one new token")
def test_one_new_token(tiny, prompt):
    seen = observe(tiny, lambda: tiny.generate(prompt, max_new_tokens=1, do_sample=False))
    check(seen, rows=[1], inputs=[5], strategy="greedy")
    assert seen.record.itl_s == []


@cell("one-token prompt")
def test_one_token_prompt(tiny):
    seen = observe(
        tiny, lambda: tiny.generate(torch.tensor([[1]]), max_new_tokens=4, do_sample=False)
    )
    check(seen, rows=[4], inputs=[1], strategy="greedy")


@cell("return sequences, sample")
def test_return_sequences_sample(tiny, prompt):
    seen = observe(
        tiny,
        lambda: tiny.generate(prompt, max_new_tokens=4, do_sample=True, num_return_sequences=3),
    )
    check(seen, rows=[4, 4, 4], inputs=[5], strategy="sample")
    assert seen.forwards == 4


@cell("beam")
@pytest.mark.parametrize("prompts", [1, 2])
def test_beam(tiny, prompt, prompts):
    prompt = prompt.repeat(prompts, 1)
    seen = observe(
        tiny, lambda: tiny.generate(prompt, max_new_tokens=5, num_beams=3, do_sample=False)
    )
    check(seen, rows=[5] * prompts, inputs=[5] * prompts, strategy="beam")
    assert seen.forwards == 5


@cell("beam")
@pytest.mark.parametrize("early", [True, False])
def test_beam_ends_early(tiny, prompt, early):
    """All beams end at their third token: the row has 3, and the search took as many steps."""
    seen = observe(
        tiny,
        lambda: tiny.generate(
            prompt,
            max_new_tokens=8,
            num_beams=2,
            early_stopping=early,
            eos_token_id=EOS,
            do_sample=False,
            logits_processor=[Force(5, 3)],
        ),
    )
    check(seen, rows=[3], inputs=[5], strategy="beam", reasons=["stop"], steps=seen.forwards)


@cell("beam sample")
def test_beam_sample(tiny, prompt):
    seen = observe(
        tiny, lambda: tiny.generate(prompt, max_new_tokens=5, num_beams=2, do_sample=True)
    )
    check(seen, rows=[5], inputs=[5], strategy="beam_sample")


@cell("return sequences, beam")
def test_return_sequences_beam(tiny, prompt):
    seen = observe(
        tiny,
        lambda: tiny.generate(
            prompt, max_new_tokens=5, num_beams=3, num_return_sequences=2, do_sample=False
        ),
    )
    check(seen, rows=[5, 5], inputs=[5], strategy="beam")


@cell("group beam")
def test_group_beam(tiny, prompt):
    if VERSION >= (4, 57):
        not_here("group beam search left transformers in 4.57 for a repository on the Hub")
    seen = observe(
        tiny,
        lambda: tiny.generate(
            prompt,
            max_new_tokens=5,
            num_beams=4,
            num_beam_groups=2,
            diversity_penalty=0.5,
            do_sample=False,
        ),
    )
    check(seen, rows=[5], inputs=[5], strategy="group_beam")
    assert seen.forwards == 5


@cell("constrained beam")
def test_constrained_beam(tiny, prompt):
    if VERSION >= (4, 57):
        not_here("constrained beam search left transformers in 4.57 for a repository on the Hub")
    seen = observe(
        tiny,
        lambda: tiny.generate(
            prompt, max_new_tokens=5, num_beams=3, force_words_ids=[[11]], do_sample=False
        ),
    )
    check(seen, rows=[5], inputs=[5], strategy="constrained_beam", steps=seen.forwards)


@cell("contrastive")
@pytest.mark.parametrize("low_memory", [False, True])
def test_contrastive(tiny, prompt, low_memory):
    if VERSION >= (4, 56):
        not_here("contrastive search left transformers in 4.56 for a repository on the Hub")
    seen = observe(
        tiny,
        lambda: tiny.generate(
            prompt,
            max_new_tokens=5,
            penalty_alpha=0.6,
            top_k=4,
            low_memory=low_memory,
            do_sample=False,
        ),
    )
    check(seen, rows=[5], inputs=[5], strategy="contrastive", steps=5)
    assert seen.forwards > 5


@cell("DoLa")
def test_dola(tiny, prompt):
    if VERSION < (4, 44):
        not_here("DoLa came with 4.43")
    if VERSION >= (4, 56):
        not_here("DoLa left transformers in 4.56 for a repository on the Hub")
    seen = observe(
        tiny,
        lambda: tiny.generate(prompt, max_new_tokens=5, dola_layers=[0], do_sample=False),
    )
    check(seen, rows=[5], inputs=[5], strategy="dola")


@cell("end-of-sequence id")
@pytest.mark.parametrize("pad", [PAD, EOS])
def test_rows_end_at_their_own_stop_token(tiny, pad):
    """Rows of 3 and 7: the stop token counts, padding after it does not, whatever its id."""
    seen = observe(
        tiny,
        lambda: tiny.generate(
            BATCH,
            attention_mask=MASK,
            max_new_tokens=10,
            eos_token_id=EOS,
            pad_token_id=pad,
            do_sample=False,
            logits_processor=[Force(5, 3, 7)],
        ),
    )
    assert seen.result.shape == (2, 12)
    check(seen, rows=[3, 7], inputs=[3, 5], padded=10, strategy="greedy", reasons=["stop", "stop"])


@cell("end-of-sequence id")
def test_first_token_is_the_stop_token(tiny, prompt):
    seen = observe(
        tiny,
        lambda: tiny.generate(
            prompt,
            max_new_tokens=8,
            eos_token_id=EOS,
            do_sample=False,
            logits_processor=[Force(5, 1)],
        ),
    )
    check(seen, rows=[1], inputs=[5], strategy="greedy", reasons=["stop"])


@cell("several end-of-sequence ids")
def test_several_stop_tokens(tiny):
    seen = observe(
        tiny,
        lambda: tiny.generate(
            BATCH,
            attention_mask=MASK,
            max_new_tokens=10,
            eos_token_id=[EOS, 33],
            do_sample=False,
            logits_processor=[Force(5, 4, 6, stop=[33, EOS])],
        ),
    )
    check(seen, rows=[4, 6], inputs=[3, 5], padded=10, strategy="greedy", reasons=["stop", "stop"])


@cell("end-of-sequence id from the model's config")
def test_stop_tokens_of_the_models_own_config(tiny, prompt):
    """The effective config decides: here the model's, with a list of ids."""
    tiny.generation_config.eos_token_id = [EOS, 33]
    seen = observe(
        tiny,
        lambda: tiny.generate(
            prompt, max_new_tokens=10, do_sample=False, logits_processor=[Force(5, 4, stop=33)]
        ),
    )
    check(seen, rows=[4], inputs=[5], strategy="greedy", reasons=["stop"])


class Bias(LogitsProcessor):
    """A user's processor, which counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        return scores + torch.arange(scores.shape[1]) * 0.01


@cell("user's logits processors")
def test_users_logits_processors(tiny, prompt):
    made = []

    def call():
        made.append([Bias(), Bias()])
        return tiny.generate(prompt, max_new_tokens=5, do_sample=False, logits_processor=made[-1])

    seen = observe(tiny, call)
    check(seen, rows=[5], inputs=[5], strategy="greedy")
    assert [[p.calls for p in processors] for processors in made] == [[5, 5], [5, 5]]


@cell("classifier-free guidance")
def test_classifier_free_guidance(tiny, prompt):
    """Guidance runs the model a second time in each step: that is no step."""
    seen = observe(
        tiny,
        lambda: tiny.generate(prompt, max_new_tokens=5, guidance_scale=1.5, do_sample=False),
    )
    check(seen, rows=[5], inputs=[5], strategy="greedy")
    assert seen.forwards == 10


@cell("inputs_embeds only")
def test_inputs_embeds_only(tiny, prompt):
    embeds = tiny.get_input_embeddings()(prompt).detach()
    seen = observe(
        tiny, lambda: tiny.generate(inputs_embeds=embeds, max_new_tokens=5, do_sample=False)
    )
    assert seen.result.shape == (1, 5)
    check(seen, rows=[5], inputs=[5], strategy="greedy")


@cell("return sequences, sample")
def test_return_sequences_of_different_length(tiny, prompt):
    seen = observe(
        tiny,
        lambda: tiny.generate(
            prompt,
            max_new_tokens=9,
            do_sample=True,
            num_return_sequences=3,
            eos_token_id=EOS,
            logits_processor=[Force(5, 2, 4, 9)],
        ),
    )
    check(seen, rows=[2, 4, 9], inputs=[5], strategy="sample", reasons=["stop"] * 3)


@cell("beam")
def test_beams_of_two_prompts_end_apart(tiny, prompt):
    seen = observe(
        tiny,
        lambda: tiny.generate(
            prompt.repeat(2, 1),
            max_new_tokens=9,
            num_beams=2,
            early_stopping=True,
            eos_token_id=EOS,
            do_sample=False,
            logits_processor=[Force(5, 3, 6)],
        ),
    )
    check(
        seen,
        rows=[3, 6],
        inputs=[5, 5],
        strategy="beam",
        reasons=["stop"] * 2,
        steps=seen.forwards,
    )

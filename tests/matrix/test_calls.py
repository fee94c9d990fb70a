"""How ``generate()`` is called: arguments, threads, one inside another."""

import threading
from collections import Counter

import pytest
import torch
from harness import EOS, PAD, VERSION, CountingStreamer, check, observe, tiny_llama, traced
from transformers import GenerationConfig, StoppingCriteria


def cell(mode):
    return pytest.mark.cell(mode)


@cell("ways of calling it")
def test_arguments_by_position(tiny, prompt):
    """A streamer in the eighth place is seen, and still gets its tokens."""
    made = []

    def call():
        config = GenerationConfig(max_new_tokens=4, do_sample=False, pad_token_id=PAD)
        made.append(CountingStreamer())
        return tiny.generate(prompt, config, None, None, None, None, None, made[-1])

    seen = observe(tiny, call)
    check(seen, rows=[4], inputs=[5], strategy="greedy")
    assert [len(streamer.puts) for streamer in made] == [5, 5]
    assert seen.record.first_delivery_s > 0


@cell("ways of calling it")
def test_output_with_scores(tiny, prompt):
    seen = observe(
        tiny,
        lambda: tiny.generate(
            prompt,
            max_new_tokens=4,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
        ),
    )
    check(seen, rows=[4], inputs=[5], strategy="greedy")


@cell("ways of calling it")
def test_max_length_and_a_stop_token_inside_the_prompt(tiny):
    prompt = torch.tensor([[5, EOS, 7, EOS, 9]])
    seen = observe(tiny, lambda: tiny.generate(prompt, max_length=9, do_sample=False))
    check(seen, rows=[4], inputs=[5], strategy="greedy")


@cell("ways of calling it")
def test_ids_and_embeddings(tiny, prompt):
    embeds = tiny.get_input_embeddings()(prompt).detach()
    seen = observe(
        tiny,
        lambda: tiny.generate(prompt, inputs_embeds=embeds, max_new_tokens=4, do_sample=False),
    )
    check(seen, rows=[4], inputs=[5], strategy="greedy")


class Asks(StoppingCriteria):
    """A user's criterion that lets another model generate."""

    def __init__(self, other):
        self.other = other

    def __call__(self, input_ids, scores, **kwargs):
        self.other.generate(input_ids, max_new_tokens=2, do_sample=False)
        return torch.zeros(1, dtype=torch.bool) if VERSION >= (4, 39) else False


@cell("another model's generate() inside the loop")
def test_another_models_tokens_are_not_the_requests(tiny, prompt):
    other = tiny_llama(seed=3)
    seen = observe(
        tiny,
        lambda: tiny.generate(
            prompt, max_new_tokens=4, do_sample=False, stopping_criteria=[Asks(other)]
        ),
    )
    check(seen, rows=[4], inputs=[5], strategy="greedy")


@cell("several threads, one model")
def test_threads(tiny, prompt):
    """Four threads, ten requests each, of 3, 5, 7 and 9 tokens: none gets another's."""

    def work(tokens):
        for _ in range(10):
            tiny.generate(prompt, max_new_tokens=tokens, do_sample=False)

    def call():
        threads = [threading.Thread(target=work, args=(tokens,)) for tokens in (3, 5, 7, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    seen = traced(call)
    assert Counter(r.output_tokens for r in seen.records) == {3: 10, 5: 10, 7: 10, 9: 10}
    assert all(len(r.steps) == r.output_tokens for r in seen.records)
    names = seen.names()
    assert (names["prefill"], names["decode"]) == (40, 10 * (2 + 4 + 6 + 8))

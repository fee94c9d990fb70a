"""What ends a row beside its length and its stop token."""

import time

import pytest
import torch
from harness import EOS, PAD, VERSION, CountingStreamer, Force, check, not_here, observe
from transformers import LogitsProcessor, PreTrainedTokenizerFast, StoppingCriteria

BATCH = torch.tensor([[PAD, PAD, 5, 6, 7], [5, 6, 7, 8, 9]])
MASK = (BATCH != PAD).long()
STOP = 12
"""With the 9 before it, the stop string."""


def cell(mode):
    return pytest.mark.cell(mode)


@pytest.fixture
def tokenizer():
    """A real tokenizer of 64 single characters."""
    from tokenizers import Tokenizer, decoders, models

    characters = ["<pad>", "<s>", "</s>", *(chr(ord("A") + i) for i in range(61))]
    vocabulary = {character: index for index, character in enumerate(characters)}
    inner = Tokenizer(models.BPE(vocabulary, [], unk_token="<s>"))
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def needs_stop_strings():
    if VERSION < (4, 41):
        not_here("stop strings came with 4.41")


@cell("stop strings")
def test_stop_string(tiny, prompt, tokenizer):
    needs_stop_strings()
    stop = "".join(tokenizer.convert_ids_to_tokens([9, STOP]))
    seen = observe(
        tiny,
        lambda: tiny.generate(
            prompt,
            max_new_tokens=9,
            stop_strings=stop,
            tokenizer=tokenizer,
            do_sample=False,
            logits_processor=[Force(5, 4, stop=STOP)],
        ),
    )
    check(seen, rows=[4], inputs=[5], strategy="greedy", reasons=["stop"])
    assert seen.record.parameters.stop_sequences == (stop,)


@cell("stop strings")
@pytest.mark.parametrize("eos", [None, EOS])
def test_stop_string_in_a_batch(tiny, tokenizer, eos):
    """Rows of 3 and 7. Without a stop token, transformers goes on writing into row 0."""
    needs_stop_strings()
    seen = observe(
        tiny,
        lambda: tiny.generate(
            BATCH,
            attention_mask=MASK,
            max_new_tokens=9,
            stop_strings=["".join(tokenizer.convert_ids_to_tokens([9, STOP]))],
            tokenizer=tokenizer,
            eos_token_id=eos,
            do_sample=False,
            logits_processor=[Force(5, 3, 7, stop=STOP)],
        ),
    )
    assert seen.result.shape == (2, 12)
    check(seen, rows=[3, 7], inputs=[3, 5], padded=10, strategy="greedy", reasons=["stop", "stop"])


class Sleep(LogitsProcessor):
    def __init__(self, length, seconds):
        self.length, self.seconds = length, seconds

    def __call__(self, input_ids, scores):
        if input_ids.shape[1] == self.length:
            time.sleep(self.seconds)
        return scores


@cell("max_time")
def test_max_time(tiny, prompt):
    seen = observe(
        tiny,
        lambda: tiny.generate(
            prompt,
            max_new_tokens=9,
            max_time=0.5,
            do_sample=False,
            logits_processor=[Sleep(7, 0.6)],
        ),
    )
    check(seen, rows=[3], inputs=[5], strategy="greedy", reasons=["stop_criteria"])


class StopAt(StoppingCriteria):
    """Stops each row at a length of its own; in 4.38 there is one answer for all."""

    def __init__(self, *lengths):
        self.lengths = lengths
        self.calls = 0

    def __call__(self, input_ids, scores, **kwargs):
        self.calls += 1
        done = [input_ids.shape[1] >= length for length in self.lengths]
        return all(done) if VERSION < (4, 39) else torch.tensor(done)


@cell("user's stopping criteria")
def test_users_criterion(tiny, prompt):
    made = []

    def call():
        made.append([StopAt(8)])
        return tiny.generate(prompt, max_new_tokens=9, do_sample=False, stopping_criteria=made[-1])

    seen = observe(tiny, call)
    check(seen, rows=[3], inputs=[5], strategy="greedy", reasons=["stop_criteria"])
    assert [[c.calls for c in criteria] for criteria in made] == [[3], [3]]


@cell("user's stopping criteria, row by row")
@pytest.mark.parametrize("sampling", [False, True])
@pytest.mark.parametrize("eos", [None, EOS])
def test_users_criterion_row_by_row(tiny, eos, sampling):
    """Rows of 3 and 6; what fills row 0 afterwards is no output, be it padding or not."""
    if VERSION < (4, 39):
        not_here("before 4.39 a criterion ends all rows at once")
    seen = observe(
        tiny,
        lambda: tiny.generate(
            BATCH,
            attention_mask=MASK,
            max_new_tokens=9,
            eos_token_id=eos,
            do_sample=sampling,
            stopping_criteria=[StopAt(8, 11)],
            logits_processor=[Force(5, 99, 99)],
        ),
    )
    assert seen.result.shape == (2, 11)
    check(
        seen,
        rows=[3, 6],
        inputs=[3, 5],
        padded=10,
        strategy="sample" if sampling else "greedy",
        reasons=["stop_criteria"] * 2,
    )


@cell("user's stopping criteria, row by row")
def test_a_row_may_end_by_its_stop_token_and_another_by_a_criterion(tiny):
    if VERSION < (4, 39):
        not_here("before 4.39 a criterion ends all rows at once")
    seen = observe(
        tiny,
        lambda: tiny.generate(
            BATCH,
            attention_mask=MASK,
            max_new_tokens=9,
            eos_token_id=EOS,
            do_sample=False,
            stopping_criteria=[StopAt(99, 11)],
            logits_processor=[Force(5, 2, 99)],
        ),
    )
    check(
        seen,
        rows=[2, 6],
        inputs=[3, 5],
        padded=10,
        strategy="greedy",
        reasons=["stop", "stop_criteria"],
    )


@cell("streamer")
@pytest.mark.parametrize("rows", [1, 2])
def test_streamer(tiny, rows):
    """A streamer of the user's gets the prompt and then each step's tokens."""
    made = []

    def call():
        made.append(CountingStreamer())
        return tiny.generate(
            BATCH[:rows],
            attention_mask=MASK[:rows],
            max_new_tokens=4,
            do_sample=False,
            streamer=made[-1],
        )

    seen = observe(tiny, call)
    inputs = [3, 5][:rows]
    check(seen, rows=[4] * rows, inputs=inputs, padded=5 * rows, strategy="greedy")
    for streamer in made:
        assert streamer.puts == [(rows, 5)] + [(rows,)] * 4
        assert streamer.ends == 1
    assert all(step.put_s is not None for step in seen.record.steps)
    assert seen.record.first_delivery_s > 0

"""Assisted decoding: several tokens a step, and drafts that are not the request's."""

import pytest
import torch
from harness import (
    EOS,
    VERSION,
    CountingStreamer,
    Force,
    Forwards,
    check,
    not_here,
    observe,
    tiny_llama,
)


def cell(mode):
    return pytest.mark.cell(mode)


class Drafts:
    """Counts what the candidate generators of a class propose, on the class itself."""

    def __init__(self, name):
        from transformers.generation import candidate_generator

        self.kind = getattr(candidate_generator, name)
        self.drafted = 0

    def __enter__(self):
        self.original = original = vars(self.kind)["get_candidates"]

        def counted(generator, input_ids, *args, **kwargs):
            found = original(generator, input_ids, *args, **kwargs)
            self.drafted += found[0].shape[1] - input_ids.shape[1]
            return found

        self.kind.get_candidates = counted
        return self

    def __exit__(self, *_):
        self.kind.get_candidates = self.original


def streamed(model, made, prompt, **kwargs):
    made.append(CountingStreamer())
    lookup = "prompt_lookup_num_tokens" in kwargs and VERSION < (5, 17)
    if (lookup or VERSION < (4, 39)) and "eos_token_id" not in kwargs:
        # Fails without a stop token: here is one that never comes.
        kwargs |= {"eos_token_id": EOS, "suppress_tokens": [EOS]}
    return model.generate(prompt, streamer=made[-1], **kwargs)


def check_assisted(seen, made, *, rows, strategy, drafted, idle=0, **more):
    """Check the counts; the streamer tells how many tokens each step had."""
    first, second = (s.puts for s in made)
    assert first == second
    step_tokens = [shape[-1] for shape in first[1:]]
    assert sum(step_tokens) == rows[0]
    check(seen, rows=rows, strategy=strategy, step_tokens=step_tokens, idle=idle, **more)
    record = seen.record
    assert record.assisted_accepted == rows[0] - len(step_tokens)
    assert record.assisted_drafted == drafted
    assert record.assisted_drafted >= record.assisted_accepted
    attributes = seen.requests()[0].attributes
    assert attributes["llmtrace.assisted.drafted"] == drafted
    assert attributes["llmtrace.assisted.accepted"] == record.assisted_accepted


@cell("assisted, draft model")
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("sampling", [False, True])
def test_draft_model(tiny, prompt, seed, sampling):
    """The same weights draft what is kept, others what is not; each draft forward is one token."""
    made, drafted = [], []

    def call():
        draft = tiny_llama(seed=seed)  # it learns how much to draft
        torch.manual_seed(7)
        with Forwards(draft) as drafts:
            ids = streamed(
                tiny,
                made,
                prompt,
                assistant_model=draft,
                max_new_tokens=12,
                do_sample=sampling,
            )
        drafted.append(drafts.calls)
        return ids

    seen = observe(tiny, call)
    check_assisted(seen, made, rows=[12], inputs=[5], strategy="assisted", drafted=drafted[1])
    if seed == 0 and not sampling:
        assert len(seen.record.steps) < 12
        assert seen.record.assisted_accepted > 0


@cell("assisted, draft model")
@pytest.mark.parametrize("length", [1, 5])
def test_draft_model_and_a_stop_token(tiny, prompt, length):
    """A stop token among the candidates ends the row there."""
    draft, made, drafted = tiny_llama(), [], []

    def call():
        with Forwards(draft) as drafts:
            ids = streamed(
                tiny,
                made,
                prompt,
                assistant_model=draft,
                max_new_tokens=12,
                eos_token_id=EOS,
                do_sample=False,
                logits_processor=[Force(5, length)],
            )
        drafted.append(drafts.calls)
        return ids

    seen = observe(tiny, call)
    assert seen.result.shape[1] == 5 + length
    check_assisted(
        seen,
        made,
        rows=[length],
        inputs=[5],
        strategy="assisted",
        drafted=drafted[1],
        reasons=["stop"],
    )


@cell("assisted, early exit")
def test_early_exit(tiny, prompt):
    """The model drafts with its own first layers."""
    if VERSION < (4, 48):
        not_here("assistant_early_exit came with 4.47")
    if VERSION[0] == 5 and VERSION < (5, 17):
        not_here("assistant_early_exit fails in transformers 5.0 itself")
    made, drafted = [], []

    def call():
        with Drafts("AssistedCandidateGenerator") as drafts:
            ids = streamed(
                tiny, made, prompt, assistant_early_exit=1, max_new_tokens=10, do_sample=False
            )
        drafted.append(drafts.drafted)
        return ids

    seen = observe(tiny, call)
    idle = seen.forwards - (len(made[1].puts) - 1)
    check_assisted(
        seen,
        made,
        rows=[10],
        inputs=[5],
        strategy="assisted",
        drafted=drafted[1],
        idle=idle,
    )


@cell("prompt lookup")
@pytest.mark.parametrize("repeated", [False, True])
def test_prompt_lookup(tiny, repeated):
    prompt = torch.tensor([[9, 9, 9, 9, 9] if repeated else [5, 6, 7, 8, 10]])
    made, drafted = [], []

    def call():
        with Drafts("PromptLookupCandidateGenerator") as drafts:
            ids = streamed(
                tiny,
                made,
                prompt,
                prompt_lookup_num_tokens=3,
                max_new_tokens=12,
                do_sample=False,
                logits_processor=[Force(5, 99)] if repeated else None,
            )
        drafted.append(drafts.drafted)
        return ids

    seen = observe(tiny, call)
    check_assisted(seen, made, rows=[12], inputs=[5], strategy="prompt_lookup", drafted=drafted[1])
    if repeated:
        assert seen.record.assisted_accepted > 0


@cell("assisted, draft model")
def test_an_ordinary_request_has_no_acceptance(tiny, prompt):
    record = observe(tiny, lambda: tiny.generate(prompt, max_new_tokens=3, do_sample=False)).record
    assert record.assisted_drafted is None
    assert record.assisted_accepted is None

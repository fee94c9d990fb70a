"""Errors and interruptions: the same object comes out, the span ends once, the next is clean."""

import asyncio

import pytest
import torch
from harness import VERSION, CountingStreamer, check, observe, tiny_llama, traced
from opentelemetry.trace import StatusCode
from transformers import StoppingCriteria

KINDS = [
    ValueError,
    KeyboardInterrupt,
    asyncio.CancelledError,
    SystemExit,
    GeneratorExit,
    StopIteration,
]
BY_ROW = VERSION >= (4, 39)
NO_FAILURE = (SystemExit, GeneratorExit)


def cell(mode):
    return pytest.mark.cell(mode)


class Processor:
    """A processor that raises when it is asked about the third token."""

    tokens = 2

    def __init__(self, error):
        self.error = error

    def arguments(self):
        def explode(input_ids, scores):
            if input_ids.shape[1] == 7:
                raise self.error
            return scores

        return {"logits_processor": [explode]}


class Streamer(Processor):
    """A streamer that raises when it is handed the third token, which has been selected."""

    tokens = 3

    def arguments(self):
        error = self.error

        class Exploding(CountingStreamer):
            def put(self, value):
                super().put(value)
                if len(self.puts) == 4:
                    raise error

        return {"streamer": Exploding()}


class Criterion(Processor):
    """A criterion that raises when it is asked about the third token, which has been selected."""

    tokens = 3

    def arguments(self):
        error = self.error

        class Exploding(StoppingCriteria):
            def __call__(self, input_ids, scores, **kwargs):
                if input_ids.shape[1] == 8:
                    raise error
                return torch.zeros(input_ids.shape[0], dtype=torch.bool) if BY_ROW else False

        return {"stopping_criteria": [Exploding()]}


@cell("errors and interruptions at step 3")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", [Processor, Streamer, Criterion])
def test_an_error_at_the_third_step(tiny, prompt, kind, where):
    error = kind()
    raising = where(error)
    seen = traced(
        lambda: tiny.generate(prompt, max_new_tokens=9, do_sample=False, **raising.arguments()),
        [tiny],
    )
    if VERSION < (4, 39) and where is Criterion and kind is StopIteration:
        # This version asks its criteria in a generator expression: Python turns it into another.
        assert seen.error.__cause__ is error
    else:
        assert seen.error is error
    kind = type(seen.error)
    assert seen.forwards == 3
    record = seen.record
    (request,) = seen.requests()
    assert record.output_tokens == where.tokens
    assert len(record.steps) == where.tokens
    assert record.ttft_s > 0
    assert record.finish_reasons == ("error",)
    if issubclass(kind, NO_FAILURE):
        assert record.error is None
        assert request.status.status_code is StatusCode.UNSET
    else:
        assert record.error.endswith(kind.__name__)
        assert request.status.status_code is StatusCode.ERROR
    clean = observe(tiny, lambda: tiny.generate(prompt, max_new_tokens=3, do_sample=False))
    check(clean, rows=[3], inputs=[5], strategy="greedy")


BATCH = torch.tensor([[4, 4, 5, 6, 7], [5, 6, 7, 8, 9]])


@cell("errors in other modes")
@pytest.mark.parametrize(
    ("how", "rows"),
    [
        ({"do_sample": False}, (2, 2)),
        ({"do_sample": True}, (2, 2)),
        ({"do_sample": True, "num_return_sequences": 2}, (2, 2, 2, 2)),
        ({"do_sample": False, "num_beams": 2}, ()),
        ({"do_sample": False, "use_cache": False}, (2, 2)),
    ],
)
def test_an_error_in_a_batch(tiny, how, rows):
    """Tokens so far of each row; which rows would have come of beams nobody knows."""
    error = ValueError("no")
    seen = traced(
        lambda: tiny.generate(BATCH, max_new_tokens=9, **how, **Processor(error).arguments()),
        [tiny],
    )
    assert seen.error is error
    record = seen.record
    assert record.output_tokens_per_row == rows
    assert record.output_tokens == (sum(rows) or None)
    assert len(record.steps) == 2
    assert len(record.itl_s) == 1
    assert set(record.finish_reasons) == {"error"}


@cell("errors in other modes")
def test_an_error_in_assisted_decoding(tiny, prompt):
    """An error after the first step, which gave several tokens: those count."""
    error = ValueError("no")
    draft = tiny_llama()
    streamer = CountingStreamer()

    def put(value):
        streamer.puts.append(tuple(value.shape))
        if len(streamer.puts) == 3:
            raise error

    streamer.put = put
    kwargs = {"eos_token_id": 2, "suppress_tokens": [2]} if VERSION < (4, 39) else {}
    seen = traced(
        lambda: tiny.generate(
            prompt,
            assistant_model=draft,
            max_new_tokens=30,
            do_sample=False,
            streamer=streamer,
            **kwargs,
        ),
        [tiny],
    )
    assert seen.error is error
    first, second = (shape[-1] for shape in streamer.puts[1:])
    assert first > 1
    record = seen.record
    assert len(record.steps) == 2
    assert record.output_tokens == first + second
    assert record.finish_reasons == ("error",)


@cell("refused before it began")
def test_a_refused_request(tiny, prompt):
    """An argument that the model does not take: the error is transformers', with no tokens."""
    seen = traced(lambda: tiny.generate(prompt, max_new_tokenz=3), [tiny])
    assert isinstance(seen.error, ValueError)
    assert "max_new_tokenz" in str(seen.error)
    assert seen.forwards == 0
    assert seen.record.output_tokens == 0
    assert seen.record.ttft_s is None
    assert seen.record.steps == []

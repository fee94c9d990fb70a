"""What every test of the matrix needs: a counter of its own, two runs, and the checks.

Ground truth never comes from llmtrace: forward calls are counted by a wrapper on the model's own
``forward``, tokens by the returned ids.
"""

import functools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import transformers
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import llmtrace
from llmtrace.session import session

PAD, EOS = 0, 2
VERSION = tuple(int(part) for part in transformers.__version__.split(".")[:2])
NOT_HERE, NOT_OBSERVABLE, NOTE = "not in this version", "not observable", "note"


def not_here(why):
    """End the test: this version, or this environment, does not have the mode."""
    pytest.skip(why)


def not_observable(request, record, code, why):
    """Say that something cannot be known, which the record must say itself."""
    assert code in {finding.code for finding in record.findings}, record.findings
    request.node.user_properties += [("result", NOT_OBSERVABLE), (NOTE, why)]


def remark(request, text):
    """Add a footnote to a cell that is right."""
    request.node.user_properties.append((NOTE, text))


def tiny_config(**changes):
    """Return the configuration of a Llama of 2 layers and 64 words."""
    values = {
        "vocab_size": 64,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "bos_token_id": 1,
        **changes,
    }
    return transformers.LlamaConfig(**values)


def tiny_llama(kind=None, seed=0, **changes):
    """Return a tiny Llama, of class *kind* if given; no id stops it by chance."""
    torch.manual_seed(seed)
    model = (kind or transformers.LlamaForCausalLM)(tiny_config(**changes)).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = PAD
    return model


class Force(transformers.LogitsProcessor):
    """Makes row *r* produce ``stop`` as its ``lengths[r]``-th token, and 9 before."""

    def __init__(self, prompt_length, *lengths, stop=EOS):
        self.prompt_length, self.lengths, self.stop = prompt_length, lengths, stop

    def __call__(self, input_ids, scores):
        step = input_ids.shape[1] - self.prompt_length + 1
        scores = torch.full_like(scores, float("-inf"))
        repeat = scores.shape[0] // len(self.lengths)
        for row, length in enumerate(self.lengths):
            stop = self.stop[row] if isinstance(self.stop, (list, tuple)) else self.stop
            scores[row * repeat : (row + 1) * repeat, stop if step >= length else 9] = 0.0
        return scores


class Letters:
    """As much of a tokenizer as a streamer needs."""

    def decode(self, ids, **_):
        ids = ids if isinstance(ids, list) else [ids]
        return "".join(chr(97 + int(i) % 26) + " " for i in ids)


class CountingStreamer:
    """Counts what it is handed; the first ``put`` is the prompt."""

    def __init__(self):
        self.puts, self.ends = [], 0

    def put(self, value):
        self.puts.append(tuple(value.shape))

    def end(self):
        self.ends += 1


class Forwards:
    """Counts the calls of a model's own forward, whoever makes them."""

    def __init__(self, *models):
        self.models = models
        self.calls = 0

    def __enter__(self):
        for model in self.models:
            model.forward = self._counted(model.forward)
        return self

    def __exit__(self, *_):
        for model in self.models:
            del model.forward

    def _counted(self, forward):
        @functools.wraps(forward)
        def counted(*args, **kwargs):
            self.calls += 1
            return forward(*args, **kwargs)

        return counted


@dataclass
class Seen:
    """What two runs of the same call, without and with llmtrace, gave."""

    result: Any = None
    """What the traced run returned."""
    records: list = field(default_factory=list)
    spans: list = field(default_factory=list)
    forwards: int = 0
    """Calls of the model's forward in the traced run."""
    error: BaseException | None = None

    @property
    def record(self):
        (record,) = self.records
        return record

    def requests(self):
        return [s for s in self.spans if "llmtrace.strategy" in (s.attributes or {})]

    def names(self):
        """Return how many spans of each of our names there are."""
        return Counter(s.name for s in self.spans)


def ids_of(result):
    """Return the ids in what ``generate()`` returned, if it returned any."""
    ids = getattr(result, "sequences", result)
    return ids.clone() if hasattr(ids, "clone") else ids


def observe(model, call, *, compare=True, count=None):
    """Run *call* without llmtrace, then with it, and return what was seen.

    Args:
        model: The model whose forward calls are counted.
        call: Does the whole of it anew each time: criteria, caches and streamers have a state.
        compare: Whether the two runs must return the same ids after the same forward calls.
        count: The models whose forward calls count, where that is not *model*.
    """
    counted = (model,) if count is None else count
    llmtrace.uninstrument()
    torch.manual_seed(7)
    with Forwards(*counted) as without:
        expected = ids_of(call()) if compare else None
    seen = traced(call, counted)
    if compare:
        assert seen.error is None, seen.error
        got = ids_of(seen.result)
        assert torch.equal(got, expected) if hasattr(got, "shape") else got == expected
        assert seen.forwards == without.calls
    return seen


def traced(call, counted=()):
    """Run *call* with llmtrace, whatever it raises."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    seen = Seen()
    with (
        llmtrace.instrument(tracer_provider=provider),
        Forwards(*counted) as forwards,
        llmtrace.capture() as records,
    ):
        torch.manual_seed(7)
        try:
            seen.result = call()
        except BaseException as error:  # the test looks at it
            seen.error = error
    assert session().pipeline.drain(10)
    seen.records, seen.forwards = records, forwards.calls
    seen.spans = list(exporter.get_finished_spans())
    provider.shutdown()
    return seen


def check(
    seen,
    *,
    rows,
    inputs,
    strategy,
    reasons=None,
    steps=None,
    step_tokens=None,
    padded=None,
    cached=None,
    idle=0,
):
    """Assert everything that a record of one successful request must hold.

    Args:
        seen: What was observed.
        rows: Output tokens of each returned row.
        inputs: Input tokens of each prompt, without padding.
        strategy: Decoding strategy.
        reasons: Why each row ended; ``length`` if not given.
        steps: Advances of the loop, where they are not the longest row.
        step_tokens: Tokens of each step, where a step can have several.
        padded: Size of the input, padding included, where there is padding.
        cached: Input tokens that were in the cache.
        idle: Forward calls that belong to no step.
    """
    record = seen.record
    steps = max(rows) if steps is None else steps
    tokens = [1] * steps if step_tokens is None else step_tokens
    assert record.error is None
    assert record.strategy == strategy
    assert record.output_tokens_per_row == tuple(rows)
    assert record.output_tokens == sum(rows)
    assert record.input_tokens_per_row == tuple(inputs)
    assert record.input_tokens == sum(inputs)
    assert record.input_tokens_padded == (sum(inputs) if padded is None else padded)
    assert record.input_tokens_cached == cached
    assert record.batch_size == len(inputs)
    assert record.finish_reasons == tuple(reasons or ["length"] * len(rows))
    assert [s.tokens for s in record.steps] == tokens
    assert [s.phase for s in record.steps] == ["prefill"] + ["decode"] * (len(tokens) - 1)
    assert sum(s.forwards for s in record.steps) == seen.forwards - idle
    check_times(record, sum(tokens))
    check_spans(seen, len(tokens))


def check_times(record, tokens):
    """Assert the identities of the glossary for *tokens* tokens one after the other."""
    assert 0 < record.prefill_s <= record.ttft_s <= record.e2e_s <= record.duration_s
    assert len(record.itl_s) == tokens - 1
    assert record.e2e_s == pytest.approx(record.ttft_s + sum(record.itl_s))
    assert record.tgs == pytest.approx(record.output_tokens / record.e2e_s)
    if tokens == 1 or not sum(record.itl_s):  # all at once, in one assisted step
        assert record.tpot_s is None
        assert record.decode_tgs is None
    else:
        assert record.tpot_s == pytest.approx(sum(record.itl_s) / (tokens - 1))
        assert all(gap >= 0 for gap in record.itl_s)


def check_spans(seen, steps):
    """Assert one request span over one prefill, one first token and the decode steps."""
    (request,) = seen.requests()
    names = seen.names()
    assert names["prefill"] == names["first_token"] == 1
    assert names["decode"] == steps - 1
    # Stop strings are tokenized inside the request.
    assert len(seen.spans) - names["tokenize"] == steps + 2
    for span in seen.spans:
        if span is not request:
            assert span.parent.span_id == request.context.span_id
    attributes = request.attributes
    assert ("llmtrace.itl" in attributes) == (len(seen.record.itl_s) > 0)
    assert ("llmtrace.tpot" in attributes) == (sum(seen.record.itl_s) > 0)
    assert attributes["llmtrace.ttft"] > 0

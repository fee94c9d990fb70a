"""Random batches, paddings, stop positions and modes: the identities hold, the ids are the same."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import llmtrace
from llmtrace.session import session
from tests.integration.test_spans import EOS, PAD, forced

MODES = {
    "greedy": {"do_sample": False},
    "sample": {"do_sample": True, "temperature": 0.9},
    "no_cache": {"do_sample": False, "use_cache": False},
    "static": {"do_sample": False, "cache_implementation": "static"},
    "chunked": {"do_sample": False, "prefill_chunk_size": 2},
    "several": {"do_sample": True, "num_return_sequences": 2},
}


@st.composite
def requests(draw):
    """Prompts ``[rows, length]`` with left padding, where each row stops, the limit, the mode."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    longest = max(lengths)
    ids = torch.full((len(lengths), longest), PAD)
    for row, length in enumerate(lengths):
        words = draw(st.lists(st.integers(3, 63), min_size=length, max_size=length))
        ids[row, longest - length :] = torch.tensor(words)
    mode = draw(st.sampled_from(sorted(MODES)))
    copies = 2 if mode == "several" else 1
    stops = draw(st.lists(st.integers(1, 8), min_size=len(lengths), max_size=len(lengths)))
    limit = draw(st.integers(1, 8))
    return ids, lengths, [s for s in stops for _ in range(copies)], limit, mode


def generate(model, ids, stops, limit, mode, seed):
    torch.manual_seed(seed)
    return model.generate(
        ids,
        attention_mask=(ids != PAD).long(),
        max_new_tokens=limit,
        eos_token_id=EOS,
        pad_token_id=PAD,
        logits_processor=forced(ids, *stops),
        **MODES[mode],
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(request=requests(), seed=st.integers(0, 2**31))
def test_identities(tiny, request, seed):
    """Counts are what the stop positions say, and every glossary identity holds."""
    ids, lengths, stops, limit, mode = request
    session().arming.disarm()
    plain = generate(tiny, ids, stops, limit, mode, seed)
    session().arm()
    with llmtrace.capture() as records:
        traced = generate(tiny, ids, stops, limit, mode, seed)
    assert torch.equal(plain, traced)
    (record,) = records

    expected = [min(stop, limit) for stop in stops]
    assert list(record.output_tokens_per_row) == expected
    assert record.output_tokens == sum(expected)
    assert list(record.input_tokens_per_row) == lengths
    assert record.input_tokens_padded == ids.numel()
    assert record.finish_reasons == tuple("stop" if s <= limit else "length" for s in stops)

    steps = max(expected)
    assert [s.phase for s in record.steps] == ["prefill"] + ["decode"] * (steps - 1)
    assert len(record.itl_s) == steps - 1
    assert record.ttft_s > 0
    assert math.isclose(record.e2e_s, record.ttft_s + math.fsum(record.itl_s), rel_tol=1e-9)
    assert math.isclose(record.tgs, sum(expected) / record.e2e_s)
    if steps > 1:
        assert math.isclose(record.tpot_s, math.fsum(record.itl_s) / (steps - 1), rel_tol=1e-9)
    else:
        assert record.tpot_s is None
    assert (record.decode_tgs is None) == (sum(expected) == len(expected))
    ends = [s.end_s for s in record.steps]
    assert [s.start_s for s in record.steps] == [0.0, *ends[:-1]]
    assert ends == sorted(ends)
    assert 0 < record.prefill_s < record.ttft_s
    for step in record.steps:
        assert step.start_s <= step.forward_start_s <= step.forward_end_s <= step.end_s

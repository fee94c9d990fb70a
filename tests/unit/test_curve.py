"""ITL over position and context; every expected value is worked out here by hand."""

from __future__ import annotations

import numpy as np
import pytest

from llmtrace.analysis.curve import first_jump, itl_curve, trend
from llmtrace.analysis.gaps import gaps_of
from llmtrace.analysis.groups import groupings
from tests.unit.requests import request, request_of_gaps


def curve(*records):
    return itl_curve(gaps_of(records))


def jump(*gap_lists):
    found = first_jump(curve(*[request_of_gaps(0.1, gaps) for gaps in gap_lists]))
    return None if found is None else (found.position, found.before_s, found.after_s)


def test_a_curve_has_percentiles_at_each_position():
    """Gaps of 1 and 3 s before token 2: p50 = 2, p5 = 1.1, p95 = 2.9; before token 3 only 5 s."""
    found = curve(request_of_gaps(0.1, [1.0, 5.0]), request_of_gaps(0.1, [3.0]))
    assert (found.first, found.counts) == (2, (2, 1))
    assert (found.p5[0], found.p50[0], found.p95[0]) == pytest.approx((1.1, 2.0, 2.9))
    assert (found.p5[1], found.p50[1], found.p95[1]) == (5.0, 5.0, 5.0)


def test_rows_of_a_batch_count_in_the_curve():
    """Rows of 3 and 2 tokens: two gaps before token 2, one before token 3."""
    batch = request(0.1, 0.2, 0.5, batch_size=2, output_tokens=5, output_tokens_per_row=(3, 2))
    assert curve(batch).counts == (2, 1)


def test_without_gaps_there_is_no_curve_and_no_trend():
    """A single token has no gap."""
    assert curve(request(0.1)) is None
    assert trend([request(0.1)], gaps_of([request(0.1)])) is None


def test_a_clean_step():
    """22 ms before tokens 2 to 65, 85 ms from token 66 on, as in the field."""
    assert jump([0.022] * 64 + [0.085] * 36) == (66, 0.022, 0.085)


def test_a_step_in_noise():
    """Fifty requests whose gaps scatter by a tenth: the same token, found by the medians."""
    random = np.random.default_rng(3)
    lists = [
        (np.repeat([0.022, 0.085], [64, 36]) * random.uniform(0.9, 1.1, 100)).tolist()
        for _ in range(50)
    ]
    found = jump(*lists)
    assert found[0] == 66
    assert found[1:] == pytest.approx((0.022, 0.085), rel=0.02)


@pytest.mark.parametrize("length", [1, 2, 4, 10, 20])
def test_what_does_not_last_is_no_jump(length):
    """A stall of some tokens, a long one too, after which all is as before."""
    assert jump([0.02] * 40 + [0.2] * length + [0.02] * 40) is None


def test_the_first_of_two_jumps():
    """10 ms, then 20 from token 32, then 60 from token 62: the first; medians of both sides."""
    assert jump([0.01] * 30 + [0.02] * 30 + [0.06] * 30) == (32, 0.01, 0.04)


def test_a_jump_at_the_end():
    """The last ten tokens are slow; of the last four it could not be said that it lasts."""
    assert jump([0.042] * 90 + [0.0685] * 10) == (92, 0.042, 0.0685)
    assert jump([0.042] * 90 + [0.0685] * 4) is None


def test_steady_growth_is_no_jump():
    """From 24 to 44 ms over 500 tokens."""
    assert jump(np.linspace(0.024, 0.044, 500).tolist()) is None


def test_noise_alone_is_no_jump():
    """A hundred runs of even noise of a fifth either way: never a jump."""
    random = np.random.default_rng(5)
    assert [jump(random.uniform(0.8, 1.2, 200).tolist()) for _ in range(100)] == [None] * 100


def test_positions_that_few_requests_reached_are_left_out():
    """One request of three goes on, and is slow there: no jump of all."""
    assert jump([0.02] * 40, [0.02] * 40, [0.02] * 40 + [0.2] * 40) is None


def test_too_few_positions_tell_no_jump():
    """Nine gaps do not have five on either side."""
    assert jump([0.02] * 5 + [0.2] * 4) is None


def test_slope_against_context():
    """10 ms and 2 us per token of context, for prompts of 100 and 400: exactly that slope."""
    records = [
        request_of_gaps(0.1, [0.01 + 2e-6 * (prompt + i) for i in range(1, 80)], prompt=prompt)
        for prompt in (100, 400)
    ]
    found = trend(records, gaps_of(records))
    assert found.slope_s_per_token == pytest.approx(2e-6)
    # The gap before token 2 was made from the prompt and one token; that before token 80, from 79.
    assert (found.context_from, found.context_to) == (101, 479)
    assert found.requests == 2


def test_a_stall_does_not_bend_the_slope():
    """Every tenth gap is 1 s longer: medians do not see it."""
    gaps = [0.01 + 2e-6 * (10 + i) + (i % 10 == 0) for i in range(1, 400)]
    record = request_of_gaps(0.1, gaps)
    assert trend([record], gaps_of([record])).slope_s_per_token == pytest.approx(2e-6, rel=0.1)


def test_few_context_lengths_tell_no_slope():
    """Nine gaps, nine lengths."""
    record = request_of_gaps(0.1, [0.01] * 9)
    assert trend([record], gaps_of([record])).slope_s_per_token is None


def test_the_trend_is_that_of_the_commonest_kind():
    """Two requests of one model and one of another: the one is not mixed in."""
    steady = [request_of_gaps(0.1, [0.01] * 40) for _ in range(2)]
    other = request_of_gaps(0.1, [0.01] * 20 + [0.5] * 20, model="other")
    found = trend([other, *steady], gaps_of([other, *steady]))
    assert (found.requests, found.slope_s_per_token, found.jump) == (2, 0.0, None)


def test_groups():
    """Three requests; each grouping holds all of them, with its own numbers."""
    records = [
        request(1.0, 2.0, prompt=100),
        request(3.0, 4.0, start=10, prompt=600, batch_size=2, strategy="sample"),
        request(5.0, start=20, prompt=100, model="n"),
    ]
    found = {
        g.by: [(x.value, x.requests, x.ttft_s.mean) for x in g.groups]
        for g in groupings(records, gaps_of(records))
    }
    assert found == {
        "model": [("m", 2, 2.0), ("n", 1, 5.0)],
        "prompt_tokens": [("1-128", 2, 3.0), ("513-2048", 1, 3.0)],
        "batch_size": [("1", 2, 3.0), ("2", 1, 3.0)],
        "strategy": [("greedy", 2, 3.0), ("sample", 1, 3.0)],
    }
    (short, _) = groupings(records, gaps_of(records))[1].groups
    # 2 tokens in 2 s and 1 in 5 s, not at the same time.
    assert short.tgs_system == pytest.approx(3 / 7)
    assert short.itl_s.count == 1


def test_what_is_not_known_is_in_no_group():
    """A request without a prompt length."""
    unknown = request(1.0, prompt=None, input_tokens_per_row=())
    assert groupings([unknown], gaps_of([unknown]))[1].groups == ()

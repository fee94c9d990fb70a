"""Intervals: against draws made one by one, and against the truth."""

from __future__ import annotations

import numpy as np
import pytest

from llmtrace.analysis.intervals import MOST_GROUPS, draw


def test_the_same_as_drawing_one_by_one():
    """Fifty values drawn anew 4,000 times by numpy's own means give nearly the same bounds."""
    random = np.random.default_rng(1)
    values = random.gamma(2.0, 1.0, 50)
    drawn = random.choice(values, (4000, 50))
    found = draw(values).intervals()
    for name, figures in (
        ("mean", drawn.mean(axis=1)),
        ("p50", np.percentile(drawn, 50, axis=1)),
        ("p90", np.percentile(drawn, 90, axis=1)),
    ):
        width = found[name].high - found[name].low
        expected = np.percentile(figures, (2.5, 97.5))
        assert (found[name].low, found[name].high) == pytest.approx(expected, abs=width / 6)


def test_equal_values_leave_no_doubt():
    """Wherever one draws from twenty equal values, it is the same."""
    found = draw(np.full(20, 0.25)).intervals()
    assert {(i.low, i.high) for i in found.values()} == {(0.25, 0.25)}


def test_from_few_requests_there_is_no_interval():
    """Seven values; and a thousand gaps of seven requests."""
    assert draw(np.arange(7.0)).intervals() == {}
    assert draw(np.arange(1000.0), np.arange(1000) % 7).intervals() == {}
    assert draw(np.empty(0)).intervals() == {}


@pytest.mark.parametrize(("n", "names"), [(8, {"p50"}), (39, {"p50"}), (40, {"p50", "p90"})])
def test_percentiles_need_values_beyond_them(n, names):
    """Of 40 values four lie beyond p90; of fewer, none would be known from the draws."""
    assert set(draw(np.arange(float(n))).intervals()) == {"mean", *names}


def test_gaps_of_a_request_stay_together():
    """A hundred times the same twenty values: as sure as of twenty, not as of two thousand."""
    random = np.random.default_rng(2)
    values = random.gamma(2.0, 1.0, 20)
    once = draw(values).intervals()["mean"]
    often = draw(np.repeat(values, 100), np.repeat(np.arange(20), 100)).intervals()["mean"]
    assert (often.low, often.high) == pytest.approx((once.low, once.high))


def test_rows_count():
    """A gap that three rows had is three gaps."""
    values, owner = np.arange(30.0), np.arange(30) % 10
    weighted = draw(values, owner, np.full(30, 3))
    repeated = draw(np.repeat(values, 3), np.repeat(owner, 3))
    assert weighted.intervals() == repeated.intervals()


def test_it_holds_the_truth_as_often_as_it_says():
    """The median of 100 values lies in its interval in 95 % of 200 trials, give or take."""
    random = np.random.default_rng(7)
    held = 0
    for _ in range(200):
        found = draw(random.exponential(1.0, 100)).intervals()["p50"]
        held += found.low <= np.log(2) <= found.high
    assert 178 <= held <= 200


def test_many_values_are_taken_together():
    """200,000 values of 5,000 requests: bounds around the percentile, and near it."""
    random = np.random.default_rng(4)
    values = random.gamma(2.0, 1.0, 200_000)
    found = draw(values, np.repeat(np.arange(5 * MOST_GROUPS), 40)).intervals()
    for q in (50, 90, 95, 99):
        exact = np.percentile(values, q)
        assert found[f"p{q}"].low <= exact <= found[f"p{q}"].high
        assert found[f"p{q}"].high - found[f"p{q}"].low < 0.05 * exact

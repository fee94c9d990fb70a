"""What ran when; every expected value is worked out here by hand."""

from __future__ import annotations

import pytest

from llmtrace.analysis.timeline import by_concurrency, timeline
from llmtrace.records import GenerationParameters
from tests.unit.requests import request


def levels(records, running=None):
    found = timeline(records, running or records)
    return {x.running: (x.seconds, x.output_tokens, x.tgs) for x in by_concurrency(found)}


def test_throughput_by_how_many_ran():
    """[0, 4] with tokens at 1, 2, 3, 4 and [2, 4] with tokens at 3 and 4.

    Alone for 2 s: the tokens at 1 and 2. Together for 2 s: two of each at 3 and at 4.
    """
    records = [request(1.0, 2.0, 3.0, 4.0), request(1.0, 2.0, start=2.0)]
    assert levels(records) == {1: (2.0, 2, 1.0), 2: (2.0, 4, 2.0)}


def test_idle_time_is_no_level():
    """Nothing ran from 1 to 9 s."""
    records = [request(1.0), request(1.0, start=9.0)]
    assert levels(records) == {1: (2.0, 2, 1.0)}


def test_no_token_is_lost_to_rounding():
    """Requests end with their last token, a third of a second, which nanoseconds cut short."""
    records = [request(0.1, 0.2, 1 / 3, start=1e5 + i) for i in range(20)]
    assert levels(records)[1][1] == 60


def test_what_does_not_count_is_load_and_gives_no_tokens():
    """A failed request beside it for the second half."""
    good, failed = request(1.0, 2.0), request(1.0, start=1.0, error="E")
    assert levels([good], [good, failed]) == {1: (1.0, 1, 1.0), 2: (1.0, 1, 1.0)}


def test_rows_of_a_batch_are_tokens():
    """Rows of 3 and 2 tokens: two tokens at 1 s, two at 2 s, one at 3 s."""
    batch = request(1.0, 2.0, 3.0, batch_size=2, output_tokens=5, output_tokens_per_row=(3, 2))
    found = timeline([batch], [batch])
    assert (found.tokens_s.tolist(), found.rows.tolist()) == ([1.0, 2.0, 3.0], [2, 2, 1])


def test_tokens_whose_steps_were_not_kept_are_spread():
    """Two steps of five recorded; three more tokens by 5 s: one a second."""
    cut = request(1.0, 2.0, output_tokens=5, output_tokens_per_row=(5,), e2e_s=5.0, duration=5.0)
    assert timeline([cut], [cut]).tokens_s == pytest.approx([1, 2, 3, 4, 5])


def test_any_number_of_tokens_takes_bounded_memory():
    """A file may say anything: 9 quadrillion tokens are as many, at some thousand points."""
    claimed = 9_000_000_000_000_000
    many = request(1.0, 2.0, output_tokens=claimed, e2e_s=5.0, duration=5.0)
    found = timeline([many], [many])
    assert found.tokens_s.size < 5000
    assert int(found.rows.sum()) == claimed
    assert levels([many])[1] == (5.0, claimed, claimed / 5)


def test_beams_are_the_returned_rows_tokens():
    """Six tokens were returned, between 1 and 3 s."""
    beams = request(
        1.0,
        2.0,
        3.0,
        output_tokens=6,
        output_tokens_per_row=(3, 3),
        parameters=GenerationParameters(num_beams=4),
    )
    found = timeline([beams], [beams])
    assert int(found.rows.sum()) == 6
    assert (found.tokens_s[0], found.tokens_s[-1]) == (1.0, 3.0)


def test_nothing_that_took_time_is_no_timeline():
    """Of no requests, or of none that lasted."""
    assert timeline([], []) is None
    assert timeline([request(duration=0.0)], [request(duration=0.0)]) is None

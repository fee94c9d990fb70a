"""Token counts and finish reasons from ids alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.recording.tokens import (
    finish_reason,
    output_tokens,
    unpadded,
    without_left_padding,
)

EOS = frozenset({2})


@pytest.mark.parametrize(
    ("row", "eos", "count"),
    [
        ([9, 9, 2, 0, 0], EOS, 3),
        ([9, 9, 2, 2, 2], EOS, 3),
        ([2], EOS, 1),
        ([9, 9, 9], EOS, 3),
        ([9, 5, 9, 2], frozenset({2, 5}), 2),
        ([9, 2, 9], frozenset(), 3),
        ([], EOS, 0),
    ],
)
def test_a_row_ends_with_its_first_stop_token(row, eos, count):
    """The stop token counts, padding after it does not, even where both are the same id."""
    assert output_tokens(row, eos) == count


@pytest.mark.parametrize(
    ("row", "limit", "stops", "reason"),
    [
        ([9, 2], 9, False, "stop"),
        ([9, 2], 2, False, "stop"),
        ([9, 9], 2, False, "length"),
        ([9, 9], 2, True, "length"),
        ([9, 9], 9, True, "stop"),
        ([9, 9], 9, False, "stop_criteria"),
        ([9, 9], None, False, "stop_criteria"),
        ([], 0, False, "length"),
        ([], 9, False, "stop_criteria"),
    ],
)
def test_why_a_row_ended(row, limit, stops, reason):
    """A stop token goes before the limit, the limit before stop strings, those before the rest."""
    assert finish_reason(row, EOS, limit, stops=stops) == reason


def test_a_mask_tells_each_row_s_tokens():
    """Only what the attention mask lets through is a token, wherever the padding lies."""
    assert unpadded([[0, 0, 1, 1], [1, 1, 1, 1], [1, 0, 0, 0]]) == (2, 4, 1)
    assert unpadded([]) == ()


def test_left_padding_is_left_out():
    """Only the padding ids that a row begins with are padding; later ones are tokens."""
    assert without_left_padding([[0, 0, 5, 0, 6], [5, 6, 7, 8, 9], [0, 0]], 0) == (3, 5, 0)


@given(st.lists(st.integers(0, 5), max_size=20))
def test_a_count_never_exceeds_the_row(row):
    """A row of ids has between 0 and all of them generated, and stops only at a stop token."""
    count = output_tokens(row, EOS)
    assert 0 <= count <= len(row)
    assert count == len(row) or row[count - 1] == 2
    assert 2 not in row[: count - 1] if count else not row

"""Where the device clock's offset lies, and how sure that is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.timing.host import WallAnchor, anchor
from llmtrace.timing.offset import LAUNCH_NS, offset_ns


def test_an_offset_known_exactly_has_no_error():
    """Bounds that meet leave one value."""
    assert offset_ns([100], [40], 100) == (60, 0)


def test_bounds_are_the_tightest_of_all_marks():
    """The mark that followed its call soonest bounds the offset from below, the last look above."""
    # Lower bounds 60, 70, 50; upper bound 80: the middle.
    assert offset_ns([100, 210, 290], [40, 140, 240], 320) == (75, 5)


def test_a_wide_interval_is_not_halved():
    """Of a wide interval the lower end is likelier: a mark soon follows its call."""
    offset, error = offset_ns([0], [0], 10_000_000)
    assert offset == LAUNCH_NS
    assert error == 10_000_000 - LAUNCH_NS


def test_bounds_that_rounding_has_crossed_give_the_lower_one():
    """The device's times are rounded: a mark is never put before the call that asked for it."""
    assert offset_ns([100], [40], 99) == (60, 0)


@given(
    truth=st.integers(-(10**15), 10**15),
    gaps=st.lists(st.integers(0, 50_000_000), min_size=1, max_size=40),
    data=st.data(),
)
def test_the_truth_lies_within_the_stated_error(truth, gaps, data):
    """Whatever the launch latencies, the true offset is no further away than is said."""
    asked, happened, host, stream = [], [], 0, 0
    for gap in gaps:
        host += gap
        latency = data.draw(st.integers(0, 20_000_000))
        stream = max(stream, host + latency)  # a stream keeps its order
        asked.append(host)
        happened.append(stream)
    done = max(host, stream) + data.draw(st.integers(0, 5_000_000))
    device = [t - truth for t in happened]
    offset, error = offset_ns(asked, device, done)
    assert abs(offset - truth) <= error
    mapped = [offset + t for t in device]
    assert all(a <= m for a, m in zip(asked, mapped, strict=True))
    assert mapped == sorted(mapped)
    assert mapped[-1] <= done


def test_a_wall_anchor_keeps_distances():
    """Times go through one anchor: their distance on the wall is that on the host."""
    fixed = WallAnchor(wall_ns=10**18, host_ns=500)
    assert fixed.wall(500) == 10**18
    assert fixed.wall(1_750) - fixed.wall(500) == 1_250
    assert fixed.wall(0) == 10**18 - 500


def test_an_anchor_is_of_now():
    """Both clocks are read at about the same time."""
    import time

    before, made, after = time.time_ns(), anchor(), time.time_ns()
    assert before <= made.wall_ns <= after
    assert made.host_ns == pytest.approx(time.perf_counter_ns(), abs=10**9)

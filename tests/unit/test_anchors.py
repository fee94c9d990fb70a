"""A device's clock on the host's, and the host's on the wall's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.timing.anchors import UNKNOWN_DRIFT, Anchor, DeviceClock
from llmtrace.timing.device import DeviceTimes
from llmtrace.timing.host import WallAnchor, anchor

S = 1_000_000_000


class World:
    """A host's clock and a device's that drifts against it, and marks between them."""

    def __init__(self, drift=9e-6, offset=5 * S, look_ns=3_000):
        self.drift = drift
        self.offset = offset
        self.look_ns = look_ns
        self.now = 100 * S
        self.taken = 0

    def device(self, host_ns):
        """Return the device's time of an instant."""
        return (host_ns - self.offset) * (1 - self.drift)

    def take(self):
        """Take an anchor of now: the instant lies anywhere in the look."""
        self.taken += 1
        instant = self.now + (self.look_ns if self.taken % 2 else -self.look_ns)
        return Anchor(self.now, self.look_ns, self.device(instant))

    def clock(self):
        return DeviceClock(self.take, lambda before, after: round(after - before))

    def place(self, clock, instants, lag_ns=5_000):
        """Map instants back, each asked for a little earlier."""
        return clock.place([t - lag_ns for t in instants], [self.device(t) for t in instants])


def test_without_drift_marks_are_where_they_were():
    """Two exact anchors leave no error."""
    world = World(drift=0.0, look_ns=0)
    clock = world.clock()
    instants = [world.now + S, world.now + 2 * S]
    world.now += 3 * S
    assert world.place(clock, instants) == DeviceTimes(instants, 0)


@pytest.mark.parametrize("drift", [-80e-6, -9e-6, 0, 9e-6, 80e-6])
@pytest.mark.parametrize("span_s", [0.02, 1, 30, 600])
def test_drift_is_taken_out(drift, span_s):
    """Over a request of any length each mark is off by no more than is said: some microseconds."""
    world = World(drift=drift)
    clock = world.clock()
    begun = world.now + S // 10
    instants = [round(begun + span_s * S * i / 100) for i in range(101)]
    world.now = instants[-1] + S // 100
    times = world.place(clock, instants)
    off = [abs(t - true) for t, true in zip(times.times_ns, instants, strict=True)]
    assert max(off) <= times.error_ns + 2  # and rounding
    assert times.error_ns < 10_000


def test_marks_long_after_the_first_anchor_use_a_later_one():
    """Anchors kept from earlier requests enclose a request narrowly; many are not kept."""
    world = World()
    clock = world.clock()
    for _ in range(200):
        world.now += 2 * S
        world.place(clock, [world.now - S // 2])
    world.drift = 20e-6  # the crystal has warmed up: the old rate would be wrong by now
    world.offset = world.now  # and both clocks agree here
    world.place(clock, [world.now])
    world.now += 2 * S
    instants = [world.now - S]
    times = world.place(clock, instants)
    assert abs(times.times_ns[0] - instants[0]) <= times.error_ns + 2
    assert len(clock._kept) == 64


def test_anchors_too_near_to_tell_the_drift_leave_it_unknown():
    """What 100 ppm could make of the request's length is then in the stated error."""
    world = World(look_ns=50_000)
    clock = world.clock()
    instants = [world.now + 1_000_000, world.now + 21_000_000]
    world.now += 22_000_000
    times = world.place(clock, instants)
    assert times.error_ns == pytest.approx(50_000 + 21_000_000 * UNKNOWN_DRIFT, abs=20)
    off = [abs(t - true) for t, true in zip(times.times_ns, instants, strict=True)]
    assert max(off) <= times.error_ns


def test_no_mark_is_before_the_call_that_asked_for_it():
    """An anchor that is off is put right by the marks, and the error says by how much."""
    world = World(drift=0.0, look_ns=0)
    clock = world.clock()
    instant = world.now + S
    world.now += 2 * S
    times = clock.place([instant], [world.device(instant - 40_000)])
    assert times == DeviceTimes([instant], 40_000)


@given(
    drift=st.floats(-90e-6, 90e-6),
    gaps=st.lists(st.integers(0, 50_000_000), min_size=1, max_size=40),
    lags=st.data(),
)
def test_the_truth_lies_within_the_stated_error(drift, gaps, lags):
    """Whatever the launch latencies and the drift, no mark is further away than is said."""
    world = World(drift=drift)
    clock = world.clock()
    asked, happened, host, stream = [], [], world.now, 0
    for gap in gaps:
        host += gap
        stream = max(stream, host + lags.draw(st.integers(0, 20_000_000)))  # a stream's order
        asked.append(host)
        happened.append(stream)
    world.now = max(host, stream) + 1_000_000
    times = clock.place(asked, [world.device(t) for t in happened])
    slack = len(gaps) + 2  # each distance is rounded to a nanosecond
    for mapped, true, before in zip(times.times_ns, happened, asked, strict=True):
        assert abs(mapped - true) <= times.error_ns + slack
        assert mapped >= before
    assert times.times_ns == sorted(times.times_ns)


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

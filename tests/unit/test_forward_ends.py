"""Ends of forwards that were not marked: worked out from those that were."""

import pytest

from llmtrace.recording.build import build_record
from llmtrace.recording.device_recorder import DeviceRecorder
from llmtrace.recording.request import FinishedRequest, RequestInfo

STEPS = 40


@pytest.fixture
def run(fake_clock, fake_device):
    """Return what runs a request and gives its record, and where each forward really ended.

    Each step says by how much the device is behind when the forward has returned, how long Python
    then takes until the token, and how far behind the device is there.
    """

    def run(steps):
        recorder = DeviceRecorder("model", 1000, fake_clock.now_ns, fake_device)
        truth = []
        begun = fake_clock.now_ns
        for forward_lag, python, token_lag in steps:
            recorder.forward_started()
            fake_clock.advance(10)
            fake_device.lag_ms = forward_lag
            recorder.forward_ended()
            truth.append((fake_clock.now_ns - begun) / 1e9 + forward_lag / 1e3)
            fake_clock.advance(python)
            fake_device.lag_ms = token_lag
            recorder.token()
            fake_clock.advance(1)
        marks = recorder.close(fake_clock.now_ns)
        marks.device.read(marks)
        assert fake_device.out == []
        return build_record(
            FinishedRequest(RequestInfo(strategy="greedy"), marks, 0, None, None)
        ), truth

    return run


def ends(record):
    return [step.forward_end_s for step in record.steps]


def test_where_the_device_waits_for_python(run):
    """The device is done 40 us after the host, each time: also where nobody marked it."""
    record, truth = run([(0.04, 0.2, 0.01)] * STEPS)
    assert ends(record) == pytest.approx(truth, abs=1e-9)
    assert record.host_bound_ratio == 1
    assert [step.launch_lead_s for step in record.steps] == pytest.approx([40e-6] * STEPS)


def test_where_python_waits_for_the_device(run):
    """However far behind the device is, the token follows the forward after the same time."""
    behind = [5 + (i * 7919 % 13) / 10 for i in range(STEPS)]
    record, truth = run([(b, 0.3, b - 0.3 + 0.15) for b in behind])
    assert ends(record) == pytest.approx(truth, abs=1e-9)
    assert record.host_bound_ratio == 0


def test_a_halt_of_python_after_the_forward_is_not_the_devices(run):
    """A collection of garbage before the token leaves the forward's end where it was."""
    steps = [(0.04, 0.2, 0.01)] * STEPS
    steps[21] = (0.04, 30, 0.01)
    record, truth = run(steps)
    assert record.steps[21].forward_end_s == pytest.approx(truth[21], abs=1e-9)
    assert record.steps[21].launch_lead_s == pytest.approx(40e-6)


def test_nor_is_it_where_python_waits_for_the_device_otherwise(run):
    """The device had long been done when the token was selected, though it is the slower one."""
    steps = [(4.0, 0.2, 4.0 - 0.2 + 0.1)] * STEPS
    steps[21] = (4.0, 30, 0.01)
    record, truth = run(steps)
    assert ends(record) == pytest.approx(truth, abs=1e-9)
    assert record.steps[21].launch_lead_s == pytest.approx(4e-3)


def test_both_times_of_a_token_are_kept(run):
    """Where a token's time is the device's, Python's is there beside it."""
    record, _ = run([(4.0, 0.2, 3.9)] * 3)
    late = [step.end_s - step.host_end_s for step in record.steps]
    assert late == pytest.approx([3.9e-3] * 3)


def test_both_in_one_request(run):
    """A prompt grows until the device is the slower one: each step as it is."""
    waits = (0.04, 0.2, 0.01)
    behind = (4.0, 0.2, 4.0 - 0.2 + 0.1)
    record, truth = run([waits] * 20 + [behind] * 30)
    assert ends(record) == pytest.approx(truth, abs=1e-9)
    assert record.host_bound_ratio == pytest.approx(19 / 49)


def test_a_regime_never_marked_is_bounded_by_what_is_known(run):
    """A busy step between marked idle ones: no later than its token, no sooner than the host."""
    steps = [(0.04, 0.2, 0.01)] * 30
    steps[18] = (4.0, 0.2, 3.9)
    record, _ = run(steps)
    step = record.steps[18]
    host_end = step.forward_start_s + step.host_duration_s
    assert host_end <= step.forward_end_s <= step.end_s
    assert step.forward_end_s == pytest.approx(step.end_s - 0.17e-3, abs=1e-9)


def test_events_are_few(run, fake_device):
    """One for each token, one at the start, and one forward's end in eight after the first."""
    run([(0.04, 0.2, 0.01)] * STEPS)
    later = sum(1 for forward in range(9, STEPS) if forward % 8 == 0)
    assert fake_device.made == 1 + STEPS + 9 + later

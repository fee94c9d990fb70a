"""A forward's way over several devices: fake devices, each with a clock of its own."""

import pytest

from llmtrace.recording.build import build_record
from llmtrace.recording.device_recorder import SeveralDevicesRecorder
from llmtrace.recording.request import FinishedRequest, RequestInfo
from llmtrace.telemetry.attributes import request_attributes, step_attributes


@pytest.fixture
def second_device(fake_clock, fake_device):
    """A device that reaches its marks later than the first."""
    other = type(fake_device)(fake_clock)
    other.lag_ms = 3.0
    return other


@pytest.fixture
def run(fake_clock, fake_device, second_device):
    """Return what runs steps of a model that lies on two devices, and the record made of them."""

    def run(steps=3, limit=100, broken=None):
        begun = fake_clock.now_ns
        recorder = SeveralDevicesRecorder("model", limit, begun, fake_device)
        recorder.timers = {0: fake_device, 1: second_device}
        for step in range(steps):
            recorder.forward_started()
            follows = getattr(recorder, "follows_devices", False)
            if follows:
                recorder.leaves()
                recorder.comes_to(0)
            fake_clock.advance(10)
            if follows:
                recorder.leaves()
            fake_clock.advance(2)  # the hand-over
            if follows:
                recorder.comes_to(1)
            if step == broken:
                recorder.forward_failed()
                break
            fake_clock.advance(20)
            recorder.forward_ended()
            fake_clock.advance(1)
            recorder.token()
            fake_clock.advance(5)
        marks = recorder.close(fake_clock.now_ns)
        marks.device.read(marks)
        return build_record(FinishedRequest(RequestInfo(strategy="greedy"), marks, 0, None, None))

    return run


def test_each_device_has_its_part_of_each_step(run, fake_device, second_device):
    """Parts begin where the data came and end where the work did; the gap is the hand-over."""
    record = run()
    assert [len(step.legs) for step in record.steps] == [2, 2, 2]
    first, second = record.steps[0].legs
    assert (first.device, second.device) == ("cuda:0", "cuda:1")
    # The prefill begins on the first device 1 ms after it was asked to; it is done at 10 + 1.
    assert (first.start_s, first.end_s) == pytest.approx((0.001, 0.011))
    assert (second.start_s, second.end_s) == pytest.approx((0.015, 0.035))
    # A decode step's first part begins with its forward call.
    first, second = record.steps[1].legs
    assert (first.start_s, first.end_s) == pytest.approx((0.038, 0.049))
    assert (second.start_s, second.end_s) == pytest.approx((0.053, 0.073))
    assert record.devices == ("cuda:0", "cuda:1")
    assert record.devices_prefill_s == pytest.approx((0.010, 0.020))
    assert record.devices_decode_s == pytest.approx((0.011, 0.020))
    assert record.handover_s == pytest.approx(0.004)
    assert fake_device.out == second_device.out == []


def test_they_are_in_the_attributes(run):
    """The request says each device's time, each step its parts, from the step's start."""
    record = run()
    request = request_attributes(record)
    assert request["llmtrace.devices"] == ("cuda:0", "cuda:1")
    assert request["llmtrace.devices.decode"] == pytest.approx((0.011, 0.020))
    assert request["llmtrace.devices.handover"] == pytest.approx(0.004)
    step = step_attributes(record.steps[1])
    assert step["llmtrace.legs.devices"] == ("cuda:0", "cuda:1")
    begun = record.steps[1].start_s
    assert step["llmtrace.legs.offsets"] == pytest.approx([0.038 - begun, 0.053 - begun])
    assert step["llmtrace.legs.durations"] == pytest.approx([0.011, 0.020])
    assert step["llmtrace.forward.offset"] == pytest.approx(0.038 - begun)


def test_a_device_that_did_not_get_there_leaves_no_parts(run, second_device, fake_device):
    """Half a way would mislead: the steps stay, without parts, and no mark is lost."""
    second_device.finished = False
    record = run()
    assert len(record.steps) == 3
    assert all(step.legs == () for step in record.steps)
    assert (record.devices, record.handover_s) == ((), None)
    assert record.clock == "fake"
    assert fake_device.out == second_device.out == []


def test_a_forward_that_fails_on_the_second_device(run, fake_device, second_device):
    """The steps before it keep their parts; its own marks go back to their pools."""
    record = run(broken=2)
    assert [len(step.legs) for step in record.steps] == [2, 2]
    assert fake_device.out == []
    assert len(second_device.out) <= 1  # the one part under way, which nobody waits for


def test_past_the_limit_parts_are_not_followed(run, fake_device, second_device):
    """Memory stays bounded: steps beyond the limit only count."""
    record = run(steps=30, limit=3)
    assert len(record.steps) == 3
    assert record.steps_truncated
    assert all(len(step.legs) == 2 for step in record.steps)
    assert second_device.made < 12
    assert fake_device.out == second_device.out == []

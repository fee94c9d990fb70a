"""The background thread gives way to requests: what it waits for, and for how long."""

from __future__ import annotations

import pytest

from llmtrace.recording import giving_way as module
from llmtrace.recording.device_recorder import DeviceRecorder
from llmtrace.recording.giving_way import GivingWay


class Request:
    def __init__(self, *, in_prefill=False, awaits_device=False):
        self.in_prefill, self.awaits_device = in_prefill, awaits_device


@pytest.fixture
def slept(monkeypatch):
    times = []
    monkeypatch.setattr(module.time, "sleep", times.append)
    return times


def test_work_begins_where_nobody_needs_python():
    request = Request(in_prefill=True)
    way = GivingWay(lambda: [request])
    assert way.makes_room(0)
    assert way.makes_room(module.GRACE_S)
    assert not way.makes_room(module.LONGEST_WAIT_S)
    request.in_prefill = False
    assert way.makes_room(module.GRACE_S)
    assert not way.makes_room(module.LONGEST_WAIT_S)
    request.awaits_device = True
    assert not way.makes_room(module.GRACE_S)
    assert not GivingWay(list).makes_room(module.GRACE_S)


def test_one_request_that_needs_python_is_enough(slept):
    way = GivingWay(lambda: [Request(awaits_device=True), Request()])
    assert way.makes_room(module.GRACE_S)
    way.pause()
    assert slept == [module.LOOK_AGAIN_S] * module.LOOKS + [module.BREATHER_S]


def test_work_goes_on_at_once_while_a_request_waits_for_its_device(slept):
    request = Request(awaits_device=True)
    way = GivingWay(lambda: [request])
    way.pause()
    assert slept == []


def test_a_moment_is_waited_for_and_taken(slept, monkeypatch):
    request = Request()
    way = GivingWay(lambda: [request])

    def sleep(seconds):
        slept.append(seconds)
        request.awaits_device = len(slept) == 2

    monkeypatch.setattr(module.time, "sleep", sleep)
    way.pause()
    assert slept == [module.LOOK_AGAIN_S] * 2
    way.pause()
    assert len(slept) == 2


def test_where_no_moment_comes_it_is_not_looked_for_again(slept):
    way = GivingWay(lambda: [Request()])
    way.pause()
    looked = len(slept)
    for _ in range(module.LOOKS_NEXT_AFTER):
        assert not way.makes_room(module.GRACE_S)
        way.pause()
        way.done()
    assert slept[looked:] == [module.BREATHER_S] * module.LOOKS_NEXT_AFTER
    assert way.makes_room(module.GRACE_S)
    way.pause()
    assert len(slept) == 2 * looked + module.LOOKS_NEXT_AFTER


def test_without_requests_only_other_threads_get_a_turn(slept):
    GivingWay(list).pause()
    assert slept == [0]


class Timer:
    def __init__(self):
        self.reached = set()
        self.made = 0

    def mark(self):
        self.made += 1
        return self.made

    def passed(self, mark):
        return mark in self.reached


def test_a_request_waits_for_its_device_from_a_token_until_that_is_reached():
    timer = Timer()
    recorder = DeviceRecorder(object(), 100, 0, timer)
    assert not recorder.awaits_device()
    recorder.forward_started()
    recorder.forward_ended()
    assert not recorder.awaits_device()  # it has yet to choose a token
    recorder.token()
    assert recorder.awaits_device()
    timer.reached.add(recorder.token_events[-1])
    assert not recorder.awaits_device()
    recorder.forward_started()
    timer.reached.clear()
    assert not recorder.awaits_device()

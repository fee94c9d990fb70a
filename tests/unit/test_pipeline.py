"""From a finished request to its subscribers, on the background thread."""

import os
import threading
import time

import pytest

from llmtrace.config import Config
from llmtrace.guard import MAX_FAILURES, guard
from llmtrace.recording import giving_way
from llmtrace.recording import pipeline as module
from llmtrace.recording.pipeline import Pipeline
from llmtrace.recording.recorder import Marks
from llmtrace.recording.request import RequestInfo
from llmtrace.recording.stream import StreamTimes


class Span:
    trace_id = "a" * 32
    span_id = "b" * 16
    queued_since_unix_ns = None

    def __init__(self):
        self.abandoned = 0

    def leave(self):
        pass

    def abandon(self):
        self.abandoned += 1


class Telemetry:
    """Keeps what it is given."""

    def __init__(self):
        self.emitted = []
        self.settled = []
        self.on = False

    def active(self):
        return self.on

    def emit(self, record, info, span):
        self.emitted.append(record)

    def settle(self, deadline):
        self.settled.append(deadline)


@pytest.fixture
def telemetry():
    return Telemetry()


@pytest.fixture
def pipeline(telemetry):
    return Pipeline(Config(), telemetry)


def submit(pipeline, tokens=1, stream=None, **info):
    marks = Marks(0, 10**9, [], [], [10**8] * tokens, [0] * tokens)
    pipeline.submit(RequestInfo(stream=stream, **info), marks, 10**18, Span())


def names(records):
    return [r.strategy for r in records]


def test_a_finished_request_reaches_subscribers_and_telemetry(pipeline, telemetry):
    """Everyone gets the same record, off the request's thread."""
    seen, threads = [], []
    pipeline.subscribe(lambda r: (seen.append(r), threads.append(threading.current_thread())))
    submit(pipeline, strategy="greedy")
    assert pipeline.drain(5)
    (record,) = seen
    assert record is telemetry.emitted[0]
    assert (record.strategy, record.trace_id, record.span_id) == ("greedy", "a" * 32, "b" * 16)
    assert threads[0] is not threading.current_thread()


def test_requests_are_dealt_with_in_order(pipeline, telemetry):
    """Without streamers, first finished is first out."""
    for i in range(20):
        submit(pipeline, strategy=str(i))
    assert pipeline.drain(5)
    assert names(telemetry.emitted) == [str(i) for i in range(20)]


def test_a_failing_subscriber_stops_nobody(pipeline, telemetry, caplog):
    """However often it fails, other subscribers and telemetry get every record."""
    seen = []
    pipeline.subscribe(lambda _: 1 / 0)
    pipeline.subscribe(seen.append)
    for _ in range(MAX_FAILURES + 5):
        submit(pipeline)
    assert pipeline.drain(5)
    assert len(seen) == len(telemetry.emitted) == MAX_FAILURES + 5
    assert guard.failures == 0
    assert pipeline.listening()
    assert len(caplog.records) == 1


@pytest.mark.usefixtures("provokes_internal_errors")
def test_failing_telemetry_does_not_stop_the_thread(pipeline, telemetry):
    """A record that cannot be emitted is lost, the next one is not."""
    seen = []
    pipeline.subscribe(seen.append)
    telemetry.emit = lambda *_: 1 / 0
    submit(pipeline)
    submit(pipeline)
    assert pipeline.drain(5)
    assert len(seen) == 2
    assert guard.failures == 2


@pytest.mark.usefixtures("provokes_internal_errors")
def test_a_record_that_cannot_be_built_does_not_stop_the_thread(pipeline, telemetry):
    """Marks that make no sense cost their own request only."""
    span = Span()
    pipeline.submit(RequestInfo(), Marks(0, 1, [], [], None, None), 0, span)
    submit(pipeline)
    assert pipeline.drain(5)
    assert len(telemetry.emitted) == 1
    assert guard.failures == 1
    assert span.abandoned == 1


class Other:
    """Another request under way."""

    info = RequestInfo()
    in_prefill = True
    awaits_device = True

    def abandon(self):
        pass


def test_a_finished_request_makes_room_for_a_prefill(pipeline, telemetry, monkeypatch):
    """It is dealt with when the other request has its first token, after a while, or on demand."""
    other = Other()
    pipeline.begin(other)
    monkeypatch.setattr(giving_way, "LONGEST_WAIT_S", 3600)
    submit(pipeline, strategy="awaited")
    assert pipeline.drain(5, hurry=False)
    seen = threading.Event()
    pipeline.subscribe(lambda _: seen.set())
    submit(pipeline, strategy="unawaited")
    assert names(telemetry.emitted) == ["awaited"]
    other.in_prefill = False
    assert seen.wait(5)


class Device:
    """Marks on a device that passes them when it is told to."""

    def __init__(self):
        self.done = threading.Event()
        self.asked = threading.Event()
        self.read_marks = []

    def passed(self, marks):
        self.asked.set()
        return self.done.is_set()

    def read(self, marks):
        self.read_marks.append(marks)
        marks.clock = "fake" if self.done.is_set() else "host"


def on_device(pipeline, device):
    marks = Marks(0, 10**9, [], [], [10**8], [0], device=device)
    pipeline.submit(RequestInfo(strategy="device"), marks, 10**18, Span())


def test_a_request_waits_for_its_device_and_others_do_not(pipeline, telemetry):
    """Marks are read once the device has passed them; a request on the host goes ahead."""
    device = Device()
    on_device(pipeline, device)
    assert device.asked.wait(5)
    submit(pipeline, strategy="host")
    assert not pipeline.drain(0.2)
    assert names(telemetry.emitted) == ["host"]
    assert device.read_marks == []
    device.done.set()
    assert pipeline.drain(5)
    assert names(telemetry.emitted) == ["host", "device"]
    assert telemetry.emitted[1].clock == "fake"
    assert len(device.read_marks) == 1


def test_a_device_that_never_gets_there_has_its_time(pipeline, telemetry, monkeypatch):
    """Then the request is told on the host's clock."""
    monkeypatch.setattr(module, "DEVICE_WAIT_S", 0.05)
    on_device(pipeline, Device())
    assert pipeline.drain(5)
    assert telemetry.emitted[0].clock == "host"


def test_unsubscribing_ends_one_subscription(pipeline):
    """Of two subscriptions of one function, ending one leaves the other; twice is as once."""
    seen = []

    def callback(record):
        seen.append(record)

    first, second = pipeline.subscribe(callback), pipeline.subscribe(callback)
    first()
    first()
    submit(pipeline)
    assert pipeline.drain(5)
    assert len(seen) == 1
    second()
    assert not pipeline.listening()


def test_it_listens_while_someone_would_see_a_record(pipeline, telemetry):
    """A subscriber or a destination is reason enough to record."""
    assert not pipeline.listening()
    unsubscribe = pipeline.subscribe(print)
    assert pipeline.listening()
    unsubscribe()
    assert not pipeline.listening()
    telemetry.on = True
    assert pipeline.listening()


@pytest.mark.usefixtures("provokes_internal_errors")
def test_a_destination_that_fails_does_not_reach_the_application(pipeline, telemetry):
    """Looking where telemetry goes may fail: then nothing is recorded, and nothing is raised."""
    telemetry.active = lambda: 1 / 0
    assert pipeline.listening() is False


@pytest.mark.usefixtures("provokes_internal_errors")
def test_it_stops_listening_once_the_guard_has_given_up(pipeline):
    """After too many failures of ours nothing more is recorded."""
    pipeline.subscribe(print)
    guard.failures = MAX_FAILURES
    assert not pipeline.listening()


def test_a_late_consumer_is_waited_for(pipeline, telemetry):
    """A request goes on as soon as its streamer's consumer has it all, and others overtake it."""
    stream = StreamTimes(pull=True)
    submit(pipeline, stream=stream, strategy="late")
    submit(pipeline, strategy="other")
    deadline = time.monotonic() + 5
    while not telemetry.emitted and time.monotonic() < deadline:
        time.sleep(0.005)
    assert names(telemetry.emitted) == ["other"]
    stream.item(0, 10**8, visible=True, arrived=None)
    stream.ended = True
    while len(telemetry.emitted) < 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert names(telemetry.emitted) == ["other", "late"]
    assert telemetry.emitted[1].first_delivery_s == pytest.approx(0.1)


def test_a_consumer_that_never_comes_is_not_waited_for_longer(pipeline, telemetry, monkeypatch):
    """After ``CONSUMER_WAIT_S`` the record is made without the delivery."""
    monkeypatch.setattr(module, "CONSUMER_WAIT_S", 0.1)
    begun = time.monotonic()
    submit(pipeline, stream=StreamTimes(pull=True))
    while not telemetry.emitted and time.monotonic() < begun + 5:
        time.sleep(0.005)
    assert time.monotonic() - begun >= 0.1
    assert telemetry.emitted[0].first_delivery_s is None


def test_draining_does_not_wait_for_consumers(pipeline, telemetry, monkeypatch):
    """At a flush or at exit a consumer that is late has lost its chance."""
    monkeypatch.setattr(module, "CONSUMER_WAIT_S", 600)
    submit(pipeline, stream=StreamTimes(pull=True))
    assert pipeline.drain(5)
    assert len(telemetry.emitted) == 1


def test_two_who_drain_do_not_hinder_each_other(pipeline, telemetry, monkeypatch):
    """One that gives up leaves the other's hurry in force."""
    monkeypatch.setattr(module, "CONSUMER_WAIT_S", 600)
    go = threading.Event()
    pipeline.subscribe(lambda _: go.wait(5))
    submit(pipeline)
    drained = []
    other = threading.Thread(target=lambda: drained.append(pipeline.drain(5)))
    other.start()
    assert not pipeline.drain(0.02)
    submit(pipeline, stream=StreamTimes(pull=True))
    go.set()
    other.join(5)
    assert drained == [True]
    assert len(telemetry.emitted) == 2


def test_draining_gives_up_in_time(pipeline):
    """A subscriber that hangs does not hang who drains."""
    go = threading.Event()
    pipeline.subscribe(lambda _: go.wait(5))
    submit(pipeline)
    assert not pipeline.drain(0.02)
    go.set()
    assert pipeline.drain(5)


def test_a_subscriber_may_drain(pipeline):
    """Draining in the background thread itself does nothing, instead of waiting for itself."""
    drained = []
    pipeline.subscribe(lambda _: drained.append(pipeline.drain(5)))
    submit(pipeline)
    assert pipeline.drain(5)
    assert drained == [True]


def test_draining_nothing_is_done_at_once(pipeline):
    """Without a request there is nothing to wait for, nor a thread to make."""
    assert pipeline.drain(0)
    assert pipeline._thread is None


def test_flushing_settles_after_draining(pipeline, telemetry):
    """Records are emitted before telemetry is told to export."""
    telemetry.settle = lambda _: telemetry.settled.append(len(telemetry.emitted))
    submit(pipeline)
    assert pipeline.flush(5)
    assert telemetry.settled == [1]


def test_too_many_waiting_drop_the_oldest(pipeline, telemetry, monkeypatch, caplog):
    """Memory is bounded: the oldest go, with one warning."""
    monkeypatch.setattr(module, "MAX_WAITING", 3)
    go, busy = threading.Event(), threading.Event()
    pipeline.subscribe(lambda _: (busy.set(), go.wait(5)))
    submit(pipeline, strategy="0")
    assert busy.wait(5)
    for i in range(1, 7):
        submit(pipeline, strategy=str(i))
    go.set()
    assert pipeline.drain(5)
    assert names(telemetry.emitted) == ["0", "4", "5", "6"]
    (line,) = caplog.records
    assert "the oldest are dropped" in line.getMessage()


def test_eight_threads_lose_nothing(pipeline, telemetry):
    """Requests that finish at once in many threads all arrive, each once."""
    start = threading.Barrier(8)

    def work(number):
        start.wait()
        for i in range(100):
            submit(pipeline, strategy=f"{number}.{i}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pipeline.drain(10)
    arrived = names(telemetry.emitted)
    assert len(arrived) == len(set(arrived)) == 800
    for number in range(8):
        assert [a for a in arrived if a.startswith(f"{number}.")] == [
            f"{number}.{i}" for i in range(100)
        ]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_a_thread_of_its_own(pipeline, telemetry):
    """A child, forked while requests wait and the lock is held, starts clean and can submit."""
    go, busy = threading.Event(), threading.Event()
    parent = os.getpid()
    pipeline.subscribe(lambda _: os.getpid() != parent or (busy.set(), go.wait(5)))
    submit(pipeline, strategy="parent's")
    submit(pipeline, strategy="parent's")
    assert busy.wait(5)
    reading, writing = os.pipe()
    with pipeline._changed:
        child = os.fork()
    if child == 0:
        telemetry.emitted.clear()
        clean = pipeline.drain(0)
        submit(pipeline, strategy="child's")
        drained = pipeline.drain(5)
        os.write(writing, f"{clean} {drained} {names(telemetry.emitted)}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    assert said == """True True ["child's"]"""
    go.set()
    assert pipeline.drain(5)
    assert names(telemetry.emitted) == ["parent's"] * 2

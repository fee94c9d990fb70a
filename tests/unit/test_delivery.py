"""Late text: whose fault it was, from times that are exactly as a test says."""

import pytest

from llmtrace.recording.delivery import delivery_findings
from llmtrace.recording.request import RequestInfo
from llmtrace.recording.stream import MAX_LATE, StreamTimes

MS = 1_000_000
GAPS = [0.020] * 20


def findings(stream, gaps=GAPS, duration=1.0):
    found = delivery_findings(RequestInfo(stream=stream), gaps, duration)
    return {finding.code: finding.evidence for finding in found}


def read(ready, turns):
    """A stream whose items were ready at *ready* ms, read in *turns* of (asked, taken, arrived)."""
    stream = StreamTimes(pull=True)
    stream.ready.extend(round(at * MS) for at in ready)
    for asked, taken, arrived in turns:
        stream.item(round(asked * MS), round(taken * MS), visible=True, arrived=arrived)
    return stream


def test_a_consumer_that_waits_for_each_item_is_not_late():
    """Asked before, taken 1 ms after it was ready: nothing to be said, nothing kept."""
    ready = range(100, 500, 20)
    stream = read(ready, [(at - 10, at + 1, None) for at in ready])
    stream.ended = True
    assert findings(stream) == {}
    assert stream.late == []


def test_a_stall_after_the_first_token_is_the_consumers():
    """500 ms of log I/O after item 1: items 2 to 24 are late, the away time is counted once."""
    ready = [100 + 20 * i for i in range(40)]
    turns = [(50, 101, None)]
    at = 601
    for when in ready[1:]:
        turns.append((at, max(at, when) + 0.1, None))
        at = max(at, when) + 0.2
    stream = read(ready, turns)
    stream.ended = True
    evidence = findings(stream)["slow_consumer"]
    assert evidence.startswith("the consumer was away for 0.48 s while text item 2 lay ready; 0.48")
    assert "late by up to 0.48 s" in evidence


def test_a_consumer_that_is_always_a_little_slow():
    """30 ms for each item that comes every 20: no single stall, but text is ever later."""
    ready = [100 + 20 * i for i in range(60)]
    turns = [(100 + 30 * i, 100 + 30 * i + 0.1, None) for i in range(60)]
    stream = read(ready, turns)
    stream.ended = True
    assert "late by up to 0.59 s" in findings(stream)["slow_consumer"]


def test_a_slow_model_is_not_a_slow_consumer():
    """Tokens 400 ms apart, each taken 150 ms late: the model has not made the next one."""
    ready = [400 * i for i in range(1, 10)]
    stream = read(ready, [(at + 150, at + 151, None) for at in ready])
    stream.ended = True
    assert findings(stream, gaps=[0.4] * 8, duration=4.0) == {}


def test_a_loop_that_does_not_run_while_its_consumer_waits():
    """Asked in time, but the loop ran 300 ms later: the loop's, and not the consumer's."""
    turns = [(90, 400, False), (400, 400.1, True), (400.2, 400.3, True)]
    stream = read([100, 120, 140], turns)
    stream.ended = True
    found = findings(stream)
    assert list(found) == ["event_loop_blocked"]
    assert found["event_loop_blocked"].startswith("the loop did not run for 0.30 s at text item 1;")


def test_a_consumer_that_blocks_its_own_loop():
    """It asks late and nothing has arrived: in the meantime the loop did not run."""
    turns = [(90, 101, False), (601, 602, False), (602, 602.1, True)]
    stream = read([100, 120, 140], turns)
    stream.ended = True
    assert list(findings(stream)) == ["event_loop_blocked"]


def test_a_consumer_that_awaits_something_slow():
    """It asks late and items have arrived: the loop ran, the consumer was elsewhere."""
    turns = [(90, 101, False), (601, 601.1, True), (601.2, 601.3, True)]
    stream = read([100, 120, 140], turns)
    stream.ended = True
    assert list(findings(stream)) == ["slow_consumer"]


def test_a_consumer_that_does_not_come_back():
    """One of four items taken, 700 ms ago: the rest lies there."""
    stream = read([100, 120, 140, 160], [(90, 101, None)])
    stream.seen_ns = 820 * MS
    assert findings(stream)["slow_consumer"] == "3 of 4 items were not taken within 0.70 s"
    stream.ended = True
    assert findings(stream) == {}


def test_a_stream_that_nobody_reads_tells_nothing():
    """No item was ever taken: there is no consumer to be slow."""
    stream = read([100, 120], [])
    stream.seen_ns = 9_000 * MS
    assert findings(stream) == {}


def test_items_of_unknown_origin_tell_nothing():
    """More items were taken than were seen to be put: how late they were is not known."""
    stream = read([100], [(500, 600, None), (800, 801, None)])
    assert stream.unmatched
    assert findings(stream) == {}


def test_the_prompts_item_is_no_token():
    """The echo of the prompt may lie as long as it likes."""
    stream = StreamTimes(pull=True, prompt_items=1)
    stream.ready.append(0)
    stream.item(900 * MS, 901 * MS, visible=True, arrived=None)
    assert stream.late == []
    assert stream.delivered_ns is None


def test_memory_is_bounded():
    """Of late items the first ones are kept."""
    stream = read([0] * 2 * MAX_LATE, [(500, 500, None)] * 2 * MAX_LATE)
    assert len(stream.late) == MAX_LATE


@pytest.mark.parametrize(
    ("puts", "found"),
    [
        ([1] * 20, []),  # 20 ms of 1 s
        ([1] * 5 + [400] + [1] * 5, ["slow_consumer"]),  # one stall
        ([15] * 20, ["slow_consumer"]),  # 300 ms of 1 s
        ([5] * 15, []),  # less than anybody sees
    ],
)
def test_a_streamer_whose_put_is_slow_is_no_slow_model(puts, found):
    """What happens inside ``put`` holds generation up; the evidence says where."""
    stream = StreamTimes(pull=False)
    for took in puts:
        stream.put(took * MS)
    said = findings(stream)
    assert list(said) == found
    if 400 in puts:
        assert "0.40 s at token 6, 0.41 s in all of 1.00 s" in said["slow_consumer"]


@pytest.mark.parametrize(
    ("tasks", "duration", "found"),
    [(None, 5.0, []), (0, 5.0, []), (3, 0.05, []), (3, 5.0, ["event_loop_blocked"])],
)
def test_generate_in_the_event_loops_thread(tasks, duration, found):
    """It is said where other tasks had to wait, and for long enough to be seen."""
    info = RequestInfo(loop_tasks=tasks)
    assert [f.code for f in delivery_findings(info, GAPS, duration)] == found

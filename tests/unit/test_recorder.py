"""The hot path's marks, on a clock and a device that go as the test says."""

import copy

import pytest

from llmtrace.recording.device_recorder import DeviceRecorder
from llmtrace.recording.recorder import Recorder

START_MS = 0.0


@pytest.fixture
def host_recorder(fake_clock):
    """Return what makes a recorder on the host clock."""
    return lambda limit=100: Recorder("model", limit, fake_clock.now_ns)


@pytest.fixture
def device_recorder(fake_clock, fake_device):
    """Return what makes a recorder on the fake device."""
    return lambda limit=100: DeviceRecorder("model", limit, fake_clock.now_ns, fake_device)


@pytest.fixture(params=["host", "device"])
def any_recorder(request, host_recorder, device_recorder):
    """Return what makes a recorder, once on each kind of clock."""
    return host_recorder if request.param == "host" else device_recorder


@pytest.fixture
def loop(fake_clock):
    """Return the moves of a generation loop."""

    class Loop:
        def forward(self, recorder, ms=10):
            recorder.forward_started()
            fake_clock.advance(ms)
            recorder.forward_ended()

        def step(self, recorder, ms=10, select_ms=2):
            self.forward(recorder, ms)
            fake_clock.advance(select_ms)
            recorder.token()
            fake_clock.advance(1)

        def close(self, recorder):
            marks = recorder.close(fake_clock.now_ns)
            if marks.device is not None:
                marks.device.read(marks)
            return marks

    return Loop()


def ms(times_ns):
    return [t / 1e6 - 1_000 for t in times_ns]


def test_a_greedy_loop_marks_each_forward_and_each_token(host_recorder, loop):
    """Each step leaves the start and end of its forward and the time of its token."""
    recorder = host_recorder()
    for _ in range(3):
        loop.step(recorder)
    marks = loop.close(recorder)
    assert ms(marks.forward_starts) == [0, 13, 26]
    assert ms(marks.forward_ends) == [10, 23, 36]
    assert ms(marks.tokens) == [12, 25, 38]
    assert marks.token_forwards == [1, 2, 3]
    assert (marks.clock, marks.device_forward_ends, marks.clock_error_ns) == ("host", None, None)
    assert (marks.more_tokens, marks.more_forwards, marks.last_mark) == (0, 0, None)
    assert ms([marks.start_ns, marks.end_ns]) == [0, 39]


def test_criteria_consulted_twice_a_step_count_once(any_recorder, loop, fake_clock):
    """A second look at the criteria, before or after the forward, marks no token."""
    recorder = any_recorder()
    recorder.token()  # the draft, before any forward
    for _ in range(2):
        loop.step(recorder)
        recorder.token()
        fake_clock.advance(5)
        recorder.token()
    marks = loop.close(recorder)
    assert marks.token_forwards == [1, 2]
    assert len(marks.tokens) == 2


def test_a_streamer_handed_the_token_first_gives_its_time(host_recorder, loop, fake_clock):
    """A token put before the criteria see it was selected when it was put."""
    recorder = host_recorder()
    loop.forward(recorder)
    fake_clock.advance(1)
    recorder.put()
    fake_clock.advance(5)
    recorder.token()
    marks = loop.close(recorder)
    assert ms(marks.tokens) == [11]
    assert ms(marks.puts) == [11]
    assert marks.put_forwards == [1]


def test_a_streamer_handed_the_token_last_leaves_its_time(host_recorder, loop, fake_clock):
    """A token put after the criteria have seen it keeps the criteria's time."""
    recorder = host_recorder()
    loop.step(recorder)
    recorder.put()
    marks = loop.close(recorder)
    assert ms(marks.tokens) == [12]
    assert ms(marks.puts) == [13]


def test_a_forward_that_raises_is_no_forward(any_recorder, loop, fake_clock):
    """The failed call leaves nothing, and a later one is paired with its own start."""
    recorder = any_recorder()
    recorder.forward_started()
    fake_clock.advance(4)
    assert recorder.in_forward
    recorder.forward_failed()
    assert not recorder.in_forward
    loop.step(recorder)
    marks = loop.close(recorder)
    assert ms(marks.forward_starts) == [4]
    assert ms(marks.forward_ends) == [14]


def test_a_request_that_ends_inside_a_forward_leaves_whole_pairs(any_recorder, loop):
    """A forward that never returned has no start in the marks either."""
    recorder = any_recorder()
    loop.step(recorder)
    recorder.forward_started()
    marks = loop.close(recorder)
    assert len(marks.forward_starts) == len(marks.forward_ends) == 1


def test_a_surplus_forward_is_no_token(any_recorder, loop):
    """A forward after the last token, as of a late stop check, leaves the tokens alone."""
    recorder = any_recorder()
    for _ in range(4):
        loop.step(recorder)
    loop.forward(recorder)
    marks = loop.close(recorder)
    assert len(marks.forward_ends) == 5
    assert marks.token_forwards == [1, 2, 3, 4]


def test_a_forward_only_seen_to_have_ended_takes_no_time(any_recorder, loop, fake_clock):
    """Where processors stand in for forwards, no duration is made up between two clock reads."""

    class TickingClock:
        def __call__(self):
            fake_clock.now_ns += 300
            return fake_clock.now_ns

    import llmtrace.recording.recorder as module

    module.now = TickingClock()  # undone by the fixture, which patched it first
    recorder = any_recorder()
    recorder.sees_forwards = False
    recorder.forward_seen()
    recorder.token()
    marks = recorder.close(fake_clock.now_ns)
    assert marks.forward_starts == marks.forward_ends


def test_chunks_of_a_prefill_belong_to_the_first_token(any_recorder, loop):
    """Several forwards before a token are counted up to it."""
    recorder = any_recorder()
    for _ in range(3):
        loop.forward(recorder)
    recorder.token()
    loop.step(recorder)
    marks = loop.close(recorder)
    assert marks.token_forwards == [3, 4]


def test_own_marks_may_be_several_after_one_forward(any_recorder, loop):
    """``token()`` of an own loop counts each time, with as many tokens as it says."""
    recorder = any_recorder()
    loop.forward(recorder)
    recorder.select(1)
    recorder.select(3)
    loop.forward(recorder)
    recorder.select(2)
    marks = loop.close(recorder)
    assert marks.token_forwards == [1, 1, 2]
    assert marks.token_counts == [1, 3, 2]


@pytest.mark.parametrize("count", [0, -1])
def test_no_token_is_no_mark(any_recorder, loop, count):
    """A step in which own code accepted nothing goes on into the next forward."""
    recorder = any_recorder()
    loop.forward(recorder)
    recorder.select(count)
    loop.forward(recorder)
    recorder.select(1)
    marks = loop.close(recorder)
    assert marks.token_counts == [1]
    assert marks.token_forwards == [2]


def assisted(recorder, loop, prompt, drafts, totals, *, ask_about_draft):
    """Run an assisted loop whose sequence is ``totals[i]`` long after step i."""
    recorder.lengths = [(0, prompt)]
    total = prompt
    for draft, after in zip(drafts, totals, strict=True):
        if ask_about_draft:
            recorder.token()
            recorder.length(total + draft)
        loop.forward(recorder)
        recorder.token()
        recorder.length(after)
        total = after


@pytest.mark.parametrize("ask_about_draft", [False, True])
def test_assisted_steps_count_what_was_kept(any_recorder, loop, ask_about_draft):
    """Tokens of a step are what the sequence grew by, never the draft's length."""
    recorder = any_recorder()
    assisted(recorder, loop, 5, [4, 4, 2], [8, 10, 13], ask_about_draft=ask_about_draft)
    assert loop.close(recorder).token_counts == [3, 2, 3]


@pytest.mark.parametrize("ask_about_draft", [False, True])
def test_assisted_tokens_after_the_limit_are_counted_one_by_one(
    any_recorder, loop, ask_about_draft
):
    """What comes after the limit is counted in tokens, not in steps, in bounded memory."""
    recorder = any_recorder(limit=2)
    totals = [8, 10, 13, 17, 18]
    assisted(recorder, loop, 5, [4] * 5, totals, ask_about_draft=ask_about_draft)
    assert len(recorder.lengths) <= 4
    marks = loop.close(recorder)
    assert marks.token_counts == [3, 2]
    assert marks.more_tokens == 8


def test_at_the_limit_nothing_is_lost(any_recorder, loop):
    """As many steps as the limit allows are all kept singly."""
    recorder = any_recorder(limit=3)
    for _ in range(3):
        loop.step(recorder)
    marks = loop.close(recorder)
    assert len(marks.tokens) == 3
    assert (marks.more_tokens, marks.more_forwards, marks.last_mark) == (0, 0, None)


def test_past_the_limit_counts_and_the_last_time_stay_exact(host_recorder, loop, fake_clock):
    """Lists stop growing; counts go on, and the last token's time is the last token's."""
    recorder = host_recorder(limit=3)
    for _ in range(50):
        loop.step(recorder)
        recorder.put()
    last = fake_clock.now_ns - 1_000_000
    loop.forward(recorder)  # surplus: no token follows
    for name in ("forward_starts", "forward_ends", "tokens", "token_forwards"):
        assert len(getattr(recorder, name)) == 3
    assert len(recorder.puts) == len(recorder.put_forwards) == 3
    marks = loop.close(recorder)
    assert (marks.more_tokens, marks.more_forwards) == (47, 48)
    assert marks.last_mark == last


def test_past_the_limit_the_device_is_marked_in_one_event(device_recorder, loop, fake_device):
    """One event is recorded anew for each token; its last time is the last token's."""
    recorder = device_recorder(limit=3)
    for _ in range(50):
        loop.step(recorder)
    made = fake_device.made
    assert made == 1 + 3 * 2 + 1
    loop.forward(recorder)
    fake_device.finished = True
    marks = loop.close(recorder)
    assert fake_device.made == made
    assert ms([marks.last_mark]) == [49 * 13 + 12 + 1]
    assert marks.more_tokens == 47
    assert marks.clock == "fake"
    assert fake_device.out == []


def test_prefill_chunks_do_not_use_up_the_limit(any_recorder, loop):
    """The first token is kept although its prefill ran in more chunks than the limit."""
    recorder = any_recorder(limit=2)
    for _ in range(5):
        loop.forward(recorder)
    recorder.token()
    loop.step(recorder)
    loop.step(recorder)
    marks = loop.close(recorder)
    assert marks.token_forwards == [5, 6]
    assert marks.more_tokens == 1


def test_an_own_loop_without_marks_is_bounded_by_its_forwards(any_recorder, loop, fake_clock):
    """Where forwards stand for tokens, the limit holds for them, and the last one's time stays."""
    recorder = any_recorder(limit=2)
    recorder.own_loop = True
    for _ in range(6):
        loop.forward(recorder)
    marks = loop.close(recorder)
    assert len(marks.forward_ends) == 2
    assert marks.more_forwards == 4
    lag = 1 if marks.clock == "fake" else 0
    assert ms([marks.last_mark]) == [60 + lag]


def test_an_own_loop_with_marks_is_bounded_by_its_tokens(any_recorder, loop):
    """``token()`` beyond the limit counts, however many tokens it says."""
    recorder = any_recorder(limit=2)
    recorder.own_loop = True
    for _ in range(4):
        loop.forward(recorder)
        recorder.select(3)
    marks = loop.close(recorder)
    assert marks.token_counts == [3, 3]
    assert marks.more_tokens == 6


def test_own_marks_without_a_forward_are_bounded_too(any_recorder, loop, fake_clock):
    """The limit holds for ``token()`` also where no forward is seen."""
    recorder = any_recorder(limit=2)
    for _ in range(5):
        fake_clock.advance(1)
        recorder.select(1)
    marks = loop.close(recorder)
    assert len(marks.tokens) == 2
    assert marks.more_tokens == 3


def test_device_events_come_back_to_their_marks(device_recorder, loop, fake_device, fake_clock):
    """Each event's time replaces the very mark it was recorded for, chunks and all."""
    recorder = device_recorder()
    fake_clock.advance(5)
    fake_device.lag_ms = 0.5
    loop.forward(recorder, 10)  # the prefill's first chunk
    fake_device.lag_ms = 50
    loop.forward(recorder, 10)
    fake_device.lag_ms = 60
    recorder.token()
    fake_device.lag_ms = 70
    loop.forward(recorder, 10)  # a decode step of two forwards
    loop.forward(recorder, 10)
    fake_clock.advance(1)
    recorder.token()
    fake_clock.advance(200)
    marks = loop.close(recorder)
    assert ms([marks.device_prefill_start]) == [5.5]
    assert ms(marks.device_forward_ends) == [15.5, 75, 105, 115]
    assert ms(marks.tokens) == [85, 116]
    assert marks.token_forwards == [2, 4]
    assert ms(marks.forward_ends) == [15, 25, 35, 45]
    assert (marks.clock, marks.clock_error_ns) == ("fake", 7_000)
    asked = ms([asked for asked, _ in fake_device.resolved])
    assert asked == [5, 15, 25, 25, 35, 45, 46]


def test_several_own_marks_after_one_forward_keep_stream_order(
    device_recorder, loop, fake_device, fake_clock
):
    """Events of tokens that share a forward are read in the order they were recorded."""
    recorder = device_recorder()
    loop.forward(recorder)
    for _ in range(3):
        fake_clock.advance(1)
        recorder.select(1)
    loop.forward(recorder)
    fake_clock.advance(100)
    marks = loop.close(recorder)
    assert ms(marks.device_forward_ends) == [11, 24]
    assert ms(marks.tokens) == [12, 13, 14]


def raising(recorder, loop):
    recorder.forward_started()
    recorder.forward_failed()


def surplus(recorder, loop):
    loop.step(recorder)
    loop.forward(recorder)


def long(recorder, loop):
    for _ in range(9):
        loop.step(recorder)


def over_by_a_forward(recorder, loop):
    for _ in range(3):
        loop.step(recorder)
    loop.forward(recorder)


@pytest.mark.parametrize("course", [raising, surplus, long, over_by_a_forward])
@pytest.mark.parametrize("finished", [True, False])
def test_every_event_goes_back_to_the_pool_once(
    device_recorder, loop, fake_device, fake_clock, course, finished
):
    """Whatever the request's course, no event is lost or given back twice."""
    recorder = device_recorder(limit=3)
    course(recorder, loop)
    fake_clock.advance(100)
    fake_device.finished = finished
    marks = loop.close(recorder)
    assert fake_device.made > 0
    assert fake_device.out == []
    assert marks.clock == ("fake" if finished else "host")


def test_an_unfinished_stream_leaves_host_times(device_recorder, loop, fake_device):
    """When the device has not passed the last mark, the request is on the host clock throughout."""
    recorder = device_recorder()
    loop.step(recorder)
    fake_device.finished = False
    marks = loop.close(recorder)
    assert (marks.clock, marks.clock_error_ns) == ("host", None)
    assert marks.device_forward_ends is None
    assert marks.device_prefill_start is None
    assert ms(marks.tokens) == [12]


@pytest.mark.usefixtures("provokes_internal_errors")
def test_a_device_that_fails_leaves_host_times(device_recorder, loop, fake_device, fake_clock):
    """An error from the device's clock does not keep the request from ending."""
    recorder = device_recorder()
    loop.step(recorder)
    fake_device.fails = True
    marks = loop.close(recorder)
    assert marks.clock == "host"
    assert ms(marks.tokens) == [12]
    assert fake_device.out == []


def test_the_last_mark_is_the_one_to_wait_for(device_recorder, loop, fake_device, fake_clock):
    """There is nothing to wait for once the stream has passed even a surplus forward."""
    recorder = device_recorder()
    loop.step(recorder)
    loop.forward(recorder)
    marks = recorder.close(fake_clock.now_ns)
    asked = []
    fake_device.passed = lambda mark: asked.append(mark.order) or len(asked) > 1
    assert not marks.device.passed(marks)
    assert marks.device.passed(marks)
    assert asked == [4, 4]  # prefill's start, forward, token, surplus forward


def test_a_request_without_marks_asks_nothing_of_the_device(device_recorder, loop, fake_device):
    """A request that did nothing takes no event and reads no time."""
    marks = loop.close(device_recorder())
    assert fake_device.made == 0
    assert fake_device.resolved is None
    assert marks.tokens == []


def test_what_comes_after_the_end_is_no_part_of_it(any_recorder, fake_clock):
    """One thread ends a request while another is in its forward call."""
    recorder = any_recorder()
    recorder.own_loop = True
    for _ in range(2):
        recorder.forward_started()
        recorder.forward_ended()
        recorder.select(2)
    recorder.forward_started()
    marks = recorder.close(fake_clock.now_ns)
    before = copy.copy(marks)
    lists = {
        name: list(of) for name in marks.__slots__ if isinstance(of := getattr(marks, name), list)
    }
    recorder.forward_ended()
    recorder.select(1)
    assert marks == before
    assert {name: getattr(marks, name) for name in lists} == lists
    assert marks.token_counts == [2, 2]
    if marks.device is not None:
        assert marks.device.passed(marks)
        marks.device.read(marks)
        assert len(marks.tokens) == len(marks.device_forward_ends) == 2

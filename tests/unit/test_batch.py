"""A scheduler's steps and requests on a clock and a device that go as the test says."""

from functools import partial
from types import SimpleNamespace

import pytest

from llmtrace.config import Config
from llmtrace.recording.batch import MAX_STRETCH_STEPS, Batch
from llmtrace.recording.batch_build import build_batch
from llmtrace.recording.batched_request import start_batched
from llmtrace.recording.build import build_record
from llmtrace.recording.request import FinishedRequest, RequestInfo
from llmtrace.recording.step_marks import StepTimer
from llmtrace.records import GenerationParameters, ModelFacts
from llmtrace.seams import accelerator
from llmtrace.timing.host import WallAnchor

MS = 1_000_000


class Span:
    trace_id, span_id, queued_since_unix_ns = "a" * 32, "b" * 16, None

    def __init__(self):
        self.abandoned = False

    def leave(self):
        pass

    def abandon(self):
        self.abandoned = True


class Pipeline:
    """Takes what is handed over."""

    def __init__(self):
        self.config = Config(max_step_spans=8)
        self.telemetry = self
        self.jobs, self.stretches, self.under_way = [], [], []

    def open(self, info, start_unix_ns, context):
        return Span()

    def begin(self, request):
        self.under_way.append(request)

    def leave(self, request):
        self.under_way.remove(request)

    def submit(self, info, marks, start_unix_ns, span, request):
        self.jobs.append((info, marks))

    def submit_steps(self, stretch):
        self.stretches.append(stretch)

    def record(self, index=-1):
        info, marks = self.jobs[index]
        if marks.device is not None:
            assert marks.device.passed(marks)
            marks.device.read(marks)
        return build_record(FinishedRequest(info, marks, 10**18, None, None))


class Tokens:
    """A state is a list of tokens: the prompt's, then those generated."""

    def count(self, state, length):
        return len(state) - length

    def tokens(self, state, length):
        return state[length:]


@pytest.fixture
def pipeline():
    return Pipeline()


class Scheduler:
    """Runs steps the way transformers does, as long as the test wants each part to take."""

    def __init__(self, pipeline, clock, device=None):
        self.clock, self.pipeline = clock, pipeline
        self.batch = Batch(pipeline, ModelFacts("tiny"), ())
        self.batch.timer = None if device is None else StepTimer(device)
        self.states = {}

    def submit(self, key, length=4, limit=8, eos=()):
        info = RequestInfo(
            strategy="continuous",
            batch_size=1,
            input_length=length,
            input_tokens_per_row=(length,),
            eos_token_ids=frozenset(eos),
            parameters=GenerationParameters(max_tokens=limit),
        )
        at = WallAnchor(10**18, self.clock())
        request = start_batched(self.pipeline, info, at, None, Tokens())
        self.batch.add(key, request)
        self.states[key] = [1] * length
        return request

    def prepare(self, **positions):
        """Choose requests, each with where the step brings it."""
        items = list(positions)
        step = self.batch.prepared(items)
        for key, position in positions.items():
            request = self.batch.requests[key]
            if request.state is not self.states[key]:
                request.begin(self.states[key], len(self.states[key]), step)
            self.batch.take_part(request, step, position)
        return items

    def forward(self, ms):
        self.batch.forward_started()
        self.clock.advance(ms)
        self.batch.forward_ended()

    def give_out(self, items, tokens=5, ends=()):
        """Fetch the tokens of the step of *items*; *tokens* is one for all, or None."""
        self.batch.giving = True
        self.batch.fetched(items)
        for key in items:
            if tokens is not None:
                self.states[key].append(tokens)
            if key in ends:
                self.batch.finish(key)
        self.batch.given_out()


def test_two_requests_share_their_steps(pipeline, fake_clock):
    """Each has its own queue, TTFT and gaps; a prompt in two chunks is one prefill."""
    loop = Scheduler(pipeline, fake_clock)
    loop.submit("a")  # at 0 ms
    fake_clock.advance(10)
    loop.submit("b", length=6)
    fake_clock.advance(5)  # 15
    items = loop.prepare(a=4, b=3)
    fake_clock.advance(1)
    loop.forward(20)  # 16 to 36
    fake_clock.advance(2)
    loop.states["b"].pop()
    loop.give_out(items)  # 38: the first token of a; b has got none
    assert loop.batch.requests["b"].total == 0
    items = loop.prepare(a=5, b=6)
    loop.forward(10)  # 38 to 48
    loop.states["b"].append(1)
    loop.give_out(items, ends=("a",))  # 48
    fake_clock.advance(4)
    items = loop.prepare(b=7)
    loop.forward(5)  # 52 to 57
    loop.give_out(items, ends=("b",))
    a, b = pipeline.record(0), pipeline.record(1)
    assert a.queue_s == pytest.approx(0.015)
    assert a.ttft_s == pytest.approx(0.038)
    assert a.ttft_from_admission_s == pytest.approx(0.023)
    assert a.prefill_s == pytest.approx(0.020)
    assert a.itl_s == pytest.approx([0.010])
    assert a.e2e_s == pytest.approx(0.048)
    assert b.queue_s == pytest.approx(0.005)
    assert b.prefill_s == pytest.approx(0.032)
    assert b.ttft_s == pytest.approx(0.038)
    assert [step.forwards for step in b.steps] == [2, 1]
    assert b.itl_s == pytest.approx([0.009])
    assert (a.clock, a.clock_error_s) == ("host", None)
    assert pipeline.under_way == []


def test_the_memory_held_is_read_as_a_request_ends(pipeline, fake_clock, monkeypatch):
    """Of the device's allocator, which all requests share: no peak or growth of one's own."""
    held = {"allocated_bytes": 300, "reserved_bytes": 400, "inactive_split_bytes": 20}
    read = []

    def statistics(index):
        read.append(index)
        return {name: {"all": {"current": value, "peak": 999}} for name, value in held.items()}

    monkeypatch.setattr(accelerator, "_statistics", statistics)
    loop = Scheduler(pipeline, fake_clock)
    for key, kind, devices in (("a", "cuda", ()), ("b", "cpu", ()), ("c", "cuda", (0, 2))):
        device = SimpleNamespace(type=kind, index=1)
        loop.submit(key).note_memory = partial(accelerator.memory_held, device, devices)
    for key in "abc":
        items = loop.prepare(**{key: 4})
        loop.forward(2)
        loop.give_out(items, ends=(key,))
    a, b, c = (pipeline.record(index) for index in range(3))
    assert read == [1, 0, 2]
    assert (c.memory_allocated_bytes, c.memory_reserved_bytes) == (600, 800)
    assert (a.memory_allocated_bytes, a.memory_reserved_bytes) == (300, 400)
    assert a.memory_inactive_split_bytes == 20
    assert (a.memory_peak_bytes, a.memory_growth_bytes) == (None, None)
    assert b.memory_allocated_bytes is None


def test_the_record_of_the_steps(pipeline, fake_clock):
    """Prompt tokens and others are told apart by how far each request is."""
    loop = Scheduler(pipeline, fake_clock)
    loop.submit("a")
    loop.submit("b")
    items = loop.prepare(a=4)
    loop.forward(2)
    loop.give_out(items)
    items = loop.prepare(a=5, b=3)
    loop.forward(3)
    loop.states["b"].pop()
    loop.give_out(items, ends=("a",))
    loop.batch.cancel("b")
    loop.batch.stopped()
    (stretch,) = pipeline.stretches
    record = build_batch(stretch)
    assert [(s.prefill_tokens, s.decode_tokens, s.requests) for s in record.steps] == [
        (4, 0, 1),
        (3, 1, 2),
    ]
    assert [s.index for s in record.steps] == [1, 2]
    assert [s.host_duration_s for s in record.steps] == pytest.approx([0.002, 0.003])
    assert all(s.device_duration_s is None for s in record.steps)
    assert record.requests == (("a" * 32, "b" * 16),) * 2
    assert pipeline.record().finish_reasons == ("cancelled",)


def test_a_devices_times(pipeline, fake_clock, fake_device):
    """Tokens, prefill and steps are the device's; its marks are given back."""
    loop = Scheduler(pipeline, fake_clock, fake_device)
    loop.submit("a")
    fake_clock.advance(5)
    items = loop.prepare(a=4)
    fake_device.lag_ms = 2
    loop.forward(20)  # asked at 5 and 25, happened at 7 and 27
    fake_clock.advance(3)
    loop.give_out(items)  # seen at 28
    fake_clock.advance(2)
    items = loop.prepare(a=5)
    fake_device.lag_ms = 1
    loop.forward(10)  # 31 and 41
    fake_clock.advance(1)
    loop.give_out(items, ends=("a",))
    assert len(fake_device.out) == 4
    record = pipeline.record()
    assert fake_device.out == []
    assert record.clock == "fake"
    assert record.clock_error_s == pytest.approx(7e-6)
    assert record.prefill_s == pytest.approx(0.020)
    assert record.ttft_s == pytest.approx(0.027)
    assert record.itl_s == pytest.approx([0.014])
    assert record.steps[0].launch_lead_s == pytest.approx(0.002)
    assert record.steps[1].device_duration_s == pytest.approx(0.014)
    (stretch,) = pipeline.stretches
    batch = build_batch(stretch)
    assert batch.clock == "fake"
    assert [s.device_duration_s for s in batch.steps] == pytest.approx([0.020, 0.010])
    assert fake_device.made == 4


def test_requests_that_share_a_step_read_it_once(pipeline, fake_clock, fake_device):
    """Whoever ends first has the shared marks read; the others find the times there."""
    loop = Scheduler(pipeline, fake_clock, fake_device)
    loop.submit("a")
    loop.submit("b")
    items = loop.prepare(a=4, b=4)
    loop.forward(20)
    loop.give_out(items, ends=("a",))
    items = loop.prepare(b=5)
    loop.forward(20)
    loop.give_out(items, ends=("b",))
    a, b = pipeline.record(0), pipeline.record(1)
    assert a.ttft_s == b.ttft_s == pytest.approx(0.021)
    assert b.itl_s == pytest.approx([0.020])
    assert [len(call) for call in fake_device.calls] == [2, 2]
    assert fake_device.out == []


def test_a_step_is_prepared_while_another_runs(pipeline, fake_clock, fake_device):
    """Asynchronous batching: a token belongs to the step that made it, not to the latest."""
    loop = Scheduler(pipeline, fake_clock, fake_device)
    loop.submit("a")

    def forward(lag_begin, lag_end):  # on the device; the host only asks for it
        fake_device.lag_ms = lag_begin
        loop.batch.forward_started()
        fake_device.lag_ms = lag_end
        loop.batch.forward_ended()

    first = loop.prepare(a=4)
    forward(0, 20)  # 0 to 20
    fake_clock.advance(1)
    second = loop.prepare(a=5)
    forward(19, 39)  # 20 to 40
    fake_clock.advance(19)
    loop.give_out(first)  # at 20
    third = loop.prepare(a=6)
    forward(20, 40)  # 40 to 60
    fake_clock.advance(20)
    loop.give_out(second)  # at 40
    fourth = loop.prepare(a=7)  # one too many, as the end was not known
    forward(20, 40)
    fake_clock.advance(20)
    loop.give_out(third, ends=("a",))  # at 60
    fake_clock.advance(20)
    loop.give_out(fourth, tokens=None)
    record = pipeline.record()
    assert record.output_tokens == 3
    assert [step.forwards for step in record.steps] == [1, 1, 1]
    assert record.ttft_s == pytest.approx(0.020)
    assert record.itl_s == pytest.approx([0.020, 0.020])
    loop.batch.stopped()
    for stretch in pipeline.stretches:
        build_batch(stretch)
    assert fake_device.out == []


@pytest.mark.parametrize("how", ["refuses", "not finished"])
def test_a_device_that_fails(pipeline, fake_clock, fake_device, how):
    """The host's clock goes on, and the record says which clock it was."""
    loop = Scheduler(pipeline, fake_clock, fake_device)
    if how == "refuses":
        loop.batch.timer.mark = lambda: None
    fake_device.finished = False
    loop.submit("a")
    items = loop.prepare(a=4)
    loop.forward(20)
    loop.give_out(items, ends=("a",))
    record = pipeline.record()
    assert (record.clock, record.clock_error_s) == ("host", None)
    assert record.ttft_s == pytest.approx(0.020)


def test_put_back_into_the_queue(pipeline, fake_clock):
    """After a preemption the prompt is longer, and the tokens made before still count."""
    loop = Scheduler(pipeline, fake_clock)
    request = loop.submit("a", limit=3)
    for position in (4, 5):
        items = loop.prepare(a=position)
        loop.forward(10)
        loop.give_out(items)
    request.preemptions += 1
    loop.states["a"] = list(loop.states["a"])  # another state: 6 tokens to prefill
    request.shared = 4
    fake_clock.advance(100)
    items = loop.prepare(a=6)
    step = loop.batch._under_way[-1]
    assert (step.prefill_tokens, step.decode_tokens) == (2, 0)
    loop.forward(10)
    loop.give_out(items, ends=("a",))
    record = pipeline.record()
    assert record.output_tokens == 3
    assert record.preemptions == 1
    assert [finding.code for finding in record.findings] == ["preempted"]
    assert record.itl_s == pytest.approx([0.010, 0.110])
    assert record.finish_reasons == ("length",)


def test_a_stop_id_ends_a_request(pipeline, fake_clock):
    """The reason is told by the last token and the limit."""
    loop = Scheduler(pipeline, fake_clock)
    loop.submit("a", eos=(5,))
    items = loop.prepare(a=4)
    loop.give_out(items, tokens=5, ends=("a",))
    assert pipeline.record().finish_reasons == ("stop",)


def test_the_loop_ends_without_a_word(pipeline, fake_clock):
    """Requests that are left end with an error, and say why."""
    loop = Scheduler(pipeline, fake_clock)
    loop.submit("a")
    loop.submit("b")
    loop.batch.stopped()
    for index in (0, 1):
        record = pipeline.record(index)
        assert record.error == "_OTHER"
        assert [finding.code for finding in record.findings] == ["batch_stopped"]
        assert record.output_tokens == 0
        assert record.ttft_s is record.queue_s is None
    assert pipeline.under_way == []


def test_an_error_of_the_loop_is_not_the_next_ones(pipeline, fake_clock):
    """A manager can be started again."""
    scheduler = Scheduler(pipeline, fake_clock)
    scheduler.submit("a")
    scheduler.batch.fatal = "ValueError"
    scheduler.batch.stopped()
    scheduler.submit("b")
    scheduler.batch.stopped()
    assert [info.error for info, _ in pipeline.jobs] == ["ValueError", "_OTHER"]


def test_only_so_many_steps_are_kept(pipeline, fake_clock):
    """Of one request eight here; its last token's time and its counts go on."""
    loop = Scheduler(pipeline, fake_clock)
    request = loop.submit("a", limit=30)
    for position in range(4, 34):
        items = loop.prepare(a=position)
        loop.forward(10)
        loop.give_out(items, ends=("a",) if position == 33 else ())
        assert len(request.forwards) <= 8
    record = pipeline.record()
    assert record.output_tokens == 30
    assert len(record.steps) == 8
    assert record.e2e_s == pytest.approx(0.300)
    assert record.tpot_s == pytest.approx(0.010)


def test_steps_are_handed_over_in_bounded_pieces(pipeline, fake_clock):
    """A busy scheduler does not keep its steps until it is idle."""
    loop = Scheduler(pipeline, fake_clock)
    loop.submit("a", limit=10**6)
    for position in range(4, 4 + 2 * MAX_STRETCH_STEPS):
        items = loop.prepare(a=position)
        loop.give_out(items)
    assert [len(stretch.steps) for stretch in pipeline.stretches] == [MAX_STRETCH_STEPS] * 2
    assert build_batch(pipeline.stretches[1]).steps[0].index == MAX_STRETCH_STEPS + 1


def test_marks_of_a_step_that_was_never_given_out(pipeline, fake_clock, fake_device):
    """Tracing was off meanwhile: the next step is not taken for it."""
    loop = Scheduler(pipeline, fake_clock, fake_device)
    loop.submit("a")
    loop.prepare(a=4)
    loop.forward(10)
    items = loop.prepare(a=5)
    loop.give_out(items, ends=("a",))
    assert fake_device.out == []
    assert pipeline.record().ttft_s == pytest.approx(0.010)

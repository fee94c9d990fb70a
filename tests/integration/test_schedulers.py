"""``request`` objects used explicitly: between threads, and several in one forward call."""

import os
import statistics
import threading
import time
from itertools import pairwise

import pytest
import torch
from opentelemetry import context as otel_context
from opentelemetry import trace

import llmtrace
from llmtrace.recording.active import active
from llmtrace.session import session


def forward(model, requests, rows=None):
    """One call of the model for *requests*."""
    with llmtrace.request.active(*requests), torch.no_grad():
        return model(torch.ones(rows or len(requests), 4, dtype=torch.long))


def by_name(records):
    return {record.attributes["name"]: record for record in records}


def named(model, name):
    return llmtrace.request(model, attributes={"name": name})


def test_two_requests_in_one_forward(tiny, telemetry):
    """One joins late and leaves early; each has its own steps, times and counts."""
    calls = []
    tiny.register_forward_pre_hook(lambda *_: calls.append(time.sleep(0.01)))
    watch = {"a": [], "b": []}
    begun = {}
    with llmtrace.capture() as records:
        requests = {}

        def arrive(name, tokens):
            begun[name] = time.perf_counter()
            requests[name] = named(tiny, name).start(input_tokens=tokens)

        def step(*names):
            forward(tiny, [requests[name] for name in names])
            for name in names:
                requests[name].token()
                watch[name].append(time.perf_counter())

        arrive("a", 12)
        step("a")
        arrive("b", 7)
        step("b")
        step("a", "b")
        step("a", "b")
        requests["b"].end(finish_reason="stop")
        step("a")
        step("a")
        requests["a"].end(finish_reason="length")
    found = by_name(records)
    assert len(calls) == 6
    assert [s.forwards for s in found["a"].steps] == [1] * 5
    assert [s.forwards for s in found["b"].steps] == [1] * 3
    for name, tokens, reason in (("a", 12, "length"), ("b", 7, "stop")):
        record = found[name]
        assert record.input_tokens == tokens
        assert record.finish_reasons == (reason,)
        assert record.model == "llama"
        assert record.error is None
        assert record.findings == ()
        own = [b - a for a, b in pairwise([begun[name], *watch[name]])]
        off = [abs(a - b) for a, b in zip(own, [record.ttft_s, *record.itl_s], strict=True)]
        assert statistics.median(off) < 5e-3  # in between, others may have the processor
        assert all(s.host_duration_s >= 0.01 for s in record.steps)
    assert active.get() is None
    assert otel_context.get_current() == {}


def test_without_a_model_the_first_one_called_is_each_ones(tiny, prompt, telemetry):
    """Requests that name no model adopt the one they are called with, alone or together."""
    with llmtrace.capture() as records:
        first, second = named(None, "first").start(), named(None, "second").start()
        with llmtrace.request.active(first):
            tiny(prompt)
        for _ in range(2):
            forward(tiny, [first, second])
        first.end()
        second.end()
    found = by_name(records)
    assert [r.model for r in records] == ["llama", "llama"]
    assert (len(found["first"].steps), len(found["second"].steps)) == (3, 2)
    assert found["first"].input_tokens == 5
    assert found["second"].input_tokens is None


def test_a_call_in_another_block_belongs_to_others(tiny, prompt, telemetry):
    """Outside ``active()`` a started request takes nothing, and nothing is current."""
    with llmtrace.capture() as records:
        request = named(tiny, "x").start()
        tiny(prompt)
        assert active.get() is None
        assert not trace.get_current_span().get_span_context().is_valid
        tiny.generate(prompt, max_new_tokens=3)
        forward(tiny, [request])
        request.end()
    generated, own = records
    assert generated.output_tokens == 3
    assert len(own.steps) == 1
    assert telemetry.requests()[1].parent is None


def test_passed_from_the_handler_to_a_worker(tiny, prompt, telemetry):
    """Begun under the server's span, generated in another thread: one trace, queue included."""
    with llmtrace.capture() as records:
        with telemetry.tracer.start_as_current_span("POST /chat") as server:
            request = llmtrace.request(name="chat").start()
        before = []

        def work():
            time.sleep(0.03)
            with llmtrace.request.active(request):
                before.append(trace.get_current_span())
                tiny.generate(prompt, max_new_tokens=3)
            before.append(trace.get_current_span())
            request.end()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    (record,) = records
    assert record.queue_s >= 0.03
    assert record.ttft_from_request_s == pytest.approx(record.queue_s + record.ttft_s)
    (group,) = telemetry.spans("chat")
    (generated,) = telemetry.requests()
    assert group.parent.span_id == server.get_span_context().span_id
    assert generated.parent.span_id == group.context.span_id
    assert before[0].get_span_context() == group.context
    assert not before[1].get_span_context().is_valid


def test_a_generator_resumed_in_other_contexts(tiny, prompt, telemetry):
    """As servers run sync generators: each item in a context of its own. Every step is seen."""
    request = llmtrace.request(tiny)

    def stream():
        request.start()
        for _ in range(4):
            with llmtrace.request.active(request):
                tiny(prompt)
            request.token()
            yield
        request.end()

    made = stream()
    done = object()

    def resume():
        assert active.get() is None
        results.append(next(made, done))
        assert active.get() is None
        assert otel_context.get_current() == {}

    results = []
    with llmtrace.capture() as records:
        while not results or results[-1] is not done:
            thread = threading.Thread(target=resume)
            thread.start()
            thread.join()
    (record,) = records
    assert [s.forwards for s in record.steps] == [1] * 4
    assert record.findings == ()


def test_a_block_with_its_calls_made_active(tiny, prompt, telemetry):
    """Two ``with`` blocks that take turns keep their calls, each under ``active()``."""

    def stream(name):
        with named(tiny, name) as request:
            for _ in range(3):
                with llmtrace.request.active(request):
                    tiny(prompt)
                request.token()
                yield

    with llmtrace.capture() as records:
        first, second = stream("first"), stream("second")
        for made in (first, second) * 3:
            next(made)
        first.close()
        second.close()
    assert [(len(r.steps), r.findings) for r in records] == [(3, ()), (3, ())]
    assert active.get() is None


def test_ended_inside_its_own_block(tiny, prompt, telemetry):
    """Ending it where it is active leaves nothing behind; a second ``end()`` does nothing."""
    outer = telemetry.tracer.start_span("outer")
    with trace.use_span(outer), llmtrace.capture() as records:
        request = llmtrace.request(tiny).start()
        with llmtrace.request.active(request):
            tiny(prompt)
            request.end()
            tiny(prompt)
        assert trace.get_current_span() is outer
        assert active.get() is None
        request.end()
        request.token()
    assert [len(r.steps) for r in records] == [1]


def test_a_call_within_a_call_is_one_step(tiny, telemetry):
    """A model that calls itself is called once, for each of those who share the call."""
    plain = tiny.forward

    def twice(ids, *, again=True, **kwargs):
        return tiny(ids, again=False, **kwargs) if again else plain(ids, **kwargs)

    tiny.forward = twice
    with llmtrace.capture() as records:
        requests = [named(tiny, name).start() for name in ("first", "second")]
        for _ in range(2):
            forward(tiny, requests)
        for request in requests:
            request.end()
    assert [[s.forwards for s in r.steps] for r in records] == [[1, 1]] * 2


def test_a_forward_that_fails_for_all(tiny, telemetry):
    """The error passes through; who ends with it is failed, who goes on is not."""
    with llmtrace.capture() as records:
        first, second = named(tiny, "first").start(), named(tiny, "second").start()
        forward(tiny, [first, second])
        with pytest.raises(IndexError) as caught, llmtrace.request.active(first, second):
            tiny(torch.full((2, 4), 999))
        first.end(caught.value)
        forward(tiny, [second])
        second.end()
    assert [(r.error, len(r.steps)) for r in records] == [("IndexError", 1), (None, 2)]


def test_tokens_without_calls_say_so(tiny, prompt, telemetry):
    """Marks alone give times; that the model's calls were not its own is said."""
    with llmtrace.capture() as records:
        request = llmtrace.request(tiny).start()
        for _ in range(3):
            tiny(prompt)
            request.token()
        request.end()
    (record,) = records
    assert [f.code for f in record.findings] == ["forwards_not_seen"]
    assert record.output_tokens == 3
    assert record.prefill_s is None


def test_two_tokens_of_one_call(tiny, telemetry):
    """Marked one by one they are two steps of which the second needed no call: nothing is amiss."""
    with llmtrace.capture() as records:
        request = llmtrace.request(tiny).start()
        forward(tiny, [request])
        request.token()
        request.token()
        request.end()
    assert [s.forwards for s in records[0].steps] == [1, 0]
    assert records[0].findings == ()


def test_started_twice_is_refused(tiny):
    """One object is one request at a time; after its end it may begin anew."""
    with llmtrace.capture() as records:
        request = llmtrace.request(tiny).start()
        with pytest.raises(RuntimeError, match=r"call end\(\) first"):
            request.start()
        for _ in range(2):
            forward(tiny, [request])
            request.end()
            request.start()
        request.end()
    assert [len(r.steps) for r in records] == [1, 1, 0]


def test_turned_off_it_does_nothing(tiny, prompt):
    """Without a listener or after ``uninstrument()`` every call is harmless."""
    llmtrace.uninstrument()
    request = llmtrace.request(tiny).start(input_tokens=3)
    forward(tiny, [request])
    request.token()
    request.end()
    with llmtrace.instrument():
        request.start()
    forward(tiny, [request])
    request.token()
    request.end()
    with llmtrace.instrument() as handle, llmtrace.request(tiny) as request:
        tiny(prompt)
        handle.close()
    assert session().pipeline.running == 0
    assert active.get() is None


def test_many_requests_in_one_forward_from_several_threads(tiny, telemetry):
    """Requests arrive in 8 threads, one scheduler serves them: each gets exactly its tokens."""
    wanted = {f"r{i}": i + 2 for i in range(8)}
    arrived, lock = [], threading.Lock()

    def arrive(name):
        request = named(tiny, name).start(input_tokens=wanted[name] * 3)
        with lock:
            arrived.append((name, request))

    with llmtrace.capture() as records:
        threads = [threading.Thread(target=arrive, args=(name,)) for name in wanted]
        for thread in threads:
            thread.start()
        left = dict(wanted)
        while left:
            with lock:
                batch = [(name, r) for name, r in arrived if name in left][:3]
            if not batch:
                continue
            forward(tiny, [r for _, r in batch])
            for name, request in batch:
                request.token()
                left[name] -= 1
                if not left[name]:
                    del left[name]
                    request.end()
        for thread in threads:
            thread.join()
    assert {n: len(r.steps) for n, r in by_name(records).items()} == wanted
    assert {n: r.input_tokens for n, r in by_name(records).items()} == {
        name: count * 3 for name, count in wanted.items()
    }
    assert all(s.forwards == 1 for r in records for s in r.steps)


def test_a_request_with_several_rows_of_a_call(tiny, telemetry):
    """It is given once for each row; the call is one forward all the same."""
    with llmtrace.capture() as records:
        one, other = named(tiny, "one").start(), named(tiny, "other").start()
        for _ in range(3):
            forward(tiny, [one, one, other])
            one.token(2)
            other.token()
        one.end()
        other.end()
    found = by_name(records)
    assert [s.forwards for s in found["one"].steps] == [1] * 3
    assert [s.forwards for s in found["other"].steps] == [1] * 3


def test_a_request_that_nobody_ends(tiny, telemetry):
    """Once its object is gone its record is made, and nothing of it is left."""
    with llmtrace.capture() as records:
        request = named(tiny, "lost").start(input_tokens=3)
        forward(tiny, [request])
        request.token()
        assert session().pipeline.running == 1
        del request
    (record,) = records
    assert record.output_tokens == 1
    assert record.error is None
    assert [finding.code for finding in record.findings] == ["never_ended"]
    assert session().pipeline.running == 0


def test_a_lost_request_is_ended_when_the_next_one_begins(tiny, prompt, telemetry):
    """Without any flush: a server that forgets requests does not keep them."""
    with llmtrace.capture() as records:
        for _ in range(3):
            named(tiny, "lost").start()
        tiny.generate(prompt, max_new_tokens=2)
        assert session().pipeline.running == 0
    assert [len(r.findings) for r in records] == [1, 1, 1, 0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_does_not_end_its_parents_requests(tiny, telemetry):
    """Its copies of them may die: that is no end of theirs."""
    request = named(tiny, "parent's").start()
    child = os.fork()
    if child == 0:
        del request
        session().pipeline.drain(10)
        os._exit(len(telemetry.requests()))
    _, status = os.waitpid(child, 0)
    assert status == 0
    request.end()
    assert len(telemetry.requests()) == 1


def test_an_ended_request_is_not_lost(tiny, telemetry):
    """Started again and again, it has the records of what was ended."""
    with llmtrace.capture() as records:
        request = named(tiny, "again")
        for _ in range(3):
            request.start()
            forward(tiny, [request])
            request.token()
            request.end()
        del request
    assert [r.findings for r in records] == [()] * 3


def test_ended_while_its_forward_runs(tiny, telemetry):
    """By another thread: what came before is its record."""
    calls = []

    def hook(*_):
        calls.append(None)
        if len(calls) == 3:
            one.end()

    one, other = named(tiny, "one").start(), named(tiny, "other").start()
    tiny.register_forward_pre_hook(hook)
    with llmtrace.capture() as records:
        for both in (True, False, False, True):
            forward(tiny, [one, other] if both else [one])
            one.token()
        other.end()
    found = by_name(records)
    assert [s.forwards for s in found["one"].steps] == [1, 1]
    assert [s.forwards for s in found["other"].steps] == [1, 1]


class Shrinking(list):
    """Another thread ends the request between a look at its list and the next one."""

    def __bool__(self):
        found = len(self) > 0
        self.clear()
        return found


@pytest.mark.parametrize(
    "use",
    [
        llmtrace.request.token,
        llmtrace.request.end,
        lambda request: llmtrace.request.active(request).__enter__(),
    ],
    ids=["token", "end", "active"],
)
def test_ended_by_another_thread_meanwhile(tiny, telemetry, use):
    """Nothing is raised, wherever the other thread comes in between."""
    request = named(tiny, "raced").start()
    kept = list(request._loops)
    request._loops = Shrinking(kept)
    use(request)
    kept[0].close(None)
    assert session().pipeline.running == 0
    active.set(None)

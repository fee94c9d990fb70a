"""Continuous batching: each request of a batch, and the batch, as a scheduler runs them."""

import gc
import queue
import threading
from contextlib import contextmanager, suppress

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedTokenizerFast

import llmtrace
from llmtrace.recording.batch import Batch
from llmtrace.recording.batched_request import BatchedRequest
from llmtrace.seams import batch_loop, batching
from llmtrace.session import session

PROMPTS = [[5, 6, 7], [8, 9, 10, 11], list(range(3, 60))]
STOP = -1  # none
WAIT_S = 60


@pytest.fixture
def packed(tiny):
    """A model that continuous batching takes."""
    tiny.config._attn_implementation = "sdpa"
    return tiny


def config(**changes):
    return GenerationConfig(
        **{"max_new_tokens": 6, "do_sample": False, "eos_token_id": STOP, "pad_token_id": 0}
        | changes
    )


def cache(**changes):
    return ContinuousBatchingConfig(
        **{"num_blocks": 16, "block_size": 32, "max_batch_tokens": 32} | changes
    )


@contextmanager
def managed(model, generation=None, start=True, **changes):
    """A manager of *model*, stopped at the end."""
    manager = model.init_continuous_batching(
        generation_config=generation or config(), continuous_batching_config=cache(**changes)
    )
    if start:
        manager.start()
    try:
        yield manager
    finally:
        if manager.is_running():
            manager.stop(block=True, timeout=WAIT_S)


def results(manager, count):
    """Return the outputs of *count* requests, by id."""
    got = {}
    while len(got) < count:
        output = manager.get_result(timeout=WAIT_S)
        assert output is not None, f"{len(got)} of {count} requests ended"
        if output.is_finished():
            got[output.request_id] = output
    return got


def by_id(records):
    return {record.attributes["llmtrace.batch.request_id"]: record for record in records}


def run_batch(model, prompts=PROMPTS, generation=None, **kwargs):
    changes = kwargs.pop("cache", {})
    return model.generate_batch(
        prompts,
        generation_config=generation or config(),
        continuous_batching_config=cache(**changes),
        **kwargs,
    )


def check_latencies(record):
    """Assert the identities of the glossary."""
    assert 0 < record.queue_s < record.ttft_s <= record.e2e_s <= record.duration_s
    assert record.ttft_from_admission_s == pytest.approx(record.ttft_s - record.queue_s)
    assert 0 < record.prefill_s <= record.ttft_from_admission_s
    parts = (record.queue_s, record.prepare_s, record.prefill_s, record.sampling_s)
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(record.ttft_s)
    assert len(record.itl_s) == record.output_tokens - 1
    assert record.e2e_s == pytest.approx(record.ttft_s + sum(record.itl_s))


def test_every_request_of_a_batch_is_one(packed, telemetry):
    """Counts are those of the outputs, the parent is who called, a long prompt is one prefill."""
    llmtrace.uninstrument()
    without = [o.generated_tokens for o in run_batch(packed).values()]
    llmtrace.instrument(tracer_provider=telemetry.tracer_provider)
    with llmtrace.capture() as records, telemetry.tracer.start_as_current_span("app") as app:
        outputs = run_batch(packed)
    assert [o.generated_tokens for o in outputs.values()] == without
    records = by_id(records)
    assert records.keys() == outputs.keys()
    for key, output in outputs.items():
        record = records[key]
        assert record.strategy == "continuous"
        assert record.input_tokens == len(output.prompt_ids)
        assert record.output_tokens == len(output.generated_tokens) == 6
        assert record.finish_reasons == ("length",)
        assert record.parameters.max_tokens == 6
        assert record.error is None
        assert record.preemptions == 0
        check_latencies(record)
        assert [step.tokens for step in record.steps] == [1] * 6
    for span in telemetry.requests():
        assert span.parent.span_id == app.get_span_context().span_id
        assert span.context.trace_id == app.get_span_context().trace_id
        names = [child.name for child in telemetry.children(span)]
        assert sorted(names) == ["decode"] * 5 + ["first_token", "prefill"]
    long = next(record for record in records.values() if record.input_tokens == 57)
    assert long.steps[0].forwards in {2, 3}
    assert all(step.forwards == 1 for step in long.steps[1:])


def test_times_are_where_transformers_has_them(packed, telemetry, monkeypatch):
    """Submitted, admitted and each token: in order with the library's own time stamps."""
    marks = {}
    submit = session().pipeline.submit

    def spy(info, marked, *rest):
        marks[info.attributes["llmtrace.batch.request_id"]] = (info, marked)
        submit(info, marked, *rest)

    monkeypatch.setattr(session().pipeline, "submit", spy)
    outputs = run_batch(packed, record_timestamps=True)
    for key, output in outputs.items():
        info, marked = marks[key]
        left_queue, finished = (at * 1e9 for at in output.lifespan)
        stamps = [at * 1e9 for at in output.timestamps]
        assert marked.start_ns <= output.created_time * 1e9
        assert left_queue <= info.admitted_ns <= marked.forward_starts[0] <= marked.tokens[0]
        assert len(marked.tokens) == len(stamps)
        for mine, theirs, later in zip(
            marked.tokens, stamps, [*marked.tokens[1:], marked.end_ns], strict=True
        ):
            assert mine <= theirs <= later
        assert finished <= marked.end_ns


def test_a_step_serves_all(packed, telemetry):
    """One ``batch_step`` for each forward; their tokens are those of the requests."""
    forwards = []
    forward = packed.forward

    def counted(*args, **kwargs):
        forwards.append(kwargs["input_ids"].shape[-1])
        return forward(*args, **kwargs)

    packed.forward = counted
    with llmtrace.capture() as records:
        run_batch(packed, warmup=False)
    del packed.forward
    steps = sorted(telemetry.spans("batch_step"), key=lambda s: s.attributes["llmtrace.batch.step"])
    assert len(steps) == len(forwards)
    for index, (step, tokens) in enumerate(zip(steps, forwards, strict=True), start=1):
        got = step.attributes
        assert got["llmtrace.batch.step"] == index
        assert got["llmtrace.batch.prefill_tokens"] + got["llmtrace.batch.decode_tokens"] == tokens
        assert 0 < got["llmtrace.batch.cache_usage"] <= 1
        assert 0 < got["llmtrace.host.duration"] <= (step.end_time - step.start_time) * 1e-9 + 1e-3
    prefilled = sum(step.attributes["llmtrace.batch.prefill_tokens"] for step in steps)
    cached = sum(record.input_tokens_cached or 0 for record in records)
    assert prefilled + cached == sum(map(len, PROMPTS))
    decoded = sum(step.attributes["llmtrace.batch.decode_tokens"] for step in steps)
    assert decoded == sum(record.output_tokens - 1 for record in records)
    roots = telemetry.spans("batch")
    assert {link.context.span_id for root in roots for link in root.links} == {
        span.context.span_id for span in telemetry.requests()
    }
    assert all(root.parent is None for root in roots)
    assert sum(root.attributes["llmtrace.batch.steps"] for root in roots) == len(steps)


def test_metrics_of_a_batch(packed, telemetry):
    """Gauges of the scheduler, a histogram of its steps, tokens by phase."""
    with llmtrace.capture() as records:
        run_batch(packed)
    metrics = telemetry.metrics()
    (point,) = metrics["llmtrace.batch.step.duration"].data.data_points
    assert point.count == len(telemetry.spans("batch_step"))
    tokens = {
        point.attributes["llmtrace.batch.phase"]: point.value
        for point in metrics["llmtrace.batch.tokens"].data.data_points
    }
    assert tokens["decode"] == sum(record.output_tokens - 1 for record in records)
    for name in ("active", "waiting", "cache_usage"):
        assert metrics[f"llmtrace.batch.{name}"].data.data_points
    (ttft,) = metrics["gen_ai.server.time_to_first_token"].data.data_points
    (queue_,) = metrics["llmtrace.queue.duration"].data.data_points
    (active,) = metrics["llmtrace.requests.active"].data.data_points
    assert ttft.count == queue_.count == 3
    assert active.value == 0


def test_a_stream_is_delivered(packed, telemetry):
    """The first output that the reader takes is the delivery; it comes after the token."""
    with llmtrace.capture() as records, managed(packed) as manager:
        key = manager.add_request(PROMPTS[0], streaming=True)
        outputs = [len(output.generated_tokens) for output in manager.request_id_iter(key)]
    assert outputs == [1, 2, 3, 4, 5, 6]
    (record,) = records
    assert record.parameters.stream
    assert record.first_delivery_s > record.ttft_s
    (span,) = telemetry.requests()
    assert span.attributes["gen_ai.response.time_to_first_chunk"] == record.first_delivery_s


def test_one_token_only(packed, telemetry):
    """``max_new_tokens=1`` and a stop at the first token: a TTFT, and no gap."""
    with llmtrace.capture() as records:
        (first,) = run_batch(packed, PROMPTS[:1], config(max_new_tokens=1)).values()
        stop = first.generated_tokens[0]
        run_batch(packed, PROMPTS[:1], config(eos_token_id=stop))
    for record, reason in zip(records, ("length", "stop"), strict=True):
        assert record.finish_reasons == (reason,)
        assert record.output_tokens == 1
        assert record.itl_s == []
        assert record.tpot_s is None
        check_latencies(record)


def test_a_prompt_that_begins_like_another_is_cached(packed, telemetry):
    """Blocks that are shared are cached input, not prefilled again."""
    prompt = [7 + i % 40 for i in range(80)]
    with llmtrace.capture() as records, managed(packed) as manager:
        for _ in range(2):
            manager.add_request(prompt)
            results(manager, 1)
    first, second = records
    assert first.input_tokens == second.input_tokens == 80
    assert first.input_tokens_cached is None
    assert second.input_tokens_cached == 64
    assert first.steps[0].forwards == 3
    assert second.steps[0].forwards == 1


def test_a_request_that_is_put_back_keeps_its_tokens(packed, telemetry):
    """Too small a cache: what was generated before counts, and the record says what happened."""
    prompts = [[5 + i, *range(3, 32)] for i in range(3)]
    llmtrace.uninstrument()
    small = {"num_blocks": 5, "block_size": 16, "max_batch_tokens": 96, "cpu_offload_space": 0}
    long = config(max_new_tokens=34)
    without = [o.generated_tokens for o in run_batch(packed, prompts, long, cache=small).values()]
    llmtrace.instrument(tracer_provider=telemetry.tracer_provider)
    with llmtrace.capture() as records:
        outputs = run_batch(packed, prompts, long, cache=small)
    assert [o.generated_tokens for o in outputs.values()] == without
    assert sum(record.preemptions for record in records) > 0
    for key, record in by_id(records).items():
        assert record.output_tokens == len(outputs[key].generated_tokens) == 34
        assert record.finish_reasons == ("length",)
        assert record.input_tokens == 30
        check_latencies(record)
        found = {finding.code for finding in record.findings}
        assert ("preempted" in found) == (record.preemptions > 0)


def test_sequences_of_one_prompt(packed, telemetry):
    """Returned sequences are requests each, with their prompt's forwards in common."""
    with llmtrace.capture() as records, telemetry.tracer.start_as_current_span("app") as app:
        outputs = run_batch(packed, [PROMPTS[2]], config(num_return_sequences=3, do_sample=True))
    assert len(outputs) == 3
    records = by_id(records)
    assert records.keys() == outputs.keys()
    for key, output in outputs.items():
        assert records[key].output_tokens == len(output.generated_tokens)
        assert records[key].input_tokens == 57
        check_latencies(records[key])
    for span in telemetry.requests():
        assert span.parent.span_id == app.get_span_context().span_id
    children = [record for key, record in records.items() if "child" in key]
    assert [record.input_tokens_cached for record in children] == [56, 56]


def test_given_up_before_it_is_admitted(packed, telemetry):
    """A cancelled request ends, and is no error; one that is under way keeps its tokens."""
    with llmtrace.capture() as records, managed(packed, start=False) as manager:
        key = manager.add_request(PROMPTS[0])
        other = manager.add_request(PROMPTS[1])
        manager.cancel_request(key)
        manager.start()
        results(manager, 1)
    records = by_id(records)
    assert records[key].finish_reasons == ("cancelled",)
    assert records[key].output_tokens == 0
    assert records[key].error is None
    assert records[key].ttft_s is None
    assert records[key].queue_s is None
    assert records[other].output_tokens == 6


def test_given_up_under_way(packed, telemetry):
    """What it had got by then counts."""
    with llmtrace.capture() as records, managed(packed, config(max_new_tokens=150)) as manager:
        key = manager.add_request(PROMPTS[0], streaming=True)
        stream = manager.request_id_iter(key)
        next(stream)
        next(stream)
        manager.cancel_request(key)
        manager.add_request(PROMPTS[1], max_new_tokens=2)
        while manager.get_result(timeout=WAIT_S).request_id == key:
            pass
    record = by_id(records)[key]
    assert record.finish_reasons == ("cancelled",)
    assert 2 <= record.output_tokens < 150
    assert len(record.itl_s) == record.output_tokens - 1


def test_the_loop_fails(packed, telemetry):
    """Every request ends with the error's type and what it had got; nobody waits for ever."""
    forward, calls = packed.forward, []

    def failing(*args, **kwargs):
        calls.append(1)
        if len(calls) > 3:
            raise ZeroDivisionError
        return forward(*args, **kwargs)

    with llmtrace.capture() as records, managed(packed, start=False) as manager:
        packed.forward = failing
        keys = [manager.add_request(prompt, max_new_tokens=50) for prompt in PROMPTS[:2]]
        manager.start()
        outputs = results(manager, 2)
        manager._generation_thread.join(WAIT_S)
    del packed.forward
    records = by_id(records)
    for key in keys:
        assert outputs[key].error is not None
        assert records[key].error == "ZeroDivisionError"
        assert records[key].finish_reasons == ("error",)
        assert records[key].output_tokens == len(outputs[key].generated_tokens) == 3
        assert len(records[key].itl_s) == 2
    assert session().pipeline.running == 0
    for span in telemetry.requests():
        assert span.attributes["error.type"] == "ZeroDivisionError"


def test_a_manager_that_cannot_begin(packed, telemetry, monkeypatch):
    """No processor was ever made: its requests end with the error."""
    with llmtrace.capture() as records, managed(packed, start=False) as manager:
        monkeypatch.setattr(manager, "_create_batch_processor", lambda: 1 / 0)
        manager.add_request(PROMPTS[0])
        manager.start()
        manager._generation_thread.join(WAIT_S)
    (record,) = records
    assert record.error == "ZeroDivisionError"
    assert record.output_tokens == 0


def test_stopped_at_once(packed, telemetry):
    """A hard stop fails what is under way: a record says with what."""
    with llmtrace.capture() as records, managed(packed, config(max_new_tokens=200)) as manager:
        key = manager.add_request(PROMPTS[0], streaming=True)
        next(manager.request_id_iter(key))
        manager.stop(block=True, timeout=WAIT_S, hard_stop=True)
    (record,) = records
    assert record.error == "RuntimeError"
    assert 1 <= record.output_tokens < 200


def test_the_queue_is_full(packed, telemetry, monkeypatch):
    """``add_request`` raises what it raises, and the request ends with it."""
    with llmtrace.capture() as records, managed(packed, start=False, max_queue_size=1) as manager:
        manager.add_request(PROMPTS[0])
        put = manager.input_queue.put
        monkeypatch.setattr(
            manager.input_queue, "put", lambda item, **_: put(item, block=True, timeout=0.01)
        )
        with pytest.raises(queue.Full):
            manager.add_request(PROMPTS[1])
        manager.start()
        results(manager, 1)
    assert [(record.error, record.output_tokens) for record in records] == [
        ("queue.Full", 0),
        (None, 6),
    ]


def test_a_manager_that_was_never_started(packed, telemetry):
    """Its requests end with it."""
    with llmtrace.capture() as records:
        with managed(packed, start=False) as manager:
            manager.add_request(PROMPTS[0])
        del manager
        gc.collect()
    (record,) = records
    assert (record.error, record.output_tokens) == ("_OTHER", 0)
    assert [finding.code for finding in record.findings] == ["batch_stopped"]
    assert session().pipeline.running == 0


def test_given_up_before_the_scheduler_has_it(packed, telemetry, monkeypatch):
    """Such a cancellation is lost: the request is served, and its record says so."""
    with llmtrace.capture() as records, managed(packed, start=False) as manager:
        kind = manager._create_batch_processor().scheduler.__class__
        clear, begun = kind.clear_cancelled_requests, []

        def early(scheduler):
            if not begun:
                begun.append(manager.add_request(PROMPTS[0], request_id="early"))
                scheduler.set_request_cancellation("early")
            return clear(scheduler)

        monkeypatch.setattr(kind, "clear_cancelled_requests", early)
        llmtrace.uninstrument()
        llmtrace.instrument(tracer_provider=telemetry.tracer_provider)
        manager.add_request(PROMPTS[1], request_id="other")
        manager.start()
        outputs = results(manager, 2)
    assert len(outputs["early"].generated_tokens) == 6
    record = by_id(records)["early"]
    assert record.finish_reasons == ("length",)
    assert record.output_tokens == 6


def test_a_request_that_is_refused_is_none(packed, telemetry):
    """A manager that has stopped takes no request: there is no span of it."""
    with llmtrace.capture() as records, managed(packed) as manager:
        manager.add_request(PROMPTS[0])
        results(manager, 1)
        manager.stop(block=True, timeout=WAIT_S)
        assert manager.add_request(PROMPTS[1]) is None
    assert len(records) == 1
    assert len(telemetry.requests()) == 1


def test_an_id_that_comes_twice(packed, telemetry):
    """The scheduler forgets the first, and its record says so."""
    with llmtrace.capture() as records, managed(packed, start=False) as manager:
        manager.add_request(PROMPTS[0], request_id="same")
        manager.add_request(PROMPTS[1], request_id="same")
        manager.start()
        (output,) = results(manager, 1).values()
    first, second = records
    assert first.error == "_OTHER"
    assert [finding.code for finding in first.findings] == ["request_id_reused"]
    # Some releases cannot serve it then; the record says what they say.
    assert (second.error is None) == (output.error is None)
    assert second.output_tokens == len(output.generated_tokens)


def test_several_threads_and_two_managers(packed, telemetry):
    """Each request has its own parent and its own tokens, whoever adds it, to whichever manager."""
    outputs, parents = {}, {}

    def add(name, manager, prompt):
        with telemetry.tracer.start_as_current_span(name) as span:
            manager.add_request(prompt, request_id=name, max_new_tokens=4 + len(prompt) % 3)
            parents[name] = span.get_span_context()

    with (
        llmtrace.capture() as records,
        managed(packed, start=False) as one,
        managed(packed, start=False) as two,
    ):
        threads = [
            threading.Thread(target=add, args=(f"r{i}", (one, two)[i % 2], [5 + i] * (3 + i)))
            for i in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        one.start()
        two.start()
        outputs = results(one, 6) | results(two, 6)
    assert by_id(records).keys() == outputs.keys() == parents.keys()
    for key, record in by_id(records).items():
        assert record.output_tokens == len(outputs[key].generated_tokens)
        assert int(record.trace_id, 16) == parents[key].trace_id
    for span in telemetry.requests():
        name = span.attributes["llmtrace.batch.request_id"]
        assert span.parent.span_id == parents[name].span_id


def test_two_threads_bring_a_manager_its_first_requests(packed, telemetry, monkeypatch):
    """They are of one batch, whoever comes first."""
    both = threading.Barrier(2)
    look = batching.cold_before

    def together(*facts):
        with suppress(threading.BrokenBarrierError):  # the other one waits elsewhere
            both.wait(0.5)
        return look(*facts)

    monkeypatch.setattr(batching, "cold_before", together)
    with llmtrace.capture() as records, managed(packed, start=False) as manager:
        threads = [
            threading.Thread(target=manager.add_request, args=(prompt,)) for prompt in PROMPTS[:2]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        manager.start()
        results(manager, 2)
    assert [record.output_tokens for record in records] == [6, 6]


def test_ids_of_two_managers_are_not_mixed(packed, telemetry):
    """Both count their requests from 0."""
    with (
        llmtrace.capture() as records,
        managed(packed) as one,
        managed(packed) as two,
    ):
        assert one.add_request(PROMPTS[0], max_new_tokens=2) == "req_0"
        assert two.add_request(PROMPTS[1], max_new_tokens=5) == "req_0"
        results(one, 1)
        results(two, 1)
    assert sorted((r.input_tokens, r.output_tokens) for r in records) == [(3, 2), (4, 5)]


def test_the_first_request_comes_while_a_step_is_prepared(packed, telemetry, monkeypatch):
    """The loop had nothing to do with us until then: its very first step counts."""
    with llmtrace.capture() as records, managed(packed, start=False) as manager:
        manager.warmup()
        processor = manager.batch_processor
        take_new = processor._update_tp_group_state

        def submit_first():
            monkeypatch.undo()
            adder = threading.Thread(target=manager.add_request, args=(PROMPTS[0],))
            adder.start()
            adder.join()
            return take_new()

        monkeypatch.setattr(processor, "_update_tp_group_state", submit_first)
        manager.start()
        results(manager, 1)
    (record,) = records
    assert record.output_tokens == 6
    check_latencies(record)


def test_turned_off_and_on_while_a_manager_runs(packed, telemetry):
    """What is under way then is given up; what comes after turning on again is traced."""
    with managed(packed, config(max_new_tokens=200)) as manager:
        key = manager.add_request(PROMPTS[0], streaming=True)
        stream = manager.request_id_iter(key)
        next(stream)
        llmtrace.uninstrument()
        assert session().pipeline.running == 0
        manager.add_request(PROMPTS[1], max_new_tokens=3)
        rest = list(stream)
        assert len(rest[-1].generated_tokens) == 200
        while not manager.get_result(timeout=WAIT_S).is_finished():
            pass
        llmtrace.instrument(tracer_provider=telemetry.tracer_provider)
        with llmtrace.capture() as records:
            manager.add_request(PROMPTS[1], max_new_tokens=3)
            results(manager, 1)
    (record,) = records
    assert record.output_tokens == 3
    check_latencies(record)


def test_turned_on_while_a_manager_runs(packed):
    """Its loop began unwatched: requests from now on are traced all the same."""
    llmtrace.uninstrument()
    with managed(packed) as manager:
        manager.add_request(PROMPTS[0])
        results(manager, 1)
        with llmtrace.instrument(), llmtrace.capture() as records:
            manager.add_request(PROMPTS[1])
            results(manager, 1)
    (record,) = records
    assert record.output_tokens == 6
    check_latencies(record)


def test_a_paged_generate_is_a_group(packed, telemetry):
    """``generate(cache_implementation="paged")``: its rows are the requests."""
    import torch

    prompt = torch.tensor([[5, 6, 7], [8, 9, 10]])
    with llmtrace.capture() as records:
        packed.generation_config.eos_token_id = STOP
        packed.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            cache_implementation="paged",
            max_new_tokens=4,
            do_sample=False,
            continuous_batching_config=cache(),
        )
    assert [(record.strategy, record.output_tokens) for record in records] == [
        ("continuous", 4)
    ] * 2
    (group,) = telemetry.spans("llmtrace.request")
    assert {span.parent.span_id for span in telemetry.requests()} == {group.context.span_id}


def test_a_block_around_it(packed, telemetry):
    """TTFT from the request counts from the ``request()`` block, and its attributes are kept."""
    with llmtrace.capture() as records, llmtrace.request(attributes={"user": "u1"}):
        run_batch(packed, PROMPTS[:2])
    assert len(records) == 2
    for record in records:
        assert record.attributes["user"] == "u1"
        assert record.ttft_from_request_s > record.ttft_s
        assert record.queue_s < record.ttft_s


def test_only_so_many_steps_are_kept(packed, telemetry):
    """``max_step_spans`` bounds what one request keeps; counts go on."""
    llmtrace.instrument(max_step_spans=4)
    with llmtrace.capture() as records:
        run_batch(packed, PROMPTS[:2], config(max_new_tokens=20))
    llmtrace.instrument(max_step_spans=4096)
    for record in records:
        assert record.output_tokens == 20
        assert record.steps_truncated
        assert len(record.steps) == 4
        assert record.e2e_s > record.ttft_s + sum(record.itl_s)
        assert record.tpot_s == pytest.approx((record.e2e_s - record.ttft_s) / 19)


def test_nobody_listens(packed):
    """Without a provider or a subscriber nothing is kept."""
    session().arm()
    with managed(packed) as manager:
        manager.add_request(PROMPTS[0])
        results(manager, 1)
    assert session().pipeline.running == 0


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Batch, "add"),
        (Batch, "prepared"),
        (Batch, "fetched"),
        (Batch, "given_out"),
        (Batch, "finish"),
        (Batch, "found"),
        (Batch, "stopped"),
        (BatchedRequest, "finish"),
        (batch_loop, "in_step"),
        (batch_loop, "cache_usage"),
    ],
)
def test_what_fails_in_our_part_is_not_theirs(
    packed, monkeypatch, provokes_internal_errors, owner, name
):
    """Same tokens, no error, nobody waits, whichever of our functions breaks."""
    llmtrace.uninstrument()
    without = [output.generated_tokens for output in run_batch(packed).values()]

    def broken(*_, **__):
        raise LookupError(name)

    monkeypatch.setattr(owner, name, broken)
    with llmtrace.instrument():
        outputs = run_batch(packed)
    assert [output.generated_tokens for output in outputs.values()] == without
    assert all(output.error is None for output in outputs.values())


def test_text_is_recorded_where_it_is_asked_for(packed, telemetry):
    """With content on and a tokenizer known, prompt and output are on the span; else not."""

    backend = Tokenizer(WordLevel({f"w{i}": i for i in range(64)}, unk_token="w0"))
    backend.pre_tokenizer = Whitespace()
    words = PreTrainedTokenizerFast(tokenizer_object=backend)
    llmtrace.instrument(content="span_only")
    with llmtrace.capture():
        outputs = run_batch(packed, [words("w5 w6 w7").input_ids])
    llmtrace.instrument(content="no_content")
    with llmtrace.capture():
        run_batch(packed, [words("w5 w6 w7").input_ids])
    with_text, without = telemetry.requests()
    (output,) = outputs.values()
    assert "w5 w6 w7" in with_text.attributes["gen_ai.input.messages"]
    assert words.decode(output.generated_tokens) in with_text.attributes["gen_ai.output.messages"]
    assert "gen_ai.input.messages" not in without.attributes


def test_a_second_exporter_sees_whole_traces(packed, telemetry):
    """A request's span ends after its steps', also when many end at once."""
    exporter = InMemorySpanExporter()
    telemetry.tracer_provider.add_span_processor(SimpleSpanProcessor(exporter))
    with llmtrace.capture():
        run_batch(packed, [[5 + i] * 4 for i in range(10)])
    order = [span.context.span_id for span in exporter.get_finished_spans()]
    for span in telemetry.requests():
        for child in telemetry.children(span):
            assert order.index(child.context.span_id) < order.index(span.context.span_id)

"""The spans of one request: names, times, parents, attributes."""

import contextvars
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
from transformers import LogitsProcessor, LogitsProcessorList, TextIteratorStreamer

import llmtrace
from llmtrace.guard import guard
from llmtrace.version import __version__

EOS, PAD = 2, 0


class Force(LogitsProcessor):
    """Makes row *r* produce the stop token as its *lengths[r]*-th token."""

    def __init__(self, prompt_length, lengths):
        self.prompt_length, self.lengths = prompt_length, lengths

    def __call__(self, input_ids, scores):
        step = input_ids.shape[1] - self.prompt_length + 1
        for row, length in enumerate(self.lengths):
            scores[row] = float("-inf")
            scores[row, EOS if step >= length else 9] = 0.0
        return scores


def forced(prompt, *lengths):
    return LogitsProcessorList([Force(prompt.shape[1], lengths)])


class Letters:
    def decode(self, ids, **_):
        return "".join(chr(97 + i % 26) + " " for i in ids)


def test_one_request_has_its_tree(tiny, prompt, telemetry):
    """A request span holds one ``prefill``, one ``first_token`` and N-1 ``decode`` spans."""
    tiny.generate(prompt, max_new_tokens=6, do_sample=False)
    (request,) = telemetry.requests()
    assert request.name == "text_completion llama"
    assert request.kind is SpanKind.INTERNAL
    assert request.parent is None
    assert request.status.status_code is StatusCode.UNSET
    assert request.instrumentation_scope.name == "llmtrace"
    assert request.instrumentation_scope.version == __version__
    names = [s.name for s in telemetry.children(request)]
    assert sorted(names) == ["decode"] * 5 + ["first_token", "prefill"]
    assert len(telemetry.spans()) == 8


def test_spans_tile_the_request(tiny, prompt, telemetry):
    """``first_token`` begins with the request, each ``decode`` where the one before ended."""
    tiny.generate(prompt, max_new_tokens=6, do_sample=False)
    (request,) = telemetry.requests()
    (first,) = telemetry.children(request, "first_token")
    (prefill,) = telemetry.children(request, "prefill")
    decode = telemetry.children(request, "decode")
    assert first.start_time == request.start_time
    bounds = [first.end_time]
    for index, step in enumerate(decode, start=1):
        assert step.start_time == bounds[-1]
        assert step.attributes["llmtrace.step.index"] == index
        bounds.append(step.end_time)
    assert bounds == sorted(bounds)
    assert bounds[-1] <= request.end_time
    assert first.start_time < prefill.start_time < prefill.end_time < first.end_time
    assert first.attributes["llmtrace.step.index"] == 0
    e2e_ns = request.attributes["llmtrace.e2e"] * 1e9
    assert bounds[-1] - request.start_time == pytest.approx(e2e_ns, abs=2)
    total = request.attributes["llmtrace.ttft"] + sum(request.attributes["llmtrace.itl"])
    assert total == pytest.approx(request.attributes["llmtrace.e2e"], abs=1e-9)


def test_request_attributes(tiny, prompt, telemetry):
    """Names, types and values of the request span's attributes."""
    tiny.generate(prompt, max_new_tokens=6, do_sample=True, temperature=0.5, top_p=0.9, top_k=11)
    (request,) = telemetry.requests()
    found = dict(request.attributes)
    exact = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "huggingface.transformers",
        "gen_ai.request.model": "llama",
        "gen_ai.request.max_tokens": 6,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 11,
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.response.finish_reasons": ("length",),
        "llmtrace.strategy": "sample",
        "llmtrace.do_sample": True,
        "llmtrace.batch_size": 1,
        "llmtrace.input_tokens.padded": 5,
        "llmtrace.clock": "host",
        "llmtrace.device": "cpu",
        "llmtrace.dtype": "float32",
        "llmtrace.attn_implementation": "sdpa",
        "llmtrace.cache_implementation": "dynamic",
        "llmtrace.compiled": False,
        "llmtrace.cold": True,
        "llmtrace.cold.reasons": ("first_request",),
        # 2 layers x keys and values x 10 positions x 2 heads x 8 x 4 bytes
        "llmtrace.kv_cache.bytes": 2 * 2 * 10 * 2 * 8 * 4,
        # 4 bytes of each weight of two layers, their norms, the last norm and the output; then
        # 256 bytes of each token so far: 6 to 10 of them.
        "llmtrace.decode.bytes": 4.0 * (2 * (4 * 16**2 + 3 * 16 * 32 + 2 * 16) + 16 + 16 * 64)
        + 256 * 8,
        # 5 tokens through the layers, attention of 5 x 5 among them, logits of the last one.
        "llmtrace.prefill.flops": 2.0 * 5 * 2 * (4 * 16**2 + 3 * 16 * 32)
        + 2 * 2 * 16 * 25
        + 2 * 16 * 64,
    }
    for name, value in exact.items():
        assert found.pop(name) == value, name
        assert type(request.attributes[name]) is type(value), name
    floats = {
        "llmtrace.ttft",
        "llmtrace.prepare",
        "llmtrace.prefill",
        "llmtrace.sampling",
        "llmtrace.tpot",
        "llmtrace.e2e",
        "llmtrace.tgs",
        "llmtrace.decode_tgs",
        "llmtrace.itl.p50",
        "llmtrace.itl.p95",
        "llmtrace.itl.p99",
        "llmtrace.itl.max",
    }
    for name in floats:
        assert type(found.pop(name)) is float, name
    assert len(found.pop("llmtrace.itl")) == 5
    assert len(found.pop("llmtrace.step.host_durations")) == 6
    assert found == {}


def test_greedy_has_no_sampling_attributes(tiny, prompt, telemetry):
    """Temperature and its kind are absent where they are not applied."""
    tiny.generate(prompt, max_new_tokens=2, do_sample=False)
    (request,) = telemetry.requests()
    assert not {n for n in request.attributes if n.endswith(("temperature", "top_p", "top_k"))}


def test_rows_stop_on_their_own(tiny, telemetry):
    """Two rows that stop at 3 and 7 make 10 tokens: the stop token counts, padding does not."""
    prompt = torch.tensor([[PAD, PAD, 5, 6, 7], [5, 6, 7, 8, 9]])
    mask = (prompt != PAD).long()
    out = tiny.generate(
        prompt,
        attention_mask=mask,
        max_new_tokens=10,
        eos_token_id=EOS,
        pad_token_id=EOS,
        logits_processor=forced(prompt, 3, 7),
        do_sample=False,
    )
    assert out.shape == (2, 12)
    (request,) = telemetry.requests()
    assert request.attributes["gen_ai.usage.output_tokens"] == 10
    assert request.attributes["llmtrace.output_tokens.per_row"] == (3, 7)
    assert request.attributes["gen_ai.usage.input_tokens"] == 8
    assert request.attributes["llmtrace.input_tokens.per_row"] == (3, 5)
    assert request.attributes["llmtrace.input_tokens.padded"] == 10
    assert request.attributes["gen_ai.response.finish_reasons"] == ("stop", "stop")
    assert len(telemetry.children(request, "decode")) == 6


def test_one_token_has_no_gaps(tiny, prompt, telemetry):
    """With one output token there is a TTFT, and no ITL, TPOT or ``decode`` span."""
    tiny.generate(prompt, max_new_tokens=1)
    (request,) = telemetry.requests()
    assert request.attributes["llmtrace.ttft"] > 0
    absent = {"llmtrace.itl", "llmtrace.tpot", "llmtrace.itl.p50", "llmtrace.decode_tgs"}
    assert not absent & set(request.attributes)
    assert telemetry.children(request, "decode") == []


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), GeneratorExit()])
def test_an_error_passes_through_and_ends_the_span(tiny, prompt, telemetry, error):
    """The same exception comes out, tokens so far are kept, the next request is clean."""

    def explode(input_ids, scores, **_):
        if input_ids.shape[1] == prompt.shape[1] + 3:
            raise error
        return scores

    with pytest.raises(type(error)) as caught:
        tiny.generate(prompt, max_new_tokens=9, logits_processor=[explode], do_sample=False)
    assert caught.value is error
    tiny.generate(prompt, max_new_tokens=2, do_sample=False)
    failed, clean = telemetry.requests()
    assert failed.attributes["gen_ai.usage.output_tokens"] == 3
    assert failed.attributes["gen_ai.response.finish_reasons"] == ("error",)
    assert failed.attributes["llmtrace.ttft"] > 0
    if isinstance(error, GeneratorExit):
        assert failed.status.status_code is StatusCode.UNSET
        assert "error.type" not in failed.attributes
    else:
        assert failed.status.status_code is StatusCode.ERROR
        assert failed.attributes["error.type"] == type(error).__name__
        assert failed.status.description is None
    assert clean.parent is None
    assert clean.attributes["gen_ai.usage.output_tokens"] == 2


def test_a_request_refused_before_it_began(tiny, prompt, telemetry):
    """An argument transformers refuses gives a failed span with no tokens and no TTFT."""
    with pytest.raises(ValueError, match="max_new_tokens"):
        tiny.generate(prompt, max_new_tokens=0)
    (request,) = telemetry.requests()
    assert request.attributes["gen_ai.usage.output_tokens"] == 0
    assert "llmtrace.ttft" not in request.attributes
    assert telemetry.children(request) == []


def test_parent_is_the_current_span(tiny, prompt, telemetry):
    """In the app's own thread the request lies under the app's span, and so do its own spans."""

    def user_code(input_ids, scores, **_):
        telemetry.tracer.start_span("user").end()
        return scores

    with telemetry.tracer.start_as_current_span("handler") as handler:
        tiny.generate(prompt, max_new_tokens=1, logits_processor=[user_code])
    (request,) = telemetry.requests()
    assert request.parent.span_id == handler.get_span_context().span_id
    (inside,) = telemetry.spans("user")
    assert inside.parent.span_id == request.context.span_id


def test_parent_in_a_thread_is_where_the_streamer_was_built(tiny, prompt, telemetry):
    """``Thread(target=model.generate)`` is traced under the span around the streamer."""
    with telemetry.tracer.start_as_current_span("handler") as handler:
        streamer = TextIteratorStreamer(Letters())
    thread = threading.Thread(
        target=tiny.generate,
        args=(prompt,),
        kwargs={"max_new_tokens": 3, "streamer": streamer},
    )
    thread.start()
    list(streamer)
    thread.join()
    (request,) = telemetry.requests()
    assert request.parent.span_id == handler.get_span_context().span_id


def test_parent_in_a_thread_with_its_own_span_is_that_span(tiny, prompt, telemetry):
    """The current span counts before the one around the streamer."""
    with telemetry.tracer.start_as_current_span("elsewhere"):
        streamer = TextIteratorStreamer(Letters())

    def work():
        with telemetry.tracer.start_as_current_span("worker"):
            tiny.generate(prompt, max_new_tokens=2, streamer=streamer)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    (worker,) = telemetry.spans("worker")
    (request,) = telemetry.requests()
    assert request.parent.span_id == worker.context.span_id


def test_without_any_span_a_thread_has_a_root(tiny, prompt, telemetry):
    """Failing all else the request is a root span, and no context is left behind."""
    thread = threading.Thread(target=tiny.generate, args=(prompt,), kwargs={"max_new_tokens": 2})
    thread.start()
    thread.join()
    (request,) = telemetry.requests()
    assert request.parent is None
    assert otel_context.get_current() == {}


def test_a_copied_context_keeps_its_parent(tiny, prompt, telemetry):
    """``contextvars.copy_context().run`` in a pool, as ``asyncio.to_thread`` does it."""
    with ThreadPoolExecutor(1) as pool, telemetry.tracer.start_as_current_span("handler") as span:
        context = contextvars.copy_context()
        pool.submit(context.run, tiny.generate, prompt, max_new_tokens=2).result()
    (request,) = telemetry.requests()
    assert request.parent.span_id == span.get_span_context().span_id


def test_concurrent_requests_do_not_mix(tiny, prompt, telemetry):
    """Four threads on one model: each request has its own steps, and only those."""
    lengths = [3, 5, 7, 9]
    barrier = threading.Barrier(len(lengths))

    def work(length):
        for _ in range(5):
            barrier.wait()
            tiny.generate(prompt, max_new_tokens=length, do_sample=False)

    threads = [threading.Thread(target=work, args=(n,)) for n in lengths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = []
    for request in telemetry.requests():
        n = request.attributes["gen_ai.usage.output_tokens"]
        assert n == request.attributes["gen_ai.request.max_tokens"]
        assert len(telemetry.children(request, "decode")) == n - 1
        counts.append(n)
    assert sorted(counts) == sorted(lengths * 5)


def test_a_server_span_above_gives_ttft_from_request(tiny, prompt, telemetry):
    """With a SERVER span above, the wait before ``generate()`` is queue time."""
    server = telemetry.tracer.start_span("POST /chat", kind=SpanKind.SERVER)
    token = otel_context.attach(set_span_in_context(server))
    threading.Event().wait(0.02)
    tiny.generate(prompt, max_new_tokens=2)
    otel_context.detach(token)
    server.end()
    (request,) = telemetry.requests()
    waited = (request.start_time - server.start_time) / 1e9
    assert request.attributes["llmtrace.queue"] == pytest.approx(waited, abs=1e-3)
    assert request.attributes["llmtrace.ttft.from_request"] == pytest.approx(
        waited + request.attributes["llmtrace.ttft"], abs=1e-3
    )


def test_a_server_span_further_up_counts_as_well(tiny, prompt, telemetry):
    """With the app's own spans between it and ``generate()``, also in a thread."""
    with (
        telemetry.tracer.start_as_current_span("POST /chat", kind=SpanKind.SERVER) as server,
        telemetry.tracer.start_as_current_span("handler"),
    ):
        streamer = TextIteratorStreamer(Letters())
        thread = threading.Thread(
            target=tiny.generate,
            args=(prompt,),
            kwargs={"max_new_tokens": 2, "streamer": streamer},
        )
        thread.start()
        list(streamer)
        thread.join()
    tiny.generate(prompt, max_new_tokens=2)
    (request, alone) = telemetry.requests()
    waited = (request.start_time - server.start_time) / 1e9
    assert request.attributes["llmtrace.queue"] == pytest.approx(waited, abs=1e-3)
    assert "llmtrace.queue" not in alone.attributes


class Slow(InMemorySpanExporter):
    """Takes a while for each batch."""

    def export(self, spans):
        time.sleep(0.02)
        return super().export(spans)


class Raising(SpanProcessor):
    """Fails on some spans, after the processors before it have had them."""

    def __init__(self, name):
        self.name = name

    def on_end(self, span):
        if span.name.startswith(self.name):
            raise ValueError(span.name)


@pytest.mark.parametrize("name", ["decode", "text_completion"])
def test_a_processor_that_raises_costs_no_span_of_others(tiny, prompt, name, caplog):
    """Said once, with the error; it is the application's failure, and not counted as ours."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    provider.add_span_processor(Raising(name))
    llmtrace.instrument(tracer_provider=provider)
    failures = guard.failures
    guard.warned.discard("span processors")
    for _ in range(2):
        tiny.generate(prompt, max_new_tokens=5)
    provider.force_flush()
    assert len(exporter.get_finished_spans()) == 2 * (1 + 1 + 5)
    assert guard.failures == failures
    (said,) = [r for r in caplog.records if "span processor raised" in r.getMessage()]
    assert isinstance(said.exc_info[1], ValueError)


@pytest.mark.parametrize(
    ("room", "kind"), [(2, InMemorySpanExporter), (16, Slow), (64, Slow), (512, Slow)]
)
def test_a_small_queue_loses_no_span(tiny, prompt, room, kind):
    """Spans are built faster than they are exported, and wait for that."""
    exporter = kind()
    provider = TracerProvider()
    provider.add_span_processor(
        BatchSpanProcessor(exporter, max_queue_size=room, max_export_batch_size=room)
    )
    llmtrace.instrument(tracer_provider=provider)
    for _ in range(2):
        tiny.generate(prompt, max_new_tokens=300)
    provider.shutdown()
    assert len(exporter.get_finished_spans()) == 2 * (1 + 1 + 300)


def test_many_requests_at_once_lose_no_span(tiny, prompt):
    """Sixteen requests that end together fit a default batch processor and a slow exporter."""
    exporter = Slow()
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    llmtrace.instrument(tracer_provider=provider)
    threads = [
        threading.Thread(target=tiny.generate, args=(prompt,), kwargs={"max_new_tokens": 200})
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    provider.shutdown()
    assert len(exporter.get_finished_spans()) == 16 * (1 + 1 + 200)


def test_steps_none_keeps_the_arrays(tiny, prompt, telemetry):
    """``steps="none"`` emits one span, which carries what a report needs."""
    llmtrace.instrument(
        tracer_provider=telemetry.tracer_provider,
        meter_provider=telemetry.meter_provider,
        steps="none",
    )
    tiny.generate(prompt, max_new_tokens=6)
    (span,) = telemetry.spans()
    assert len(span.attributes["llmtrace.itl"]) == 5


def test_many_steps_are_truncated_but_counted(tiny, prompt, telemetry):
    """Beyond ``max_step_spans`` steps only count: tokens, TPOT and E2E stay exact."""
    llmtrace.instrument(
        tracer_provider=telemetry.tracer_provider,
        meter_provider=telemetry.meter_provider,
        max_step_spans=4,
    )
    tiny.generate(prompt, max_new_tokens=20, do_sample=False)
    (request,) = telemetry.requests()
    attributes = request.attributes
    assert attributes["llmtrace.steps.truncated"] is True
    assert attributes["gen_ai.usage.output_tokens"] == 20
    assert len(telemetry.children(request, "decode")) == 3
    assert len(attributes["llmtrace.itl"]) == 3
    decoding = attributes["llmtrace.e2e"] - attributes["llmtrace.ttft"]
    assert attributes["llmtrace.tpot"] == pytest.approx(decoding / 19)
    assert attributes["llmtrace.findings"] == ("steps_truncated",)


def test_no_text_leaves_unless_asked_for(tiny, prompt, telemetry):
    """Prompt and output text are off by default, and on the request span with ``span_only``."""
    letters = Letters()
    tiny.generate(prompt, max_new_tokens=2, streamer=TextIteratorStreamer(letters))
    llmtrace.instrument(
        tracer_provider=telemetry.tracer_provider,
        meter_provider=telemetry.meter_provider,
        content="span_only",
    )
    out = tiny.generate(prompt, max_new_tokens=2, streamer=TextIteratorStreamer(letters))
    silent, telling = telemetry.requests()
    assert not [name for name in silent.attributes if name.endswith("messages")]
    (message,) = json.loads(telling.attributes["gen_ai.output.messages"])
    assert message["role"] == "assistant"
    assert message["finish_reason"] == "length"
    assert message["parts"] == [{"type": "text", "content": letters.decode(out[0, 5:].tolist())}]
    (asked,) = json.loads(telling.attributes["gen_ai.input.messages"])
    assert asked["parts"][0]["content"] == letters.decode(prompt[0].tolist())


def test_suppressed_instrumentation_is_honoured(tiny, prompt, telemetry):
    """Under OpenTelemetry's suppression flag nothing is recorded."""
    token = otel_context.attach(otel_context.set_value("suppress_instrumentation", True))
    tiny.generate(prompt, max_new_tokens=2)
    otel_context.detach(token)
    assert telemetry.spans() == []
    assert telemetry.metrics() == {}

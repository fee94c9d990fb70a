"""From marks to a record: pure arithmetic, off the request's thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from llmtrace.known_findings import STEPS_NOT_SEEN, STEPS_TRUNCATED, TOKENS_FROM_FORWARDS
from llmtrace.recording.delivery import delivery_findings
from llmtrace.recording.legs import device_shares, leg_records, legs_by_forward
from llmtrace.recording.recorder import Marks
from llmtrace.recording.request import FinishedRequest, RequestInfo
from llmtrace.recording.request_utilization import prefill_s, utilization
from llmtrace.recording.stream import StreamTimes
from llmtrace.records import Finding, RequestRecord, StepRecord

HOST_BOUND_LEAD_S = 200e-6
"""Below this launch lead the device was waiting for Python."""

NANO = 1e-9


def build_record(request: FinishedRequest) -> RequestRecord:
    """Return the record of a finished request."""
    info, marks = request.info, request.marks
    marked = _tokens_from_forwards(marks) if _unmarked_loop(info, marks) else marks
    steps = _steps(marked)
    _drop_surplus(info, marked, steps)
    itl = _gaps(steps)
    rows = info.output_tokens_per_row or _rows_from_steps(info, marked, steps)
    total = sum(rows) if rows is not None else info.output_tokens
    use = utilization(info, rows, steps)
    shares = device_shares(steps)
    ttft = steps[0].end_s if steps else None
    last = _last_token_s(marked, steps)
    per_row = _tokens_of_longest_row(marked, steps)
    stream = info.stream
    duration = (marks.end_ns - marks.start_ns) * NANO
    return RequestRecord(
        model=info.model.name,
        strategy=info.strategy,
        device=info.device,
        clock=marks.clock,
        start_unix_ns=request.start_unix_ns,
        duration_s=duration,
        operation=info.operation,
        batch_size=info.batch_size,
        input_tokens=sum(info.input_tokens_per_row) if info.input_tokens_per_row else None,
        output_tokens=total,
        input_tokens_padded=_padded(info),
        input_tokens_cached=info.input_tokens_cached,
        input_tokens_per_row=info.input_tokens_per_row or (),
        output_tokens_per_row=rows or (),
        assisted_drafted=info.assisted_drafted,
        assisted_accepted=info.assisted_accepted,
        finish_reasons=info.finish_reasons,
        ttft_s=ttft,
        ttft_from_request_s=_since_queued(info, marks, ttft),
        itl_s=itl,
        tpot_s=_ratio(_minus(last, ttft), per_row - 1),
        e2e_s=last,
        tgs=_ratio(total, last),
        decode_tgs=_decode_tgs(rows, last, ttft),
        prefill_s=prefill_s(steps),
        queue_s=_queue(info, marks),
        ttft_from_admission_s=_minus(ttft, _since_start(marks, info.admitted_ns)),
        preemptions=info.preemptions,
        tokenize_s=None if info.tokenize_ns is None else info.tokenize_ns * NANO,
        prepare_s=_prepare(info, marks, steps),
        sampling_s=_sampling(steps, ttft),
        delivery_s=_delivery(marks, stream, ttft),
        hold_back_s=_hold_back(stream),
        first_delivery_s=_since_start(marks, stream.delivered_ns if stream else None),
        first_visible_text_s=_since_start(marks, stream.visible_ns if stream else None),
        steps=steps,
        steps_truncated=marked.more_tokens > 0,
        cold=bool(info.cold_reasons),
        cold_reasons=info.cold_reasons,
        compiled=info.compiled,
        error=info.error,
        trace_id=request.trace_id,
        span_id=request.span_id,
        parameters=info.parameters,
        dtype=info.model.dtype,
        quantization=info.model.quantization,
        attn_implementation=info.model.attn_implementation,
        cache_implementation=info.cache_implementation,
        host_bound_ratio=_host_bound_ratio(steps),
        clock_error_s=None if marks.clock_error_ns is None else marks.clock_error_ns * NANO,
        kv_cache_bytes=info.kv_cache_bytes,
        memory_allocated_bytes=info.memory_allocated_bytes,
        memory_reserved_bytes=info.memory_reserved_bytes,
        memory_peak_bytes=info.memory_peak_bytes,
        memory_growth_bytes=info.memory_growth_bytes,
        memory_inactive_split_bytes=info.memory_inactive_split_bytes,
        device_name=info.device_name,
        mbu=use.mbu,
        mfu=use.mfu,
        decode_bytes=use.decode_bytes,
        prefill_flops=use.prefill_flops,
        rank=info.rank,
        world_size=info.world_size,
        ranks_request=info.ranks_request,
        devices=shares.devices,
        devices_prefill_s=shares.prefill_s,
        devices_decode_s=shares.decode_s,
        handover_s=shares.handover_s,
        findings=(
            *_findings(info, marks, marked),
            *use.findings,
            *delivery_findings(info, itl, duration),
        ),
        attributes=info.attributes,
    )


def _unmarked_loop(info: RequestInfo, marks: Marks) -> bool:
    """Whether only forward calls were seen, as in an own loop that marks no tokens."""
    unmarked = marks.token_counts is None and not marks.tokens
    return info.own_loop and unmarked and bool(marks.forward_ends)


def _tokens_from_forwards(marks: Marks) -> Marks:
    """Return *marks* with one token at the end of each forward call."""
    ends = marks.device_forward_ends or marks.forward_ends
    return replace(
        marks,
        tokens=list(ends),
        token_forwards=list(range(1, len(ends) + 1)),
        more_tokens=marks.more_forwards,
    )


def _steps(marks: Marks) -> list[StepRecord]:
    puts = dict(zip(reversed(marks.put_forwards), reversed(marks.puts), strict=True))
    replays = dict(marks.replays)
    legs = legs_by_forward(marks)
    steps: list[StepRecord] = []
    begun = marks.start_ns
    done = 0
    for index, (token, upto) in enumerate(zip(marks.tokens, marks.token_forwards, strict=True)):
        forwards = range(done, upto)
        work = _work(marks, index, begun, forwards, replays) if forwards else _NO_WORK
        forward_start_s = _since_start(marks, work.start_ns)
        steps.append(
            StepRecord(
                index=index,
                phase="decode" if index else "prefill",
                start_s=(begun - marks.start_ns) * NANO,
                end_s=(token - marks.start_ns) * NANO,
                tokens=1 if marks.token_counts is None else marks.token_counts[index],
                forwards=len(forwards),
                forward_start_s=forward_start_s,
                forward_end_s=_since_start(marks, work.end_ns),
                host_duration_s=_seconds(work.host_ns),
                device_duration_s=_seconds(work.device_ns),
                launch_lead_s=_seconds(work.lead_ns),
                put_s=_since_start(marks, puts.get(upto)),
                host_end_s=_since_start(marks, marks.host_tokens[index])
                if marks.host_tokens
                else None,
                legs=leg_records(marks, legs, forwards, forward_start_s) if legs else (),
            )
        )
        begun, done = token, upto
    return steps


class _Work(NamedTuple):
    """What the forward calls of a step took, nanoseconds."""

    start_ns: int | None = None
    end_ns: int | None = None
    host_ns: int | None = None
    device_ns: int | None = None
    lead_ns: int | None = None


_NO_WORK = _Work()


def _work(
    marks: Marks, index: int, begun: int, forwards: range, replays: Mapping[int, int]
) -> _Work:
    """Return what the forwards of a step took that began at *begun*."""
    first, last = forwards[0], forwards[-1]
    host_end = marks.forward_ends[last]
    # Nothing, where a forward was only seen to have ended.
    host = sum(marks.forward_ends[i] - marks.forward_starts[i] for i in forwards) or None
    start = marks.forward_starts[first] if host else None
    if index == 0 and marks.encoder_start is not None:
        start = marks.encoder_start
    if marks.device_forward_ends is None:
        return _Work(start, host_end, host)
    end = marks.device_forward_ends[last]
    if index == 0 and marks.device_prefill_start is not None:
        start = marks.device_prefill_start
    elif start is not None:
        # The device began when it was given work, and not before the last token.
        start = max(replays.get(first, start), begun)
    known = index or start is not None
    device = end - (begun if index else start or begun) if known else None
    return _Work(start, end, host, device, end - host_end)


def _drop_surplus(info: RequestInfo, marks: Marks, steps: list[StepRecord]) -> None:
    """Drop steps whose token was undone: a loop that checks for its end one step late."""
    rows = info.output_tokens_per_row
    if marks.token_counts is not None or marks.more_tokens or info.loops > 1:
        return
    if rows and info.strategy in _ONE_EACH:
        del steps[max(rows) :]


_ONE_EACH = frozenset({"greedy", "sample"})
"""Strategies in which every step gives each unfinished row exactly one token."""


def _gaps(steps: list[StepRecord]) -> list[float]:
    """Return one gap per token after the first: a step of k tokens gives k gaps of step / k."""
    gaps: list[float] = []
    for step in steps:
        if step.index == 0:
            gaps += [0.0] * (step.tokens - 1)
        elif step.tokens:
            gaps += [(step.end_s - step.start_s) / step.tokens] * step.tokens
    return gaps


def _rows_from_steps(
    info: RequestInfo, marks: Marks, steps: list[StepRecord]
) -> tuple[int, ...] | None:
    """Return tokens per row where ids were not to be had: an error, or an own loop."""
    if info.output_tokens is not None:
        return None
    rows = info.batch_size or 1
    if not steps:
        return (0,) * rows if info.error else None
    if rows > 1 and info.error:
        return None
    return (_tokens_of_longest_row(marks, steps),) * rows


def _tokens_of_longest_row(marks: Marks, steps: list[StepRecord]) -> int:
    return sum(step.tokens for step in steps) + marks.more_tokens


def _last_token_s(marks: Marks, steps: list[StepRecord]) -> float | None:
    if marks.more_tokens and marks.last_mark is not None:
        return (marks.last_mark - marks.start_ns) * NANO
    return steps[-1].end_s if steps else None


def _prepare(info: RequestInfo, marks: Marks, steps: list[StepRecord]) -> float | None:
    """Return the time to the first forward; of a batched request, from its admission."""
    begun = steps[0].forward_start_s if steps else None
    admitted = _since_start(marks, info.admitted_ns)
    return begun if admitted is None else _minus(begun, admitted)


def _sampling(steps: list[StepRecord], ttft: float | None) -> float | None:
    """Return the time from the prefill's end to the first token."""
    return _minus(ttft, steps[0].forward_end_s) if steps and prefill_s(steps) is not None else None


def _delivery(marks: Marks, stream: StreamTimes | None, ttft: float | None) -> float | None:
    delivered = _since_start(marks, stream.delivered_ns if stream else None)
    waited = _minus(delivered, ttft)
    # Clocks of two kinds may disagree by microseconds, and time is not negative.
    return None if waited is None else max(waited, 0.0)


def _hold_back(stream: StreamTimes | None) -> float | None:
    if stream is None or stream.delivered_ns is None or stream.visible_ns is None:
        return None
    return (stream.visible_ns - stream.delivered_ns) * NANO


def _decode_tgs(
    rows: tuple[int, ...] | None, last: float | None, ttft: float | None
) -> float | None:
    """Return tokens after each row's first, per second of decoding."""
    return _ratio(sum(n - 1 for n in rows if n > 1) if rows else 0, _minus(last, ttft))


def _host_bound_ratio(steps: list[StepRecord]) -> float | None:
    leads = [s.launch_lead_s for s in steps if s.index and s.launch_lead_s is not None]
    if not leads:
        return None
    return sum(lead < HOST_BOUND_LEAD_S for lead in leads) / len(leads)


def _padded(info: RequestInfo) -> int | None:
    if info.input_length is None or info.batch_size is None:
        return None
    return info.input_length * info.batch_size


def _queue(info: RequestInfo, marks: Marks) -> float | None:
    """Return the wait before the request began, tokenizing left out; in a scheduler's queue."""
    if info.preemptions is not None:
        return _since_start(marks, info.admitted_ns)
    if info.queued_since_ns is None:
        return None
    begun = info.tokenize_begun_ns
    inside = begun is not None and begun >= info.queued_since_ns
    waited = marks.start_ns - info.queued_since_ns - ((info.tokenize_ns or 0) if inside else 0)
    return max(waited, 0) * NANO


def _since_queued(info: RequestInfo, marks: Marks, ttft: float | None) -> float | None:
    if info.queued_since_ns is None or ttft is None:
        return None
    return (marks.start_ns - info.queued_since_ns) * NANO + ttft


def _seconds(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else duration_ns * NANO


def _since_start(marks: Marks, at_ns: int | None) -> float | None:
    return None if at_ns is None else (at_ns - marks.start_ns) * NANO


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    """Return the quotient, or None where there is nothing to divide."""
    if not numerator or not denominator or denominator <= 0:
        return None
    return numerator / denominator


def _findings(info: RequestInfo, marks: Marks, marked: Marks) -> tuple[Finding, ...]:
    findings = list(info.findings)
    if not marked.tokens and not info.error and any(info.output_tokens_per_row or ()):
        findings.append(STEPS_NOT_SEEN)
    if marked is not marks:
        findings.append(
            replace(
                TOKENS_FROM_FORWARDS,
                evidence=f"{len(marked.tokens)} forward calls, no token() mark",
            )
        )
    if marked.more_tokens:
        findings.append(
            replace(
                STEPS_TRUNCATED,
                evidence=f"{len(marked.tokens)} recorded, {marked.more_tokens} more tokens counted",
            )
        )
    return tuple(findings)

"""One request's MBU and MFU, from what its model needs and how long it took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from llmtrace.hardware import peaks_of
from llmtrace.known_findings import MBU_ABOVE_ONE, MFU_ABOVE_ONE
from llmtrace.recording.request import RequestInfo
from llmtrace.recording.utilization import Row, decode_bytes, prefill_flops
from llmtrace.records import Finding, StepRecord

_ONE_PASS_A_STEP = frozenset({"greedy", "sample", "beam", "custom"})
"""Strategies in which a decode step is one pass of the model, and of no other model."""


@dataclass(frozen=True, slots=True)
class Utilization:
    """What a request needed, and what share of the device's peaks that was."""

    decode_bytes: float | None = None
    prefill_flops: float | None = None
    mbu: float | None = None
    mfu: float | None = None
    findings: tuple[Finding, ...] = ()


def utilization(
    info: RequestInfo, generated: Sequence[int] | None, steps: Sequence[StepRecord]
) -> Utilization:
    """Return the use of the device by one request.

    Args:
        info: What is known of the request.
        generated: Tokens generated for each returned row.
        steps: The request's steps.

    Formula:
        ``MBU = decode bytes / (time of a decode step x peak bandwidth)`` and
        ``MFU = prefill FLOPs / (prefill time x peak rate)``.
    """
    rows = _rows(info, generated)
    if info.cost is None or not rows or info.strategy not in _ONE_PASS_A_STEP:
        return Utilization()
    read = decode_bytes(info.cost, info.kv_layers, rows)
    done = prefill_flops(info.cost, info.kv_layers, rows) if info.kv_layers else None
    peaks = info.peaks or peaks_of(info.device_name)
    mbu = mfu = None
    if peaks is not None:
        mbu = _share(read, _step_s(steps), peaks.bandwidth)
        mfu = _share(done, prefill_s(steps), peaks.flops_of(info.cost.operand))
    return Utilization(read, done, mbu, mfu, _findings(mbu, mfu))


def _rows(info: RequestInfo, generated: Sequence[int] | None) -> list[Row]:
    """Return the sequences that the model was given: of a beam search, all its beams."""
    prompts = info.input_tokens_per_row
    if not generated or not prompts or len(generated) % len(prompts):
        return []
    each = len(generated) // len(prompts)
    cached = (info.input_tokens_cached or 0) // len(prompts)
    returned = [Row(prompts[i // each], cached, n) for i, n in enumerate(generated)]
    beams = info.parameters.num_beams
    if not beams:
        return returned
    longest = max(generated)
    return [Row(prompt, cached, longest) for prompt in prompts for _ in range(beams)]


def _step_s(steps: Sequence[StepRecord]) -> float | None:
    if len(steps) < 2:  # noqa: PLR2004
        return None
    return (steps[-1].end_s - steps[0].end_s) / (len(steps) - 1)


def prefill_s(steps: Sequence[StepRecord]) -> float | None:
    """Return the time from the first forward's start to the end of the one giving token 1."""
    if not steps or steps[0].forward_start_s is None or steps[0].forward_end_s is None:
        return None
    return steps[0].forward_end_s - steps[0].forward_start_s


def _share(needed: float | None, time_s: float | None, peak: float | None) -> float | None:
    if needed is None or not time_s or not peak:
        return None
    return needed / (time_s * peak)


def _findings(mbu: float | None, mfu: float | None) -> tuple[Finding, ...]:
    """Say where a share is more than the whole: nothing is cut off silently."""
    findings = []
    for share, finding in ((mbu, MBU_ABOVE_ONE), (mfu, MFU_ABOVE_ONE)):
        if share is not None and share > 1:
            findings.append(replace(finding, evidence=f"{share:.2f} of the peak"))
    return tuple(findings)

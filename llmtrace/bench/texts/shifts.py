"""Steps of the curve in words."""

from __future__ import annotations

from collections import Counter

from llmtrace.bench.itl.causes import Cause, Shift, added_s
from llmtrace.bench.itl.evaluation import ItlResult
from llmtrace.reports.wording import plural

MS = 1e3
SINGLES_SAID = 3

CAUSES: dict[Cause, str] = {
    "cache_growth": "cache growth: each forward reads the keys and values of one token more",
    "compilation": "compiled anew",
    "garbage_collection": "garbage collection",
    "device": "the device: its forward takes longer, whatever the host does",
    "forward": "the forward call: the model's own computing, or a processor that others use",
    "forward_on_host": "the host, inside of the forward call: the device waits for launches",
    "between_forwards": "host time between the forwards: logits processors, sampling, stopping "
    "criteria, streamer; not the model",
    "halt_before": "comes of the halt before it: the processor's caches have gone cold",
    "unknown": "cause cannot be told",
}
SHORT: dict[Cause, str] = {
    "cache_growth": "cache growth",
    "compilation": "compilation",
    "garbage_collection": "garbage collection",
    "device": "device",
    "forward": "forward call",
    "forward_on_host": "host, in the forward call",
    "between_forwards": "host, between forwards",
    "halt_before": "after the halt",
    "unknown": "cause unknown",
}


def said(found: ItlResult) -> list[str]:
    """Return one line for each step that was found."""
    counted = len(found.trials.counted)
    lines = [_said(shift, counted) for shift in found.shifts.each]
    singles = found.shifts.singles
    if singles:
        count = found.itl_s.count if found.itl_s else 0
        causes = Counter(shift.cause for shift in singles)
        told = ", ".join(f"{SHORT[name]} {times}" for name, times in causes.most_common())
        took = sum(added_s(shift) for shift in singles)
        lines.append(
            f"{plural(len(singles), 'gap')} of {count:,} longer in single requests only, by "
            f"{took * MS:,.1f} ms in all ({told}); the longest:"
        )
        lines += [f"  {_single(shift)}" for shift in singles[:SINGLES_SAID]]
    return lines


def _said(shift: Shift, counted: int) -> str:
    return f"{_what(shift, counted)}: {CAUSES[shift.cause]}"


def in_short(shift: Shift, counted: int) -> str:
    """Return a step that was found, for a place where there is little room."""
    return f"{_what(shift, counted)}: {SHORT[shift.cause]}"


def _what(shift: Shift, counted: int) -> str:
    if shift.kind == "compilation":
        where = "somewhere" if shift.position is None else f"before token {shift.position:,}"
        took = "" if shift.after_s is None else f", {shift.after_s * MS:,.1f} ms"
        return f"request {shift.trials[0]}, {where}{took}"
    change = f"{_ms(shift.before_s)} to {_ms(shift.after_s)} ms"
    if shift.kind == "growth":
        slope = (shift.slope_s_per_token or 0.0) * 1e6
        return f"growth with the context, {change}, {slope:+,.3f} us per token"
    if shift.kind == "jump":
        return f"lasting jump at token {shift.position:,}, {change}"
    seen = f"in {len(shift.trials)} of {counted} requests"
    return f"spike at token {shift.position:,}, {seen}, {change}"


def _single(shift: Shift) -> str:
    change = f"{_ms(shift.before_s)} to {_ms(shift.after_s)} ms"
    return f"request {shift.trials[0]}, token {shift.position:,}, {change}: {SHORT[shift.cause]}"


def _ms(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds * MS:,.2f}"

"""What makes a figure doubtful: too few requests, much variation, a machine with other work."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from llmtrace.analysis.summary import Summary
from llmtrace.bench.trials import Trials

FEWEST_FOR_P95 = 20
"""Of fewer values the 95th percentile lies between the two greatest."""
HIGH_VARIATION = 0.2
"""Standard deviation over mean; 0.1 is fair."""
BUSY_SHARE = 0.15
"""Share of the machine's processor time that others took."""


@dataclass(frozen=True, slots=True)
class Caution:
    """A reason to doubt a figure."""

    code: str
    text: str


class OtherWork:
    """How much of the machine's processor time went to other programs since this was made."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._begun = self._read()

    def _read(self) -> tuple[float, float, float]:
        times = psutil.cpu_times()
        busy = sum(times) - times.idle - getattr(times, "iowait", 0.0)
        mine = self._own.cpu_times()
        return time.monotonic(), busy, mine.user + mine.system

    def share(self) -> float:
        """Return it, between 0 and 1."""
        elapsed, busy, own = (b - a for a, b in zip(self._begun, self._read(), strict=True))
        whole = elapsed * (psutil.cpu_count() or 1)
        return min(1.0, max(0.0, (busy - own) / whole)) if whole > 0 else 0.0


def of_trials(trials: Trials) -> list[Caution]:
    """Return the cautions that hold for every figure of *trials*."""
    found = []
    if trials.interrupted:
        found.append(Caution("interrupted", "Ctrl-C ended the run before all requests had run."))
    if trials.failure:
        text = f"A request failed, and none was run after it: {trials.failure}"
        found.append(Caution("failed", text))
    if trials.cold:
        reasons = sorted({reason for r in trials.cold for reason in r.cold_reasons})
        found.append(
            Caution(
                "cold",
                f"{len(trials.cold)} requests paid for something one-off ({', '.join(reasons)}) "
                "and are left out: warm up with more requests.",
            )
        )
    return found


def few(summary: Summary | None, what: str) -> list[Caution]:
    """Caution against a P95 of few values."""
    if summary is None:
        return [Caution("nothing_measured", f"No request counts for {what}.")]
    if summary.count >= FEWEST_FOR_P95:
        return []
    text = (
        f"P95 of {what} is of {summary.count} values, little more than the greatest of them: "
        f"{FEWEST_FOR_P95} are the least, 100 are better."
    )
    return [Caution("few_trials", text)]


def varied(summary: Summary | None, what: str) -> list[Caution]:
    """Caution against a mean of very different values."""
    if summary is None or not summary.mean or summary.std / summary.mean < HIGH_VARIATION:
        return []
    text = (
        f"{what} varies much: its standard deviation is {summary.std / summary.mean:.0%} of its "
        "mean. Look at the machine's load, then at the GPU's, then at other lengths of prompts."
    )
    return [Caution("high_variation", text)]


def busy(share: float, gpus: Sequence[dict[str, object]]) -> list[Caution]:
    """Caution against a machine that had other work.

    Args:
        share: Of the machine's processor time, what others took while it was measured.
        gpus: As :func:`llmtrace.bench.environment.gpus` tells them.
    """
    found = []
    if share > BUSY_SHARE:
        text = f"Other programs took {share:.0%} of the processor time while this was measured."
        found.append(Caution("machine_busy", text))
    others = [gpu.get("other_processes") for gpu in gpus if gpu.get("other_processes")]
    if others:
        text = f"Other processes compute on the GPU: {', '.join(map(str, others))}."
        found.append(Caution("gpu_shared", text))
    return found

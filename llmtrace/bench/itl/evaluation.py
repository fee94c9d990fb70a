"""ITL over token positions: its distribution, its course, and where it leaves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from llmtrace.analysis.curve import Curve, Trend, itl_curve, trend
from llmtrace.analysis.gaps import gaps_of
from llmtrace.analysis.latency import Bucket, itl_by_position
from llmtrace.analysis.summary import Summary, Values, summarise
from llmtrace.bench import cautions
from llmtrace.bench.cautions import FEWEST_FOR_P95, Caution
from llmtrace.bench.floor import Floor
from llmtrace.bench.itl.gap_table import GapTable, gap_table
from llmtrace.bench.itl.shifts import Shifts, compiled, find_shifts
from llmtrace.bench.pauses import Kind, Pause
from llmtrace.bench.trials import Trials

TOOL = "itl"
PARTS = ("host_forward_s", "between_s", "device_duration_s", "launch_lead_s")


@dataclass(frozen=True, slots=True)
class ItlResult:
    """What was found."""

    trials: Trials
    table: GapTable
    collector_on: bool
    itl_s: Summary | None
    host_gap_s: Summary | None
    parts: Mapping[str, Summary | None]
    by_position: tuple[Bucket, ...]
    curve: Curve | None
    trend: Trend | None
    floor: Floor | None
    shifts: Shifts
    cautions: tuple[Caution, ...]

    @property
    def clock(self) -> str:
        """What measured the gaps."""
        return ", ".join(sorted({r.clock for r in self.trials.counted})) or "none"

    @property
    def on_device(self) -> bool:
        """Whether the gaps are the device's, and the host's another thing."""
        return any(r.clock != "host" for r in self.trials.counted)

    def paused(self, kind: Kind) -> tuple[int, float]:
        """Return how many gaps that count hold pauses, and how long those are, seconds."""
        taken = self.table.known(f"{kind}_s", self.table.counted)
        return int(np.count_nonzero(taken)), float(taken.sum())

    def usual_floor_s(self) -> float | None:
        """Return the floor at the median context; None where there is none."""
        contexts = self.table.context[self.table.counted & (self.table.context > 0)]
        if self.floor is None or not contexts.size:
            return None
        return self.floor.seconds_at(int(np.median(contexts)))

    def by_place(self, values: Values) -> Values:
        """Return the median of *values*, one for each gap, at each position of the curve."""
        if self.curve is None:
            return np.empty(0)
        chosen = self.table.counted & ~np.isnan(values)
        found = np.full(len(self.curve.counts), np.nan)
        for at in range(found.size):
            here = values[chosen & (self.table.position == at + self.curve.first)]
            if here.size:
                found[at] = np.median(here)
        return found

    def floors(self) -> Values:
        """Return the floor of each gap; NaN where there is none."""
        found = np.full(self.table.context.size, np.nan)
        if self.floor is None or self.floor.bandwidth is None:
            return found
        for context in np.unique(self.table.context[self.table.context > 0]).tolist():
            least = self.floor.seconds_at(context)
            if least is not None:
                found[self.table.context == context] = least
        return found


def evaluate(
    trials: Trials,
    pauses: Sequence[Pause],
    floor: Floor | None,
    about_machine: Sequence[Caution] = (),
    *,
    collector_on: bool = False,
) -> ItlResult:
    """Return the figures of *trials*: of the requests that are good and warm."""
    counted = trials.counted
    chosen = {id(record) for record in counted}
    records = [r for r in trials.records if r.error is None]
    table = gap_table(records, pauses, [id(r) in chosen for r in records])
    gaps = gaps_of(counted)
    curve = itl_curve(gaps)
    course = trend(counted, gaps, curve)
    found = ItlResult(
        trials=trials,
        table=table,
        collector_on=collector_on,
        itl_s=summarise(gaps.pooled()),
        host_gap_s=summarise(table.known("host_gap_s", table.counted)),
        parts={name: summarise(table.known(name, table.counted)) for name in PARTS},
        by_position=itl_by_position(counted, gaps),
        curve=curve,
        trend=course,
        floor=floor,
        shifts=find_shifts(table, gaps, counted, course, compiled(records, pauses)),
        cautions=(),
    )
    doubts = (*cautions.of_trials(trials), *_doubts(found), *about_machine)
    return replace(found, cautions=doubts)


def _doubts(found: ItlResult) -> list[Caution]:
    """Return the cautions of gaps."""
    trials, summary = found.trials.counted, found.itl_s
    if summary is None:
        return cautions.few(summary, "ITL")
    doubts = cautions.varied(summary, "ITL")
    if len(trials) < FEWEST_FOR_P95:
        text = (
            f"P5 and P95 at a position are of {len(trials)} requests: "
            f"{FEWEST_FOR_P95} are the least, 100 are better."
        )
        doubts.append(Caution("few_trials", text))
    if any(record.steps_truncated for record in trials):
        text = "Steps past LLMTRACE_MAX_STEP_SPANS are in no figure."
        doubts.append(Caution("steps_truncated", text))
    least = found.usual_floor_s()
    if least is not None and summary.p50 < least:
        text = (
            f"The median gap is below what reading takes at peak bandwidth, {least * 1e3:.3f} ms: "
            "check the device's peak with `llmtrace peaks`."
        )
        doubts.append(Caution("below_floor", text))
    return doubts

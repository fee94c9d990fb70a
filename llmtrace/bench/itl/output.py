"""The result of the ITL tool as JSON, CSV, and one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from llmtrace.analysis.summary import summarise
from llmtrace.bench import result
from llmtrace.bench.floor import FORMULA
from llmtrace.bench.itl.causes import added_s
from llmtrace.bench.itl.evaluation import PARTS, ItlResult
from llmtrace.bench.pauses import KINDS

MEASURED = (
    "itl_s", "host_gap_s", *PARTS, "garbage_collection_s", "compilation_s",
)  # fmt: skip
COLUMNS = (
    "trial", "position", "context", *MEASURED, "floor_s", "stands_out",
    "counted", "cold_reasons", "clock", "trace_id",
)  # fmt: skip
SINGLES_LISTED = 10


def as_object(found: ItlResult, header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result for JSON."""
    return {
        **header,
        "interrupted": found.trials.interrupted,
        "warmup": result.warmup_of(found.trials)
        | {"itl_s": [result.summary_of(summarise(r.itl_s)) for r in found.trials.warmup]},
        "requests": {
            "run": len(found.trials.records),
            "counted": len(found.trials.counted),
            "cold": len(found.trials.cold),
        },
        "clock": found.clock,
        "itl_s": result.summary_of(found.itl_s),
        "host_gap_s": result.summary_of(found.host_gap_s),
        "parts_s": {
            name.removesuffix("_s"): result.summary_of(part) for name, part in found.parts.items()
        },
        "itl_by_position": [
            {"from": b.first, "to": b.last, "itl_s": result.summary_of(b.summary)}
            for b in found.by_position
        ],
        "curve": _curve_of(found),
        "trend": None if found.trend is None else asdict(found.trend),
        "floor": _floor_of(found),
        "steps_found": [asdict(shift) for shift in found.shifts.each],
        "single_gaps": _singles_of(found),
        "collector": "on" if found.collector_on else "frozen",
        "pauses_in_gaps": {
            kind: dict(zip(("gaps", "time_s"), found.paused(kind), strict=True)) for kind in KINDS
        },
        "cautions": result.cautions_of(found.cautions),
        "report": result.report_of(found.trials.records),
    }


def _curve_of(found: ItlResult) -> dict[str, Any] | None:
    curve = found.curve
    if curve is None:
        return None
    return {
        "from": curve.first,
        "count": curve.counts,
        "p5_s": curve.p5,
        "p50_s": curve.p50,
        "p95_s": curve.p95,
        "host_gap_p50_s": found.by_place(found.table.host_gap_s).tolist(),
        "floor_s": found.by_place(found.floors()).tolist(),
    }


def _floor_of(found: ItlResult) -> dict[str, Any] | None:
    if found.floor is None:
        return None
    least = found.usual_floor_s()
    return {
        "formula": FORMULA,
        "weight_bytes": found.floor.weight_bytes,
        "kv_bytes_per_token": sum(layers.bytes_per_token for layers in found.floor.kv),
        "bandwidth_bytes_per_s": found.floor.bandwidth,
        "at_median_context_s": least,
        "median_gap_over_floor": found.itl_s.p50 / least if least and found.itl_s else None,
    }


def _singles_of(found: ItlResult) -> dict[str, Any]:
    singles = found.shifts.singles
    return {
        "count": len(singles),
        "time_s": sum(added_s(shift) for shift in singles),
        "causes": dict(Counter(shift.cause for shift in singles)),
        "longest": [asdict(shift) for shift in singles[:SINGLES_LISTED]],
    }


def rows(found: ItlResult) -> list[dict[str, Any]]:
    """Return one line of CSV for each request and position."""
    table, floors = found.table, found.floors()
    records = [r for r in found.trials.records if r.error is None]
    common = {(t, s.position): "in most" for s in found.shifts.spikes for t in s.trials}
    alone = {(s.trials[0], s.position): "in one" for s in found.shifts.singles}
    stands_out = common | alone
    made = []
    for at in range(table.trial.size):
        trial, position = int(table.trial[at]), int(table.position[at])
        record = records[trial]
        made.append(
            {
                "trial": trial,
                "position": position,
                "context": int(table.context[at]) or None,
                **{column: _cell(getattr(table, column)[at]) for column in MEASURED},
                "floor_s": _cell(floors[at]),
                "stands_out": stands_out.get((trial, position)),
                "counted": int(table.counted[at]),
                "cold_reasons": " ".join(record.cold_reasons),
                "clock": record.clock,
                "trace_id": record.trace_id,
            }
        )
    return made


def _cell(value: float) -> float | None:
    """Return a value as a column of CSV has it: empty where there is none."""
    return None if np.isnan(value) else float(value)


def line(found: ItlResult) -> str | None:
    """Return the one line that scripts look for."""
    s = found.itl_s
    if s is None:
        return None
    named = {"p50": s.p50, "p95": s.p95, "p99": s.p99, "max": s.max}
    return ", ".join(f"ITL_{name}={value * 1e3:.2f}ms" for name, value in named.items())

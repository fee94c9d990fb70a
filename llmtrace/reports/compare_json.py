"""A comparison as strict JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from llmtrace.analysis.comparison import METHOD, Comparison, Line
from llmtrace.analysis.differences import CAVEATS, Difference
from llmtrace.reports import json_report
from llmtrace.reports.compare_text import sentence

SCHEMA = "llmtrace.compare/1"


def render(found: Comparison, changed: Sequence[Difference], verdict: str) -> str:
    """Return *found* as one JSON object, without a line's end after it."""
    sides = [json_report.as_object(report) for report in (found.before, found.after)]
    said = {
        "schema": SCHEMA,
        "outcome": verdict,
        "lines": [_line(line) for line in found.lines],
        "method": METHOD,
        "differences": [asdict(difference) for difference in changed],
        "caveats": [CAVEATS[d.name] for d in changed if d.name in CAVEATS],
        "before": {"requests": sides[0]["requests"], "conditions": sides[0]["tgs"]["conditions"]},
        "after": {"requests": sides[1]["requests"], "conditions": sides[1]["tgs"]["conditions"]},
    }
    return json.dumps(said, indent=2, allow_nan=False)


def _line(line: Line) -> dict[str, Any]:
    bounds = line.interval
    return {
        "name": line.name,
        "unit": line.unit,
        "before": line.before,
        "after": line.after,
        "change": line.change,
        "interval": None if bounds is None else [bounds.low, bounds.high],
        "samples": list(line.samples),
        "outcome": line.outcome,
        "sentence": sentence(line),
    }

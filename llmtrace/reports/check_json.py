"""A check as strict JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from llmtrace.analysis.goodput import FORMULA
from llmtrace.analysis.verdicts import Check
from llmtrace.reports import json_report
from llmtrace.sources.recording import Recording

SCHEMA = "llmtrace.check/1"


def render(check: Check, recording: Recording | None = None) -> str:
    """Return *check* as one JSON object, without a line's end after it."""
    report = json_report.as_object(check.report)
    found = {
        "schema": SCHEMA,
        "policy": check.policy,
        "outcome": check.outcome,
        "min_samples": check.min_samples,
        "rules": [asdict(verdict) for verdict in check.verdicts],
        "outside_prompt_buckets": check.outside,
        "goodput": {**asdict(check.goodput), "formula": FORMULA},
        "requests": report["requests"],
        "conditions": report["tgs"]["conditions"],
        **({} if recording is None else {"input": json_report.input_object(recording)}),
    }
    return json.dumps(found, indent=2, allow_nan=False)

"""A run's result for JSON and CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from llmtrace.analysis.latency import prompt_tokens
from llmtrace.bench import result
from llmtrace.bench.cautions import Caution
from llmtrace.bench.settings import Generation
from llmtrace.bench.tgs.evaluation import LevelResult
from llmtrace.bench.tgs.resources import FILE
from llmtrace.reports.json_report import as_object as report_object

TOOL = "tgs"
COLUMNS = (
    "level", "mechanism", "concurrency", "rate", "request", "prompt_tokens", "sampling",
    "gpu_memory_bytes", "queue_s", "ttft_s", "tpot_s", "e2e_s", "output_tokens", "tgs", "cold",
    "clock", "trace_id",
)  # fmt: skip


def as_object(
    levels: Sequence[LevelResult],
    correlations: Mapping[str, float | None],
    cautions: Sequence[Caution],
    header: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the result for JSON."""
    return {
        **header,
        "resources": FILE,
        "levels": [_level(level) for level in levels],
        "correlation_with_itl": dict(correlations),
        "cautions": result.cautions_of([*(c for lv in levels for c in lv.cautions), *cautions]),
    }


def _level(found: LevelResult) -> dict[str, Any]:
    return {
        **asdict(found.level),
        "name": found.level.name,
        "counted": found.tgs.count if found.tgs is not None else 0,
        "tgs_system": found.system,
        "steady": None if found.steady is None else asdict(found.steady),
        "tgs_request": result.summary_of(found.tgs),
        "ttft_s": result.summary_of(found.ttft_s),
        "itl_s": result.summary_of(found.report.itl_s),
        "queue_s": result.summary_of(found.queue_s),
        "generator_lag_s": result.summary_of(found.lag_s),
        "padding": found.padding,
        "loss": None if found.loss is None else asdict(found.loss),
        "use": {name: result.summary_of(summary) for name, summary in found.use.items()},
        "report": report_object(found.report),
    }


def rows(levels: Sequence[LevelResult], plan: Generation) -> list[dict[str, Any]]:
    """Return one line of CSV for each request, its conditions in it."""
    return [
        {
            "level": found.level.name,
            "mechanism": found.level.mechanism,
            "concurrency": found.level.concurrency,
            "rate": found.level.rate,
            "request": request.job.index,
            "prompt_tokens": request.job.prompt.tokens or prompt_tokens(request.record),
            "sampling": sampling(plan),
            "gpu_memory_bytes": request.record.memory_reserved_bytes,
            "queue_s": request.queue_s,
            "ttft_s": request.ttft_s,
            "tpot_s": request.record.tpot_s,
            "e2e_s": request.e2e_s,
            "output_tokens": request.output_tokens,
            "tgs": request.tgs,
            "cold": int(request.record.cold),
            "clock": request.record.clock,
            "trace_id": request.record.trace_id,
        }
        for found in levels
        for request in found.requests
    ]


def sampling(plan: Generation) -> str:
    """Say how tokens are chosen."""
    if not plan.do_sample:
        return "greedy"
    named = {"temperature": plan.temperature, "top_p": plan.top_p, "top_k": plan.top_k}
    told = [f"{name} {value:g}" for name, value in named.items() if value is not None]
    return "sample" + "".join(f", {each}" for each in told)

"""What the JSON of every tool begins with, and the names of its schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from llmtrace.analysis.report import build_report
from llmtrace.analysis.summary import Summary
from llmtrace.bench.cautions import Caution
from llmtrace.bench.models import Subject
from llmtrace.bench.settings import Generation
from llmtrace.bench.tracing import TRACE
from llmtrace.bench.trials import Trials
from llmtrace.records import RequestRecord
from llmtrace.reports.json_report import as_object
from llmtrace.reports.wording import conditions
from llmtrace.seams.model_facts import model_name


def schema(tool: str) -> str:
    """Return the name of a tool's JSON."""
    return f"llmtrace.bench.{tool}/1"


def header(
    tool: str, subject: Subject, plan: Generation, environment: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a result hangs on: the model, the settings, the machine."""
    model = subject.model
    return {
        "schema": schema(tool),
        "model": {
            "name": model_name(model, model.config),
            **asdict(subject.choice),
            "class": type(model).__name__,
            "parameters": sum(p.numel() for p in model.parameters()),
            "device": str(subject.device),
        },
        "generation": asdict(plan),
        "environment": dict(environment),
        "trace": TRACE,
    }


def warmup_of(trials: Trials) -> dict[str, Any]:
    """Return what the requests that warmed up took, apart from every figure."""
    return {
        "requests": len(trials.warmup),
        "ttft_s": [r.ttft_s for r in trials.warmup],
        "e2e_s": [r.e2e_s for r in trials.warmup],
        "cold_reasons": sorted({reason for r in trials.warmup for reason in r.cold_reasons}),
    }


def report_of(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """Return the whole report of the requests that count, as ``llmtrace report`` gives it.

    The four conditions of every rate are in it, under ``tgs.conditions``.
    """
    return as_object(build_report(records))


def conditions_of(records: Sequence[RequestRecord]) -> list[tuple[str, str]]:
    """Return the four conditions of every rate, each with its name."""
    return conditions(build_report(records).tgs.conditions)


def conditions_in_two_lines(records: Sequence[RequestRecord]) -> str:
    """Return the four conditions for the foot of a picture."""
    told = [f"{name}: {said}" for name, said in conditions_of(records)]
    return "\n".join((" · ".join(told[:2]), " · ".join(told[2:])))


def cautions_of(cautions: Sequence[Caution]) -> list[dict[str, str]]:
    """Return cautions for JSON."""
    return [asdict(caution) for caution in cautions]


def summary_of(summary: Summary | None) -> dict[str, Any] | None:
    """Return a summary for JSON."""
    return None if summary is None else asdict(summary)


def subtitle(header: Mapping[str, Any]) -> str:
    """Return what a chart is of, in one line."""
    model, environment = header["model"], header["environment"]
    gpus = [gpu["name"] for gpu in environment["gpus"]]
    parts = [
        model["name"] + (" (random weights)" if model["random_weights"] else ""),
        gpus[0] if gpus else environment["cpu"]["model"],
        f"cache {header['generation']['cache']}",
    ]
    if model["quantization"] != "none":
        parts.append(str(model["quantization"]))
    if header["generation"]["compile"]:
        parts.append("compiled")
    return " · ".join(parts)

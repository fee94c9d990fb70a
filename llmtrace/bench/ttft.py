"""TTFT over many requests: its distribution, its parts, its dependence on the prompt's length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmtrace.analysis.intervals import LEVEL, METHOD, Interval, draw
from llmtrace.analysis.latency import Bucket, prompt_tokens
from llmtrace.analysis.summary import Summary, present, summarise
from llmtrace.bench import cautions, result
from llmtrace.bench.cautions import Caution
from llmtrace.bench.trials import Trials
from llmtrace.records import RequestRecord

TOOL = "ttft"
PARTS = ("queue", "tokenize", "prepare", "prefill", "sampling")
COLUMNS = (
    "trial", "prompt_tokens", "ttft_s", "ttft_from_request_s", "queue_s", "tokenize_s",
    "prepare_s", "prefill_s", "sampling_s", "counted", "cold_reasons", "clock", "trace_id",
)  # fmt: skip
MOST_LENGTHS = 8
"""With more lengths of prompts, neighbouring ones share a bucket."""


@dataclass(frozen=True, slots=True)
class TtftResult:
    """What was found."""

    trials: Trials
    ttft_s: Summary | None
    ttft_from_request_s: Summary | None
    """With the tokenizing of a text before it."""
    intervals: Mapping[str, Interval]
    """Of ``mean``, ``p50``, ``p95``, as far as there are enough requests."""
    parts: Mapping[str, Summary | None]
    """Parts of TTFT from the request; their means add up to its mean. What is neither tokenizing
    nor ``generate()``, such as the ids' way to the device, is the queue."""
    by_prompt: tuple[Bucket, ...]
    cautions: tuple[Caution, ...]


def evaluate(trials: Trials, about_machine: Sequence[Caution] = ()) -> TtftResult:
    """Return the figures of *trials*: of the requests that are good and warm."""
    counted = trials.counted
    ttft = summarise(r.ttft_s for r in counted)
    by_prompt = by_prompt_length(counted)
    return TtftResult(
        trials=trials,
        ttft_s=ttft,
        ttft_from_request_s=summarise(r.ttft_from_request_s for r in counted),
        intervals=draw(present(r.ttft_s for r in counted)).intervals(),
        parts={part: summarise(getattr(r, f"{part}_s") for r in counted) for part in PARTS},
        by_prompt=by_prompt,
        cautions=(*cautions.of_trials(trials), *_doubts(ttft, by_prompt), *about_machine),
    )


def _doubts(ttft: Summary | None, by_prompt: Sequence[Bucket]) -> list[Caution]:
    """Return the cautions of each length of prompt: different lengths differ, and may."""
    if ttft is None or len(by_prompt) < 2:  # noqa: PLR2004 - there is but one length
        return cautions.few(ttft, "TTFT") + cautions.varied(ttft, "TTFT")
    found = []
    for bucket in by_prompt:
        what = f"TTFT with {span(bucket)} prompt tokens"
        found += cautions.few(bucket.summary, what) + cautions.varied(bucket.summary, what)
    return found


def by_prompt_length(records: Sequence[RequestRecord]) -> tuple[Bucket, ...]:
    """Return TTFT for each length of prompt, or for ranges of equal count where there are many."""
    known = [(n, r.ttft_s) for r in records if (n := prompt_tokens(r)) is not None]
    lengths = sorted({n for n, _ in known})
    if len(lengths) > MOST_LENGTHS:
        groups = [part.tolist() for part in np.array_split(np.array(lengths), MOST_LENGTHS)]
    else:
        groups = [[n] for n in lengths]
    return tuple(
        Bucket(group[0], group[-1], summarise(t for n, t in known if group[0] <= n <= group[-1]))
        for group in groups
    )


def span(bucket: Bucket) -> str:
    """Return a bucket's bounds, or its only length."""
    return str(bucket.first) if bucket.first == bucket.last else f"{bucket.first}-{bucket.last}"


def as_object(found: TtftResult, header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result for JSON."""
    return {
        **header,
        "interrupted": found.trials.interrupted,
        "warmup": result.warmup_of(found.trials),
        "requests": {
            "run": len(found.trials.records),
            "counted": len(found.trials.counted),
            "cold": len(found.trials.cold),
        },
        "ttft_s": result.summary_of(found.ttft_s),
        "ttft_from_request_s": result.summary_of(found.ttft_from_request_s),
        "confidence": {
            "level": LEVEL,
            "method": METHOD,
            **{name: [bounds.low, bounds.high] for name, bounds in found.intervals.items()},
        },
        "parts_s": {name: result.summary_of(part) for name, part in found.parts.items()},
        "by_prompt_tokens": [
            {"from": b.first, "to": b.last, "ttft_s": result.summary_of(b.summary)}
            for b in found.by_prompt
        ],
        "cautions": result.cautions_of(found.cautions),
        "report": result.report_of(found.trials.records),
    }


def rows(found: TtftResult) -> list[dict[str, Any]]:
    """Return one line of CSV for each request, in the order in which they ran."""
    counted = {id(record) for record in found.trials.counted}
    return [
        {
            "trial": number,
            "prompt_tokens": prompt_tokens(r),
            **{c: getattr(r, c) for c in COLUMNS if c.endswith("_s")},
            "counted": int(id(r) in counted),
            "cold_reasons": " ".join(r.cold_reasons),
            "clock": r.clock,
            "trace_id": r.trace_id,
        }
        for number, r in enumerate(found.trials.records)
    ]


def line(found: TtftResult) -> str | None:
    """Return the one line that scripts look for."""
    s = found.ttft_s
    if s is None:
        return None
    return f"TTFT_mean={s.mean * 1e3:.1f}ms, TTFT_p95={s.p95 * 1e3:.1f}ms, std={s.std * 1e3:.1f}ms"

"""Goodput: requests that kept within every limit of a policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from llmtrace.analysis.latency import prompt_tokens
from llmtrace.analysis.policy import LatencyRule, Policy, PromptRateRule, TokenRateRule
from llmtrace.analysis.throughput import load_of
from llmtrace.records import RequestRecord

FORMULA = (
    "a request is good that did not fail and kept every limit: of TTFT, TPOT and E2E the loosest "
    "given, of ITL each, by its own gaps; share: of all requests, failed ones included; rates: per "
    "second in which at least one of them ran"
)


@dataclass(frozen=True, slots=True)
class Goodput:
    """How many requests were good."""

    good: int
    requests: int
    """Those looked at: the ones counted, and those that failed."""
    share: float | None
    requests_per_s: float | None
    tokens_per_s: float | None
    """Output tokens of the good ones."""


def goodput(
    policy: Policy, counted: Sequence[RequestRecord], failed: Sequence[RequestRecord]
) -> Goodput:
    """Return how many of *counted* and *failed* are good under *policy*."""
    looked_at = [*counted, *failed]
    good = [record for record in counted if keeps(policy, record)]
    busy_s = load_of(looked_at, looked_at).busy_s
    tokens = sum(record.output_tokens or 0 for record in good)
    return Goodput(
        good=len(good),
        requests=len(looked_at),
        share=len(good) / len(looked_at) if looked_at else None,
        requests_per_s=len(good) / busy_s if busy_s else None,
        tokens_per_s=tokens / busy_s if busy_s else None,
    )


def keeps(policy: Policy, record: RequestRecord) -> bool:
    """Whether a request that did not fail keeps every limit of *policy*."""
    tokens = prompt_tokens(record)
    loosest: dict[tuple[str, bool], float] = {}
    for rule in policy.rules:
        if isinstance(rule, PromptRateRule):
            if rule.prompts.holds(tokens) and not keeps_prompt_rate(rule, record):
                return False
        elif isinstance(rule, TokenRateRule):
            if not keeps_token_rate(rule, record):
                return False
        elif isinstance(rule, LatencyRule) and rule.metric == "itl":
            if record.itl_s and _statistic(record.itl_s, rule.statistic) > rule.limit_s:
                return False
        elif isinstance(rule, LatencyRule) and rule.prompts.holds(tokens):
            key = (rule.metric, rule.from_request)
            loosest[key] = max(rule.limit_s, loosest.get(key, 0.0))
    return all(
        _within(value_of(record, metric, from_request=from_request), limit, metric)
        for (metric, from_request), limit in loosest.items()
    )


def value_of(record: RequestRecord, metric: str, *, from_request: bool = False) -> float | None:
    """Return the request's one value of TTFT, TPOT or E2E, in seconds."""
    if metric == "ttft" and from_request and record.ttft_from_request_s is not None:
        return record.ttft_from_request_s
    return {"ttft": record.ttft_s, "tpot": record.tpot_s, "e2e": record.e2e_s}[metric]


def keeps_prompt_rate(rule: PromptRateRule, record: RequestRecord) -> bool:
    """Whether the first token came within prompt tokens / rate."""
    value = value_of(record, "ttft", from_request=rule.from_request)
    tokens = prompt_tokens(record)
    return value is not None and tokens is not None and value <= tokens / rule.tokens_per_s


def keeps_token_rate(rule: TokenRateRule, record: RequestRecord) -> bool:
    """Whether the moving average of the gaps was below 1 / rate at every token.

    Formula:
        Exponential, weights ``(1 - a) ** k`` for the gap k before, ``a = 2 / (span + 1)``, divided
        by the sum of the weights there are (as pandas' ``ewm(span)``).
    """
    return all(average < 1 / rule.tokens_per_s for average in _averages(rule, record.itl_s))


def _averages(rule: TokenRateRule, gaps: Iterable[float]) -> Iterable[float]:
    keep = 1 - 2 / (rule.ema_span + 1)
    total = weights = 0.0
    for gap in gaps:
        total = total * keep + gap
        weights = weights * keep + 1
        yield total / weights


def _within(value: float | None, limit: float, metric: str) -> bool:
    """Whether *value* keeps *limit*; a request of one token has no TPOT to break it with."""
    return metric == "tpot" if value is None else value <= limit


def _statistic(gaps: Sequence[float], name: str) -> float:
    if name == "mean":
        return sum(gaps) / len(gaps)
    return max(gaps) if name == "max" else float(np.percentile(gaps, float(name[1:])))

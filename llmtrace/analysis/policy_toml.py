"""A policy as TOML: known keys, values of their type, or one line that says what is not."""

from __future__ import annotations

import importlib
import sys
from importlib import resources
from typing import Any

from llmtrace.analysis.policy import (
    DEFAULT_SAMPLES,
    METRICS,
    STATISTICS,
    ConditionsRule,
    GoodputRule,
    LatencyRule,
    Metric,
    Policy,
    PromptRateRule,
    Prompts,
    Rule,
    ThroughputRule,
    TokenRateRule,
)
from llmtrace.analysis.policy_table import PolicyTable
from llmtrace.errors import MissingExtraError, PolicyError

PRESETS = ("default", "mlperf-llama2-70b-server", "mlperf-llama2-70b-interactive", "fastgen")

DEFAULT_SHARE = 1.0
"""A rule for each request holds for every one of them, unless it says otherwise."""

DEFAULT_EMA_SPAN = 16

NO_BOUND = 1 << 62


def preset(name: str) -> Policy:
    """Return one of :data:`PRESETS`."""
    folder = resources.files("llmtrace.analysis") / "policies"
    return parse((folder / f"{name}.toml").read_text(encoding="utf-8"), name)


def parse(text: str, name: str) -> Policy:
    """Return the policy that *text* holds.

    Args:
        text: TOML.
        name: What to call it, and what messages begin with: the file's path.

    Raises:
        PolicyError: It is no TOML, or a key or value is not one of a policy.
        MissingExtraError: Python before 3.11 needs a package to read TOML.
    """
    toml = _toml()
    try:
        document = toml.loads(text)
    except (toml.TOMLDecodeError, RecursionError) as error:
        raise PolicyError(f"{name}: not TOML: {error}") from None
    top = PolicyTable(name, "", document)
    samples = top.table("samples")
    least = DEFAULT_SAMPLES if samples is None else samples.whole("min", DEFAULT_SAMPLES)
    rules = [*_ttft(top), *_latencies(top), *_rate(top), *_tgs(top), *_goodput(top)]
    if samples is not None:
        samples.finish()
    top.finish()
    if not rules:
        raise PolicyError(f"{name}: holds no rule; give it [[ttft]], [itl], [tgs] or another")
    return Policy(name, tuple(rules), least)


def _toml() -> Any:
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise MissingExtraError(
            "reading a policy needs tomli: pip install 'llmtrace[report]'"
        ) from None


def _ttft(top: PolicyTable) -> list[Rule]:
    """Return the rules of ``[[ttft]]``; a bucket begins where the one below it ends."""
    buckets: list[tuple[int, PolicyTable]] = []
    for table in top.tables("ttft"):
        last = table.whole("max_prompt_tokens", NO_BOUND)
        if any(last == other for other, _ in buckets):
            bound = "no bound" if last == NO_BOUND else str(last)
            table.refuse("max_prompt_tokens", f"two buckets with {bound}")
        buckets.append((last, table))
    rules: list[Rule] = []
    first = 0
    for last, table in sorted(buckets, key=lambda bucket: bucket[0]):
        prompts = Prompts(first, None if last == NO_BOUND else last)
        first = last + 1
        rules += _bucket(table, prompts)
    return rules


def _bucket(table: PolicyTable, prompts: Prompts) -> list[Rule]:
    from_request = table.choice("from", ("generate", "request")) == "request"
    rules = _limits(table, "ttft", prompts, from_request=from_request)
    rate = table.number("prompt_tokens_per_s")
    share = table.number("min_share", most=1)
    if rate is not None:
        rules.append(PromptRateRule(rate, share or DEFAULT_SHARE, prompts, from_request))
    elif share is not None:
        table.refuse("min_share", "goes with prompt_tokens_per_s only")
    table.finish()
    if not rules:
        table.refuse("", "has no limit; give p95_ms or another")
    return rules


def _latencies(top: PolicyTable) -> list[Rule]:
    rules: list[Rule] = []
    for metric in METRICS[1:]:
        table = top.table(metric)
        if table is not None:
            found = _limits(table, metric, Prompts())
            table.finish()
            if not found:
                table.refuse("", "has no limit; give p95_ms or another")
            rules += found
    return rules


def _limits(
    table: PolicyTable, metric: Metric, prompts: Prompts, *, from_request: bool = False
) -> list[Rule]:
    limits = {statistic: table.number(f"{statistic}_ms") for statistic in STATISTICS}
    return [
        LatencyRule(metric, statistic, limit / 1e3, prompts, from_request)
        for statistic, limit in limits.items()
        if limit is not None
    ]


def _rate(top: PolicyTable) -> list[Rule]:
    table = top.table("rate")
    if table is None:
        return []
    span = table.whole("ema_span", DEFAULT_EMA_SPAN)
    least = table.number("min_tokens_per_s")
    share = table.number("min_share", most=1)
    table.finish()
    if least is None:
        table.refuse("min_tokens_per_s", "is missing")
    return [TokenRateRule(least or 0.0, span, share or DEFAULT_SHARE)]


def _tgs(top: PolicyTable) -> list[Rule]:
    table = top.table("tgs")
    if table is None:
        return []
    rules: list[Rule] = [ConditionsRule()] if table.flag("require_conditions") else []
    least = table.number("min_system")
    table.finish()
    return rules if least is None else [*rules, ThroughputRule(least)]


def _goodput(top: PolicyTable) -> list[Rule]:
    table = top.table("goodput")
    if table is None:
        return []
    share = table.number("min_share", most=1)
    rate = table.number("min_requests_per_s")
    table.finish()
    rules: list[Rule] = [] if share is None else [GoodputRule(share, per_second=False)]
    if rate is not None:
        rules.append(GoodputRule(rate, per_second=True))
    if not rules:
        table.refuse("", "has no limit; give min_share or min_requests_per_s")
    return rules

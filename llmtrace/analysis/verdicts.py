"""A policy's rules, held against requests: pass, fail, or undecided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from llmtrace.analysis.gaps import gaps_of
from llmtrace.analysis.goodput import (
    Goodput,
    goodput,
    keeps_prompt_rate,
    keeps_token_rate,
    value_of,
)
from llmtrace.analysis.latency import prompt_tokens
from llmtrace.analysis.policy import (
    ConditionsRule,
    LatencyRule,
    Policy,
    PromptRateRule,
    Prompts,
    Rule,
    ThroughputRule,
    TokenRateRule,
)
from llmtrace.analysis.report import Report
from llmtrace.analysis.summary import Values, present, summarise
from llmtrace.analysis.throughput import Conditions
from llmtrace.records import RequestRecord

Outcome = Literal["PASS", "FAIL", "UNDECIDED"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one rule."""

    rule: str
    """What was asked, in words."""
    value: float | None
    """In ``unit``; None where there is none."""
    limit: float
    unit: str
    """``s``, ``token/s``, ``request/s``, ``1`` (a share), or nothing."""
    samples: int
    at_least: bool
    """Whether the value must reach the limit, not stay within it."""
    note: str = ""
    """What else there is to say."""
    outcome: Outcome = "UNDECIDED"


@dataclass(frozen=True, slots=True)
class Check:
    """A policy held against requests."""

    policy: str
    min_samples: int
    verdicts: tuple[Verdict, ...]
    goodput: Goodput
    report: Report
    """The requests' numbers, with the conditions they were taken under."""
    outside: int = 0
    """Requests whose prompt length is in no bucket of TTFT, or not known, where there are some."""

    @property
    def outcome(self) -> Outcome:
        """FAIL if a rule failed; else UNDECIDED if one is; else PASS."""
        found = {verdict.outcome for verdict in self.verdicts}
        if "FAIL" in found:
            return "FAIL"
        return "UNDECIDED" if "UNDECIDED" in found else "PASS"


def check(
    policy: Policy,
    counted: Sequence[RequestRecord],
    failed: Sequence[RequestRecord],
    report: Report,
) -> Check:
    """Hold *policy* against requests.

    Args:
        policy: What is asked.
        counted: The good requests that the report's numbers are of.
        failed: Those that failed: no latency of theirs counts, but they are no goodput.
        report: The report of them all.
    """
    good = goodput(policy, counted, failed)
    verdicts = [
        _judged(
            _found(rule, counted, report, good),
            # One request tells what is recorded and what is not.
            1 if isinstance(rule, ConditionsRule) else policy.min_samples,
        )
        for rule in policy.rules
    ]
    return Check(
        policy.name,
        policy.min_samples,
        tuple(verdicts),
        good,
        report,
        _outside(policy, counted),
    )


def _outside(policy: Policy, counted: Sequence[RequestRecord]) -> int:
    buckets = [
        rule.prompts
        for rule in policy.rules
        if isinstance(rule, PromptRateRule)
        or (isinstance(rule, LatencyRule) and rule.metric == "ttft")
    ]
    lengths = [prompt_tokens(record) for record in counted] if buckets else []
    return sum(not any(bucket.holds(n) for bucket in buckets) for n in lengths)


def _judged(found: Verdict, least: int) -> Verdict:
    """Return *found* with its outcome."""
    if found.samples < least:
        return replace(found, note=f"fewer than {least} samples")
    if found.value is None:
        return found
    within = found.value >= found.limit if found.at_least else found.value <= found.limit
    return replace(found, outcome="PASS" if within else "FAIL")


def _found(rule: Rule, counted: Sequence[RequestRecord], report: Report, good: Goodput) -> Verdict:
    """Return what there is to judge *rule* by, undecided as yet."""
    if isinstance(rule, LatencyRule):
        return _latency(rule, counted)
    if isinstance(rule, PromptRateRule):
        name = f"TTFT within prompt tokens / {rule.tokens_per_s:g} s"
        kept = [keeps_prompt_rate(rule, r) for r in counted if _has_prompt_rate(rule, r)]
        return _share(name + _of_prompts(rule.prompts), kept, rule.min_share)
    if isinstance(rule, TokenRateRule):
        name = f"every token at {rule.tokens_per_s:g} per s, moving average of {rule.ema_span}"
        kept = [keeps_token_rate(rule, r) for r in counted if r.itl_s]
        return _share(name, kept, rule.min_share)
    if isinstance(rule, ThroughputRule):
        system, least = report.tgs.system, rule.min_tokens_per_s
        return Verdict("TGS system", system, least, "token/s", len(counted), at_least=True)
    if isinstance(rule, ConditionsRule):
        return _conditions(report.tgs.conditions, len(counted))
    if rule.per_second:
        name, value, unit = "goodput, requests", good.requests_per_s, "request/s"
    else:
        name, value, unit = "goodput, share of requests", good.share, "1"
    return Verdict(name, value, rule.minimum, unit, good.requests, at_least=True)


def _has_prompt_rate(rule: PromptRateRule, record: RequestRecord) -> bool:
    """Whether there is a prompt's length and a TTFT to judge by, as for any other limit of TTFT."""
    tokens = prompt_tokens(record)
    return tokens is not None and rule.prompts.holds(tokens) and record.ttft_s is not None


def _latency(rule: LatencyRule, counted: Sequence[RequestRecord]) -> Verdict:
    held = [r for r in counted if rule.prompts.holds(prompt_tokens(r))]
    values = _values(rule, held)
    summary = summarise(values)
    name = f"{rule.metric.upper()} {rule.statistic}"
    if rule.from_request:
        name += " from request"
    value = None if summary is None else float(getattr(summary, rule.statistic))
    name += _of_prompts(rule.prompts)
    return Verdict(name, value, rule.limit_s, "s", int(values.size), at_least=False)


def _values(rule: LatencyRule, held: Sequence[RequestRecord]) -> Values:
    if rule.metric == "itl":
        return gaps_of(held).pooled()
    return present(value_of(r, rule.metric, from_request=rule.from_request) for r in held)


def _of_prompts(prompts: Prompts) -> str:
    if prompts.last is not None:
        return f", prompts of {max(prompts.first, 1)}-{prompts.last} tokens"
    return f", prompts of {prompts.first} tokens and more" if prompts.first else ""


def _share(name: str, kept: Sequence[bool], least: float) -> Verdict:
    value = sum(kept) / len(kept) if kept else None
    return Verdict(name, value, least, "1", len(kept), at_least=True)


def _conditions(found: Conditions, samples: int) -> Verdict:
    """Return how many of the four conditions are known; without a GPU, that there is none."""
    known = {
        "prompt lengths": found.prompt_tokens is not None,
        "sampling": any(setting.strategy != "unknown" for setting in found.sampling),
        "concurrency": found.concurrency.mean is not None,
        "GPU memory": found.gpu_memory_bytes is not None or set(found.devices) == {"cpu"},
    }
    missing = [name for name, is_known in known.items() if not is_known]
    note = f"not recorded: {', '.join(missing)}" if missing else ""
    value = float(sum(known.values()))
    return Verdict("TGS conditions known", value, 4.0, "", samples, at_least=True, note=note)

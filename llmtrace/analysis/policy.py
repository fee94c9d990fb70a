"""What is asked of a set of requests: rules as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Metric = Literal["ttft", "itl", "tpot", "e2e"]

METRICS: tuple[Metric, ...] = ("ttft", "itl", "tpot", "e2e")

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")

DEFAULT_SAMPLES = 20


@dataclass(frozen=True, slots=True)
class Prompts:
    """A range of prompt lengths, both bounds included."""

    first: int = 0
    last: int | None = None
    """None: no upper bound."""

    def holds(self, tokens: int | None) -> bool:
        """Whether a prompt of so many tokens is in the range; of unknown length, if all are."""
        if tokens is None:
            return not self.first and self.last is None
        return tokens >= self.first and (self.last is None or tokens <= self.last)


@dataclass(frozen=True, slots=True)
class LatencyRule:
    """A statistic of a latency must not exceed a limit."""

    metric: Metric
    statistic: str
    """One of :data:`STATISTICS`."""
    limit_s: float
    prompts: Prompts = field(default_factory=Prompts)
    from_request: bool = False
    """TTFT counts from the enclosing server span or ``request()`` block, where there is one."""


@dataclass(frozen=True, slots=True)
class PromptRateRule:
    """TTFT must not exceed prompt tokens / rate, in a share of the requests."""

    tokens_per_s: float
    min_share: float
    prompts: Prompts = field(default_factory=Prompts)
    from_request: bool = False


@dataclass(frozen=True, slots=True)
class TokenRateRule:
    """The moving average of the gaps must stay below 1 / rate, in a share of the requests."""

    tokens_per_s: float
    ema_span: int
    min_share: float


@dataclass(frozen=True, slots=True)
class ThroughputRule:
    """System throughput must reach a minimum."""

    min_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class ConditionsRule:
    """The four conditions of a throughput figure must be known."""


@dataclass(frozen=True, slots=True)
class GoodputRule:
    """Requests within every limit must reach a share of all, or a number per second."""

    minimum: float
    per_second: bool


Rule = LatencyRule | PromptRateRule | TokenRateRule | ThroughputRule | ConditionsRule | GoodputRule


@dataclass(frozen=True, slots=True)
class Policy:
    """A set of rules."""

    name: str
    rules: tuple[Rule, ...]
    min_samples: int = DEFAULT_SAMPLES
    """With fewer, a rule is undecided."""

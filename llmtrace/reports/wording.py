"""Numbers and settings as people read them: milliseconds, GiB, short phrases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llmtrace.analysis.metrics import MetricSpec
from llmtrace.analysis.summary import Summary
from llmtrace.analysis.throughput import Conditions, Sampling

ABSENT = "-"
SHOWN_SETTINGS = 4

_SHOWN_UNITS = {"s": ("ms", 1e3), "1": ("%", 100.0), "token/s": ("tok/s", 1.0)}


def shown_unit(spec: MetricSpec) -> tuple[str, float]:
    """Return the unit in which a report shows a metric, and what to multiply by."""
    return _SHOWN_UNITS[spec.unit]


def cells(values: Iterable[float], scale: float) -> list[str]:
    """Return the numbers of one row, all with as many decimals as the largest leaves room for."""
    scaled = [value * scale for value in values]
    largest = max(map(abs, scaled), default=0)
    decimals = 2 if largest < 1e4 else 1 if largest < 1e5 else 0  # noqa: PLR2004
    return [f"{value:,.{decimals}f}" for value in scaled]


def size(count: float) -> str:
    """Return a number of bytes."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{count / scale:,.2f} {unit}"
    return f"{count:,.0f} B"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def clean(text: str) -> str:
    """Return *text* without what would control a terminal: a trace may hold anything."""
    return "".join(c if c.isprintable() else "?" for c in text)


def listed(values: Sequence[object], nothing: str = "unknown") -> str:
    """Return the first few of *values*, and how many more there are."""
    shown = ", ".join(clean(str(value)) for value in values[:SHOWN_SETTINGS])
    more = len(values) - SHOWN_SETTINGS
    return (shown or nothing) + (f" and {more} more" if more > 0 else "")


def spread(summary: Summary) -> str:
    """Return the distribution of whole numbers in a few words."""
    if summary.min == summary.max:
        return f"{summary.min:,.0f} each"
    bounds = f"{summary.min:,.0f} to {summary.max:,.0f}"
    return f"{bounds}, mean {summary.mean:,.1f}, p50 {summary.p50:,.0f}"


def conditions(of: Conditions) -> list[tuple[str, str]]:
    """Return the four conditions of a throughput figure, each with its name."""
    prompts = of.prompt_tokens
    return [
        (
            "prompt tokens",
            "unknown"
            if prompts is None
            else f"{spread(prompts)} ({plural(prompts.count, 'prompt')})",
        ),
        ("sampling", "; ".join(map(_sampling, of.sampling[:SHOWN_SETTINGS])) + _more(of.sampling)),
        ("concurrency", _concurrency(of)),
        ("GPU memory", _memory(of)),
    ]


def _more(samplings: Sequence[Sampling]) -> str:
    more = len(samplings) - SHOWN_SETTINGS
    return f"; and {more} more settings" if more > 0 else ""


def _sampling(setting: Sampling) -> str:
    """Return one setting; what greedy search does not look at is left out."""
    said = [clean(setting.strategy)]
    if setting.do_sample:
        for name in ("temperature", "top_p", "top_k"):
            value = getattr(setting, name)
            if value is not None:
                said.append(f"{name} {value:g}")
    if (setting.num_beams or 1) > 1:
        said.append(f"{setting.num_beams} beams")
    return f"{', '.join(said)} ({plural(setting.requests, 'request')})"


def _concurrency(of: Conditions) -> str:
    load = of.concurrency
    if load.mean is None:
        return "unknown"
    return f"mean {load.mean:.2f}, max {load.max} (batch size {listed(of.batch_sizes)})"


def _memory(of: Conditions) -> str:
    held = of.gpu_memory_bytes
    if held is None:
        return "none: no GPU" if set(of.devices) == {"cpu"} else "not recorded"
    if held.min == held.max:
        return f"{size(held.max)} held by torch"
    return f"{size(held.min)} to {size(held.max)} held by torch, mean {size(held.mean)}"

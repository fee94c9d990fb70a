"""Numbers and settings as people read them: milliseconds, GiB, short phrases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llmtrace.analysis import metrics
from llmtrace.analysis.curve import Trend
from llmtrace.analysis.latency import Bucket
from llmtrace.analysis.metrics import MetricSpec
from llmtrace.analysis.report import Report
from llmtrace.analysis.summary import Summary
from llmtrace.analysis.throughput import Conditions, Sampling

ABSENT = "-"
SHOWN_SETTINGS = 4

GROUP_NAMES = {
    "model": "By model",
    "prompt_tokens": "By prompt tokens",
    "batch_size": "By batch size",
    "strategy": "By strategy",
}

MOST_GROUPS = 8

SURE = {"ttft_s": "TTFT", "itl_s": "ITL", "tpot_s": "TPOT", "e2e_s": "E2E"}
SURE_COLUMNS = ("mean", "p50", "p95", "p99")
"""The metrics that intervals are given for, and which of their figures."""

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


def metric_rows(report: Report) -> list[tuple[MetricSpec, Summary | None]]:
    """Return every metric that has a distribution; what not every device tells only where known."""
    rows = [
        (metrics.TTFT, report.ttft_s),
        (metrics.ITL, report.itl_s),
        (metrics.TPOT, report.tpot_s),
        (metrics.E2E, report.e2e_s),
        (metrics.PREFILL, report.prefill_s),
        (metrics.HOST_BOUND, report.host_bound_ratio),
        (metrics.MBU, report.mbu),
        (metrics.MFU, report.mfu),
        (metrics.TGS_REQUEST, report.tgs.request),
        (metrics.TGS_DECODE, report.tgs.decode),
    ]
    return [(spec, summary) for spec, summary in rows if summary or spec not in metrics.OPTIONAL]


def bounds(bucket: Bucket) -> str:
    """Return what lies in a bucket."""
    if bucket.first < 0:
        return f"last {-bucket.first}"
    return f"{bucket.first} and more" if bucket.last is None else f"{bucket.first}-{bucket.last}"


def counts_line(report: Report) -> str:
    """Say how many requests there were, and how they ended."""
    requests = report.requests
    kinds = [f"{kind} x{times}" if times > 1 else kind for kind, times in report.errors]
    said = [
        plural(requests.total, "request"),
        f"{requests.ok} ok",
        f"{requests.error} failed" + (f" ({listed(kinds)})" if kinds else ""),
        f"{requests.cold} cold",
    ]
    return ", ".join(said)


def setup(of: Conditions) -> str:
    """Say what ran where."""
    details = (of.dtypes, of.quantizations, of.attn_implementations, of.cache_implementations)
    known = "; ".join(listed(values) for values in details if values)
    return f"{listed(of.models)} on {listed(of.devices)}" + (f" ({known})" if known else "")


def partial(problems: int) -> str:
    """Say that not all of the input could be read; nothing where it could."""
    if not problems:
        return ""
    return f"PARTIAL: {plural(problems, 'problem')} in the input; this is of what could be read."


def scope(report: Report) -> str:
    """Say which requests the numbers are of."""
    if report.cold is not None:
        return (
            "EVERY REQUEST WAS COLD: the numbers below are those of the cold requests and include "
            "one-off costs."
        )
    if not report.counted:
        return "No request succeeded, so there is nothing to summarise."
    left_out = []
    if report.requests.error:
        left_out.append(f"{report.requests.error} failed")
    if report.requests.ok > report.counted:
        left_out.append(f"{report.requests.ok - report.counted} cold")
    said = f"The numbers below are of {plural(report.counted, 'request')}"
    return f"{said}; left out: {' and '.join(left_out)}." if left_out else f"{said}."


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
    if setting.strategy == "continuous" and setting.do_sample is not None:
        said = ["sample" if setting.do_sample else "greedy", "continuous batching"]
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


def slope_words(found: Trend) -> str:
    """Return how ITL grows with context length."""
    if found.slope_s_per_token is None:
        return "unknown: too few different context lengths"
    return (
        f"{found.slope_s_per_token * 1e6:+,.3f} us per token, "
        f"from {found.context_from:,} to {found.context_to:,} tokens of context"
    )


def jump_words(found: Trend) -> str:
    """Return the first lasting jump of ITL."""
    jump = found.jump
    if jump is None:
        return "none"
    before, after = cells([jump.before_s, jump.after_s], 1e3)
    return f"at token {jump.position:,}, from {before} to {after} ms"

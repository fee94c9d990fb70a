"""The tables of the text report that go into detail: kinds of requests, load, how sure it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from llmtrace.analysis import groups as grouping
from llmtrace.analysis import metrics
from llmtrace.analysis.curve import Trend
from llmtrace.analysis.intervals import FEWEST_BEYOND, FEWEST_REQUESTS, METHOD, Interval
from llmtrace.analysis.report import ColdRequests, Report
from llmtrace.analysis.summary import PERCENTILE_METHOD, Summary
from llmtrace.reports.table_parts import clock_of, make_table, numbers, pairs, small_print
from llmtrace.reports.wording import (
    ABSENT,
    GROUP_NAMES,
    MOST_GROUPS,
    SURE,
    SURE_COLUMNS,
    cells,
    clean,
    jump_words,
    listed,
    plural,
    slope_words,
)

MOST_NAME = 19


def cold_requests(report: Report, columns: Sequence[str]) -> RenderableType | None:
    """Return the numbers of the cold requests left out; None where there are none."""
    cold: ColdRequests | None = report.cold_requests
    # Where all were cold, theirs are the headline's numbers.
    if cold is None or report.cold is not None:
        return None
    table = make_table("Cold requests, ms", "count", *columns)
    for name, summary in (("TTFT", cold.ttft_s), ("ITL", cold.itl_s), ("E2E", cold.e2e_s)):
        if summary is not None:
            table.add_row(name, *numbers(summary, 1e3, columns))
    reasons = listed([f"{reason} x{times}" for reason, times in cold.reasons], "not recorded")
    return Group(table, small_print(f"Left out of every other table. Reasons: {reasons}."))


def ranks(report: Report, columns: Sequence[str]) -> RenderableType | None:
    """Return how far apart the ranks of tensor-parallel requests were; None without any."""
    found = report.ranks
    if found is None:
        return None
    table = make_table("Ranks apart ms", "count", *columns)
    table.add_row("start", *numbers(found.start_skew_s, 1e3, columns))
    table.add_row("first token", *numbers(found.first_token_skew_s, 1e3, columns))
    note = (
        f"{plural(found.requests, 'request')} on {plural(found.ranks, 'rank')}, each counted once: "
        "the others' records are in this table alone. First rank to last, by their wall clocks."
    )
    if found.incomplete:
        note += f" {plural(found.incomplete, 'request')} on fewer ranks, not in this table."
    return Group(table, small_print(note))


def groups(report: Report) -> RenderableType | None:
    """Return a table for each thing in which requests differ; None where they are alike."""
    parts: list[RenderableType] = [
        _group_table(found) for found in report.groups if len(found.groups) > 1
    ]
    if not parts:
        return None
    note = small_print(
        f"TTFT: {metrics.TTFT.formula}; ITL: {metrics.ITL.formula}, pooled over gaps and rows. "
        "TGS: mean of the requests' n / (tn - t0). System: the group's tokens / time in which at "
        f"least one of its requests ran. Percentiles: {PERCENTILE_METHOD}. {clock_of(report)}"
    )
    return Group(*parts, note)


def _group_table(found: grouping.Grouping) -> Table:
    table = make_table(
        GROUP_NAMES[found.by],
        *("requests", "TTFT p50", "p95 ms", "ITL p50", "p95 ms", "TGS", "system"),
    )
    for group in found.groups[:MOST_GROUPS]:
        table.add_row(
            clean(group.value)[:MOST_NAME],
            f"{group.requests:,}",
            *_two(group.ttft_s),
            *_two(group.itl_s),
            ABSENT if group.tgs_request is None else f"{group.tgs_request.mean:,.2f}",
            ABSENT if group.tgs_system is None else f"{group.tgs_system:,.2f}",
        )
    more = len(found.groups) - MOST_GROUPS
    if more > 0:
        table.add_row(f"and {more} more", *[""] * 7)
    return table


def _two(summary: Summary | None) -> list[str]:
    return [ABSENT, ABSENT] if summary is None else cells([summary.p50, summary.p95], 1e3)


def by_concurrency(report: Report) -> RenderableType | None:
    """Return throughput by how many requests ran; None where it was always as many."""
    levels = report.tgs.by_concurrency
    if len(levels) <= 1:
        return None
    table = make_table("TGS by concurrency", "seconds", "tokens", "tok/s")
    for level in levels[:MOST_GROUPS]:
        table.add_row(
            f"{level.running} at once",
            f"{level.seconds:,.2f}",
            f"{level.output_tokens:,}",
            f"{level.tgs:,.2f}",
        )
    note = (
        "Tokens selected while so many requests ran / time in which so many ran, cold and failed "
        "ones among them."
    )
    return Group(table, small_print(note))


def trend(report: Report) -> RenderableType | None:
    """Return how ITL goes with context length and position; None where there are no gaps."""
    found: Trend | None = report.itl_trend
    if found is None:
        return None
    lines = [("ITL over context", slope_words(found)), ("lasting jump", jump_words(found))]
    note = (
        f"Of {plural(found.requests, 'request')} of the commonest model and batch size. Slope: "
        "median of the slopes between medians of 40 bins of context length (Theil-Sen). Jump: the "
        "first token from which the median over requests stays up, by 25 % at least and 5 times "
        "the usual difference between neighbours."
    )
    return Group(pairs(lines), small_print(note))


def confidence(report: Report) -> RenderableType | None:
    """Return the intervals; None where there are too few requests for any."""
    table = make_table("95 % intervals, ms", *SURE_COLUMNS)
    for key, name in SURE.items():
        found = report.intervals.get(key, {})
        if found:
            table.add_row(name, *[_bounds(found, column) for column in SURE_COLUMNS])
    if not table.row_count:
        return None
    note = (
        f"{METHOD[0].upper()}{METHOD[1:]}. None from fewer than {FEWEST_REQUESTS} requests, nor "
        f"where fewer than {FEWEST_BEYOND} values lie beyond the percentile."
    )
    return Group(table, small_print(note))


def _bounds(found: Mapping[str, Interval], name: str) -> str:
    if name not in found:
        return ABSENT
    low, high = cells([found[name].low, found[name].high], 1e3)
    return f"{low}-{high}"

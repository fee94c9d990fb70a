"""A check for the terminal: one line for each rule, then what it was held against."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from llmtrace.analysis.goodput import FORMULA
from llmtrace.analysis.summary import PERCENTILE_METHOD
from llmtrace.analysis.verdicts import Check, Verdict
from llmtrace.reports.printing import printed
from llmtrace.reports.table_parts import clock_of, make_table, pairs, small_print
from llmtrace.reports.text import partial
from llmtrace.reports.wording import ABSENT, cells, clean, conditions, plural, scope

STYLES = {"PASS": "bold green", "FAIL": "bold red", "UNDECIDED": "bold yellow"}

_UNITS = {"s": ("ms", 1e3), "1": ("%", 100.0), "token/s": ("tok/s", 1.0), "request/s": ("req/s", 1)}


def render(check: Check, *, width: int = 100, color: bool = False, problems: int = 0) -> str:
    """Return *check* as text, without a line's end after it."""
    parts = [_header(check), *partial(problems), Text(), _rules(check), Text(), _foot(check)]
    return printed(parts, width, color)


def amounts(verdict: Verdict) -> tuple[str, str]:
    """Return value and limit with their unit; what is absent is ``-``."""
    unit, scale = _UNITS.get(verdict.unit, ("", 1.0))
    kept = [] if verdict.value is None else [verdict.value]
    *value, limit = cells([*kept, verdict.limit], scale)
    sign = ">=" if verdict.at_least else "<="
    return (value[0] if value else ABSENT), f"{sign} {limit} {unit}".rstrip()


def _header(check: Check) -> RenderableType:
    title = Text(check.outcome, style=STYLES[check.outcome])
    title.append(f"  policy {clean(check.policy)}", style="default")
    if check.report.cold is not None:
        return Group(title, Text("Every request was cold: none counts without --include-cold."))
    return Group(title, Text(scope(check.report)))


def _rules(check: Check) -> RenderableType:
    table = make_table("", "value", "limit", "samples", "")
    for verdict in check.verdicts:
        value, limit = amounts(verdict)
        outcome = Text(f"{verdict.outcome:10}", style=STYLES[verdict.outcome])
        outcome.append(verdict.rule, style="default")
        table.add_row(outcome, value, limit, f"{verdict.samples:,}", clean(verdict.note))
    return table


def _foot(check: Check) -> RenderableType:
    good = check.goodput
    said = [f"{good.good:,} of {plural(good.requests, 'request')}"]
    if good.share is not None:
        said.append(f"{good.share:.1%}")
    if good.requests_per_s is not None and good.tokens_per_s is not None:
        said.append(
            f"{good.requests_per_s:,.3f} requests and {good.tokens_per_s:,.2f} tokens per s"
        )
    lines = [("goodput", ", ".join(said)), *conditions(check.report.tgs.conditions)]
    notes = (
        f"Fewer than {check.min_samples} samples: undecided. Percentiles: {PERCENTILE_METHOD}. "
        f"{clock_of(check.report)} Goodput: {FORMULA}."
    )
    outside = [
        Text(
            "In no bucket of prompt lengths, so without a TTFT limit: "
            + plural(check.outside, "request")
        )
    ]
    return Group(*(outside if check.outside else []), pairs(lines), small_print(notes))

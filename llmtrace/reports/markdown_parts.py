"""What Markdown reports are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llmtrace.analysis.summary import Summary
from llmtrace.reports.wording import ABSENT, cells, clean

COLUMNS = ("mean", "std", "p50", "p95", "p99", "max")

_MARKS = "\\`*_{}[]<>#|~&!"


def escaped(text: str) -> str:
    """Return *text* so that Markdown shows it as it is: a trace may hold anything."""
    return "".join(f"\\{c}" if c in _MARKS else c for c in clean(text))


def code(text: str) -> str:
    """Return *text* as code."""
    return f"`{clean(text).replace('`', '?')}`"


def numbers(summary: Summary | None, scale: float) -> list[str]:
    """Return the count of a distribution and its numbers, a cell each."""
    if summary is None:
        return ["0", *[ABSENT] * len(COLUMNS)]
    return [f"{summary.count:,}", *cells([getattr(summary, c) for c in COLUMNS], scale)]


def make_table(
    head: Sequence[str], lines: Iterable[Sequence[str]], left: Sequence[int] = ()
) -> str:
    """Return a table; columns are right-aligned but the first and those of *left*."""
    rule = ["---" if i == 0 or i in left else "--:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *lines))


def folded(title: str, table: str) -> str:
    """Return *table* behind its title, to be opened; nothing where there is no table."""
    if not table:
        return ""
    return f"<details><summary>{title}</summary>\n\n{table}\n\n</details>"

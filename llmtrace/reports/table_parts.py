"""What all tables of the text report are made of."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import Box
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from llmtrace.analysis.report import Report
from llmtrace.analysis.summary import Summary
from llmtrace.reports.wording import ABSENT, cells, listed

TITLE_WIDTH = 20
NUMBER_WIDTH = 8

# A terminal may know no other letters, and a report is also sent by mail.
_BOX = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)


def make_table(title: str, *columns: str) -> Table:
    """Return a table whose columns stand under those of the other tables.

    Columns of numbers have a name; words, which stand at the left and in a column without one, may
    take another line where the terminal is narrow, so that numbers and their units stay whole.
    """
    table = Table(box=_BOX, show_edge=False, pad_edge=False, padding=0, header_style="bold")
    table.add_column(title, min_width=TITLE_WIDTH)
    for column in columns:
        justify: JustifyMethod = "right" if column else "left"
        table.add_column(column, justify=justify, no_wrap=bool(column), min_width=NUMBER_WIDTH)
    return table


def numbers(summary: Summary | None, scale: float, columns: Sequence[str]) -> list[str]:
    """Return the count of a distribution and those of its numbers that have a column."""
    if summary is None:
        return ["0", *[ABSENT] * len(columns)]
    values = [getattr(summary, column) for column in columns]
    return [f"{summary.count:,}", *cells(values, scale)]


def clock_of(report: Report) -> str:
    """Say what measured the times of a report."""
    return f"Clock: {listed(report.tgs.conditions.clocks)}."


def small_print(text: str) -> Text:
    """Return a note for under a table."""
    return Text(text, style="dim")


def pairs(lines: Sequence[tuple[str, str]], style: str = "") -> Table:
    """Return names, each with its text beside it."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style=style)
    grid.add_column(style=style)
    for name, value in lines:
        grid.add_row(name, value)
    return grid

"""What the terminal shows of the latest requests."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from itertools import chain, islice

from rich.box import SIMPLE_HEAD, Box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llmtrace.analysis.summary import Summary
from llmtrace.records import RequestRecord
from llmtrace.reports.wording import ABSENT, cells, clean, conditions, plural, size
from llmtrace.watch.numbers import Numbers, numbers_of
from llmtrace.watch.sparkline import sparkline
from llmtrace.watch.window import Window

PERCENTILES = ("p50", "p95", "p99", "max")
SPARK_GAPS = 400
"""Gaps in the large sparkline: those of the latest requests."""

ROW_SPARK = 16
SHOWN_FINDINGS = 3
FEWEST_ROWS = 3
FIXED_LINES = 23
"""What stands above and below the table of requests."""

_PLAIN = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}


class Frame:
    """Makes frames of a window; its numbers are worked out anew only when a request came."""

    def __init__(self, window: Window, *, ascii_only: bool) -> None:
        self._window = window
        self._ascii = ascii_only
        self._of = 0
        self._numbers: Numbers | None = None
        self._records: list[RequestRecord] = []
        """As they ended: several files are not read in that order."""

    def render(self, where: str, now_unix_s: float, width: int, height: int) -> RenderableType:
        """Return the frame.

        Args:
            where: What is followed, and whether it is there yet.
            now_unix_s: To say how long ago the latest request ended.
            width: Columns of the terminal.
            height: Lines of the terminal; what there is no room for is left out.
        """
        window = self._window
        head = _head(where, window, now_unix_s)
        if not window.records:
            return Group(head, Text(), Text("No request yet.", style="dim"))
        if self._numbers is None or self._of != window.total:
            self._records = sorted(window.records, key=_end_unix_s)
            self._numbers, self._of = numbers_of(self._records), window.total
        numbers = self._numbers
        parts: list[RenderableType] = [head, Text(), self._percentiles(numbers)]
        parts += [self._itl(width), Text(), *_load(numbers), Text()]
        rows = max(height - FIXED_LINES, FEWEST_ROWS)
        parts += [self._requests(rows), Text(), *_findings(numbers)]
        return Group(*parts)

    def _percentiles(self, numbers: Numbers) -> Table:
        title = "only cold" if numbers.only_cold else ""
        table = self._table(title, *((f"{name} ms", 9) for name in PERCENTILES))
        for name, summary in (
            ("TTFT", numbers.ttft_s),
            ("ITL", numbers.itl_s),
            ("TPOT", numbers.tpot_s),
        ):
            table.add_row(Text(name, style="bold"), *_cells(summary))
        return table

    def _itl(self, width: int) -> Text:
        gaps = _latest_gaps(self._records)
        line = Text("ITL ", style="bold")
        if not gaps:
            return line.append(ABSENT)
        low, high = cells([min(gaps), max(gaps)], 1e3)
        said = f"  {len(gaps)} gaps, {low} to {high} ms"
        room = max(width - len(said) - 5, 10)
        line.append(sparkline(gaps, room, ascii_only=self._ascii), style="cyan")
        return line.append(said, style="dim")

    def _requests(self, rows: int) -> Table:
        shown = self._records[: -rows - 1 : -1]
        memory = any(record.memory_peak_bytes is not None for record in shown)
        names = ("prompt", "output", "TTFT ms", "TPOT ms", "longest", "TGS")
        columns = [(name, 7) for name in names] + ([("peak", 9)] if memory else [])
        table = self._table("ended", *columns, ("ITL", ROW_SPARK), ("", 0))
        for column in table.columns[-2:]:
            column.justify = "left"
        top = max((gap for record in shown for gap in record.itl_s), default=0.0)
        for record in shown:
            line = sparkline(record.itl_s, ROW_SPARK, top=top, ascii_only=self._ascii)
            table.add_row(
                _ended(record),
                *_row(record),
                *([_peak(record)] if memory else []),
                Text(line, style="cyan"),
                _marks(record),
                style="red" if record.error is not None else None,
            )
        return table

    def _table(self, first: str, *columns: tuple[str, int]) -> Table:
        table = Table(
            box=_PLAIN if self._ascii else SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, 1, 0, 0),
            header_style="dim",
        )
        table.add_column(first, no_wrap=True, min_width=8)
        for name, least in columns:
            table.add_column(name, justify="right", no_wrap=True, min_width=least)
        return table


def request_line(record: RequestRecord) -> str:
    """Return one finished request as a line of plain text."""
    prompt, output, ttft, tpot, longest, tgs = _row(record)
    said = (
        f"{_ended(record)}  prompt {prompt}  output {output}  TTFT {ttft} ms  TPOT {tpot} ms  "
        f"longest gap {longest} ms  TGS {tgs} tok/s"
    )
    return f"{said}  {marks}" if (marks := _marks(record).plain) else said


def _head(where: str, window: Window, now_unix_s: float) -> Text:
    line = Text(plural(window.total, "request"), style="bold", no_wrap=True, overflow="ellipsis")
    for count, name, style in (
        (window.failed, "failed", "red"),
        (window.cold, "cold", "yellow"),
        (window.unreadable, "unreadable", "red"),
    ):
        if count:
            line.append(f", {count:,} {name}", style=style)
    if window.total > len(window.records):
        line.append(f"; numbers of the latest {len(window.records):,}", style="dim")
    if window.records:
        ended = max(_end_unix_s(record) for record in window.records)
        line.append(f"; latest {_ago(now_unix_s - ended)} ago", style="dim")
    return line.append(f"  {clean(where)}", style="dim")


def _ago(seconds: float) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:,.0f} {unit}"
    return f"{max(seconds, 0):,.0f} s"


def _load(numbers: Numbers) -> list[RenderableType]:
    system = ABSENT if numbers.tgs.system is None else cells([numbers.tgs.system], 1)[0]
    grid = Table.grid(padding=(0, 2))
    grid.add_row(Text("TGS, system", style="bold"), Text(f"{system} tok/s", style="bold cyan"))
    for name, said in conditions(numbers.tgs.conditions):
        grid.add_row(Text(name, style="dim"), Text(said, overflow="ellipsis", no_wrap=True))
    return [grid]


def _findings(numbers: Numbers) -> list[RenderableType]:
    if not numbers.findings:
        return [Text("Findings: none", style="dim")]
    lines: list[RenderableType] = []
    for finding in numbers.findings[:SHOWN_FINDINGS]:
        line = Text(finding.severity, style=_STYLES[finding.severity])
        line.append(f"  {clean(finding.title)}", style="default")
        if finding.remedy:
            line.append(f"  -> {clean(finding.remedy)}", style="dim")
        lines.append(line)
    more = len(numbers.findings) - SHOWN_FINDINGS
    if more > 0:
        lines.append(Text(f"and {more} more: llmtrace report", style="dim"))
    return lines


def _cells(summary: Summary | None) -> list[str]:
    if summary is None:
        return [ABSENT] * len(PERCENTILES)
    return cells([getattr(summary, name) for name in PERCENTILES], 1e3)


def _row(record: RequestRecord) -> list[str]:
    def ms(value: float | None) -> str:
        return ABSENT if value is None else cells([value], 1e3)[0]

    def whole(value: int | None) -> str:
        return ABSENT if value is None else f"{value:,}"

    return [
        whole(record.input_tokens),
        whole(record.output_tokens),
        ms(record.ttft_s),
        ms(record.tpot_s),
        ms(max(record.itl_s, default=None)),
        ABSENT if record.tgs is None else f"{record.tgs:,.1f}",
    ]


def _peak(record: RequestRecord) -> str:
    return ABSENT if record.memory_peak_bytes is None else size(record.memory_peak_bytes)


def _marks(record: RequestRecord) -> Text:
    marks = []
    if record.error is not None:
        marks.append(Text(clean(record.error), style="red"))
    if record.cold:
        marks.append(Text("cold", style="yellow"))
    return Text(" ").join(marks)


def _ended(record: RequestRecord) -> str:
    return dt.datetime.fromtimestamp(_end_unix_s(record)).astimezone().strftime("%H:%M:%S")


def _end_unix_s(record: RequestRecord) -> float:
    return record.start_unix_ns / 1e9 + record.duration_s


def _latest_gaps(records: Sequence[RequestRecord]) -> list[float]:
    """Return the latest gaps, the oldest of them first."""
    backwards = chain.from_iterable(reversed(record.itl_s) for record in reversed(records))
    return list(islice(backwards, SPARK_GAPS))[::-1]

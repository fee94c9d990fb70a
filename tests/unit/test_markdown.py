"""The Markdown report: against a page worked out by hand, and unable to break its tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtrace.analysis.report import build_report
from llmtrace.records import Finding, RequestRecord
from llmtrace.reports import markdown
from llmtrace.sources.recording import Problems
from tests.unit.test_html import request

GOLDEN = Path(__file__).parent / "golden"


def rendered(*records, **options):
    return markdown.render(build_report(records, **options))


def cells(line):
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_golden():
    """Two good requests, a cold and a failed one; every number follows from 250 and 350 ms to the
    first token and gaps of 125 and 250 ms."""
    found = Finding("late_eos", "warning", "Stops late", "3 of 4 requests", "Set eos_token_id.")
    records = [
        request(0.9, cold=True, cold_reasons=("first_request",)),
        request(tpot_s=0.1875, tgs=3 / 0.625, prefill_s=0.2, findings=(found,), start=1),
        request(0.35, tpot_s=0.1875, tgs=3 / 0.725, prefill_s=0.3, start=2),
        request(start=3, error="torch.OutOfMemoryError"),
    ]
    assert rendered(*records) + "\n" == (GOLDEN / "report.md").read_text()


def test_headline_by_hand():
    """TTFT 250 and 350 ms: mean 300, p95 345; four gaps: mean 187.5."""
    lines = rendered(request(), request(0.35, start=1)).splitlines()
    ttft = next(line for line in lines if line.startswith("| **TTFT**"))
    assert cells(ttft)[1:] == ["2", "300.00", "50.00", "300.00", "345.00", "349.00", "350.00"]
    itl = next(line for line in lines if line.startswith("| **ITL**"))
    assert cells(itl)[1:3] == ["4", "187.50"]


def test_every_table_is_whole():
    """Every line of a table has as many cells as its head, whatever the texts hold."""
    found = Finding("a`b", "info", "x | y", "1\n| 2 | *3*", "<b>do</b> [it](http://x)")
    report = rendered(request(model="m|1 `x` <script>", findings=(found,)))
    columns = None
    for line in report.splitlines():
        if not line.startswith("|"):
            columns = None
            continue
        columns = columns or len(cells(line))
        assert len(cells(line)) == columns, line
    assert "<script>" not in report
    assert "<b>" not in report
    assert "[it](" not in report


def test_what_readers_waited_for():
    """Prefill 200 ms and 50 ms until it was text: four fifths and one."""
    record = request(prefill_s=0.2, hold_back_s=0.05, first_visible_text_s=0.25)
    lines = rendered(record).splitlines()
    at = lines.index("<details><summary>First visible text, ms</summary>")
    assert [
        (cells(line)[0], cells(line)[2], cells(line)[-1]) for line in lines[at + 4 : at + 7]
    ] == [
        ("prefill", "200.00", "80.0%"),
        ("hold back", "50.00", "20.0%"),
        ("all", "250.00", "100.0%"),
    ]


def test_conditions_stand_under_tgs():
    """All four, whatever is known."""
    report = rendered(request())
    for name in ("prompt tokens: ", "sampling: ", "concurrency: ", "GPU memory: "):
        assert f"\n- {name}" in report


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (request(cold=True), "EVERY REQUEST WAS COLD"),
        (request(error="E", steps=[]), "No request succeeded"),
    ],
)
def test_what_the_numbers_are_of(record: RequestRecord, said):
    """Nothing but cold requests, and nothing but failed ones."""
    assert said in rendered(record)


def test_partial_input_is_marked():
    """At the top, with the first places."""
    problems = Problems()
    problems.add("t.jsonl:3", "not *JSON*")
    report = markdown.render(build_report([request()]), problems)
    assert "> **PARTIAL: 1 problem in the input; this is of what could be read.**" in report
    assert "> - t.jsonl:3: not \\*JSON\\*" in report

"""A check as JUnit XML, which continuous integration shows: a test case for each rule."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from llmtrace.analysis.verdicts import Check, Verdict
from llmtrace.reports.check_text import amounts
from llmtrace.reports.wording import clean


def render(check: Check) -> str:
    """Return *check* as an XML document; what is undecided is a skipped test case."""
    outcomes = [verdict.outcome for verdict in check.verdicts]
    suite = ET.Element(
        "testsuite",
        name=clean(f"llmtrace check {check.policy}"),
        tests=str(len(outcomes)),
        failures=str(outcomes.count("FAIL")),
        errors="0",
        skipped=str(outcomes.count("UNDECIDED")),
        time="0",
    )
    for verdict in check.verdicts:
        case = ET.SubElement(
            suite,
            "testcase",
            classname=clean(f"llmtrace.{check.policy}"),
            name=clean(verdict.rule),
            time="0",
        )
        if verdict.outcome == "FAIL":
            ET.SubElement(case, "failure", message=_said(verdict), type="limit")
        elif verdict.outcome == "UNDECIDED":
            ET.SubElement(case, "skipped", message=_said(verdict))
        else:
            ET.SubElement(case, "system-out").text = _said(verdict)
    ET.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suite, encoding="unicode")


def _said(verdict: Verdict) -> str:
    value, limit = amounts(verdict)
    said = f"{verdict.outcome}: {value}, limit {limit}, {verdict.samples} samples"
    return clean(f"{said}; {verdict.note}" if verdict.note else said)

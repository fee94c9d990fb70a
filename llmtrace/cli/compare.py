"""``llmtrace compare``: two recordings, before and after a change."""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

from llmtrace.cli.extras import require
from llmtrace.cli.reading import FILE_HELP, complain, read_files
from llmtrace.cli.writing import write

CODES = {"PASS": 0, "FAIL": 1, "UNDECIDED": 3}


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "compare",
        help="compare two recordings, before and after a change",
        description="Compare two recordings, before and after a change: TTFT, ITL, tokens per "
        "second and peak memory, with a confidence interval of each change, and what else differs "
        "between them.",
        epilog="Exit codes: 0 compared (with --fail-on-regression: nothing has become worse by so "
        "much), 1 something has, 2 unreadable input, 3 undecided: too few requests to tell.",
    )
    parser.add_argument("before", metavar="A", help=FILE_HELP)
    parser.add_argument("after", metavar="B", help="the same, after the change")
    parser.add_argument(
        "--fail-on-regression",
        type=_percent,
        metavar="PCT",
        help="exit with 1 if a figure has become worse by PCT percent or more, and by more than "
        "chance",
    )
    parser.add_argument(
        "--include-cold", action="store_true", help="do not leave cold requests out of the numbers"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the comparison; return the exit code."""
    require("numpy", "orjson", "rich")
    from llmtrace.analysis.comparison import compare
    from llmtrace.analysis.differences import differences
    from llmtrace.reports import compare_json, compare_text
    from llmtrace.reports.summary import fit

    before, after = read_files([arguments.before]), read_files([arguments.after])
    found = compare(before.records, after.records, include_cold=arguments.include_cold)
    changed = differences(found.before, found.after, before.resources, after.resources)
    verdict = found.verdict(arguments.fail_on_regression)
    for recording in (before, after):
        complain("compare", recording)
    if arguments.json:
        said = compare_json.render(found, changed, verdict)
    else:
        width, color = fit(sys.stdout)
        said = compare_text.render(found, changed, width=width, color=color)
    write("compare", said + "\n", None, ())
    return CODES[verdict]


def _percent(text: str) -> float:
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of percent")
    return value

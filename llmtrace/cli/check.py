"""``llmtrace check``: recorded traces held against a policy."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmtrace.cli.extras import require
from llmtrace.cli.reading import FILE_HELP, complain, read_files
from llmtrace.cli.writing import write
from llmtrace.errors import PolicyError

if TYPE_CHECKING:
    from llmtrace.analysis.policy import Policy
    from llmtrace.analysis.verdicts import Outcome

CODES: dict[Outcome, int] = {"PASS": 0, "FAIL": 1, "UNDECIDED": 3}


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "check",
        help="hold recorded traces against a policy",
        description="Hold recorded traces against a policy: limits of TTFT by prompt length, ITL, "
        "TPOT, tokens per second, and goodput. Each rule passes, fails, or is undecided where "
        "there are too few samples.",
        epilog="Exit codes: 0 every rule passes, 1 a rule fails, 2 unreadable input or policy, "
        "3 none fails, and at least one is undecided.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help=FILE_HELP)
    parser.add_argument(
        "--policy",
        required=True,
        metavar="FILE.toml|NAME",
        help="a TOML file (docs/commands.md), or one of default, mlperf-llama2-70b-server, "
        "mlperf-llama2-70b-interactive, fastgen",
    )
    parser.add_argument(
        "--include-cold", action="store_true", help="do not leave cold requests out of the numbers"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--junit", metavar="OUT", help="also write the verdicts here as JUnit XML")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the verdicts; return the exit code."""
    require("numpy", "orjson", "rich")
    from llmtrace.analysis.report import build_report, counted_requests
    from llmtrace.analysis.verdicts import check
    from llmtrace.reports import check_json, check_text, junit
    from llmtrace.reports.summary import fit

    policy = _policy(arguments.policy)
    recording = read_files(arguments.files)
    records = recording.records
    counted = counted_requests(records, include_cold=arguments.include_cold)
    report = build_report(records, include_cold=arguments.include_cold)
    found = check(policy, counted, [r for r in records if r.error is not None], report)
    complain("check", recording)
    if arguments.junit is not None:
        write("check", junit.render(found) + "\n", arguments.junit, recording.files)
    if arguments.json:
        said = check_json.render(found, recording)
    else:
        width, color = fit(sys.stdout)
        said = check_text.render(found, width=width, color=color, problems=recording.problems.count)
    write("check", said + "\n", None, ())
    return CODES[found.outcome]


def _policy(name: str) -> Policy:
    """Return the policy of that name, or in that file.

    Raises:
        PolicyError: There is none, or it is not one.
    """
    from llmtrace.analysis.policy_toml import PRESETS, parse, preset

    if name in PRESETS:
        return preset(name)
    try:
        text = Path(name).read_text(encoding="utf-8")
    except FileNotFoundError:
        presets = ", ".join(PRESETS)
        raise PolicyError(f"{name}: no such file, and no preset: {presets}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "is not text in UTF-8"
        raise PolicyError(f"{name}: {reason}") from None
    return parse(text, name)

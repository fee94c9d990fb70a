"""``llmtrace config``: every setting, its value and where it came from."""

from __future__ import annotations

import argparse
import json
from typing import Any

from llmtrace.config import resolve


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "config",
        help="print every setting with its source",
        description="Print every setting with its value and source. "
        "Order: argument, then variable, then default.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the settings."""
    settings = resolve()
    if arguments.json:
        rows = {
            r.setting.field: {
                "value": r.value,
                "source": r.source,
                "variable": r.setting.variable,
                "meaning": r.setting.meaning,
            }
            for r in settings
        }
        print(json.dumps(rows, indent=2))
        return 0
    for r in settings:
        print(f"{r.setting.field} = {r.value}  ({r.source})")
        print(f"    {r.setting.variable}: {r.setting.meaning}")
    return 0

"""``llmtrace bench``: the measuring tools."""

from __future__ import annotations

from typing import Any

from llmtrace.cli.bench import compare_settings, itl, kv, tgs, ttft

TOOLS = (ttft, itl, tgs, kv, compare_settings)


def add_parser(commands: Any) -> None:
    """Add the command and its tools."""
    parser = commands.add_parser(
        "bench",
        help="measure a model: TTFT, ITL, TGS, KV cache",
        description="Measure a model through llmtrace itself: every run leaves a trace file for "
        "`llmtrace report` beside its JSON, CSV and PNG.",
    )
    tools = parser.add_subparsers(metavar="TOOL", dest="tool", required=True)
    for tool in TOOLS:
        tool.add_parser(tools)

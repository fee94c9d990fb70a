"""The ``llmtrace`` command.

Exit codes everywhere: 0 good; 1 the answer is "no"; 2 bad usage or unreadable input, with one
line that says what and where; 3 undecided.
"""

from __future__ import annotations

import argparse
import sys

from llmtrace.cli import bench, check, compare, config, demo, export, peaks, report, run, watch
from llmtrace.cli.writing import give_up_output
from llmtrace.errors import LlmtraceError
from llmtrace.version import __version__

COMMANDS = (demo, run, report, watch, compare, check, export, bench, peaks, config)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="llmtrace",
        description="Traces of Hugging Face transformers' generate(): TTFT, inter-token latency "
        "and tokens per second, measured on the device, without code changes.",
        epilog="Exit codes: 0 good, 1 the answer is no, 2 bad usage or unreadable input, "
        "3 undecided.",
    )
    top.add_argument("--version", action="version", version=f"llmtrace {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", dest="command", required=True)
    for command in COMMANDS:
        command.add_parser(commands)
    return top


def main(argv: list[str] | None = None) -> int:
    """Run the command line *argv* and return its exit code."""
    arguments = parser().parse_args(argv)
    if sys.stdout is None:
        print(f"llmtrace {arguments.command}: standard output is closed", file=sys.stderr)
        return 2
    try:
        code = int(arguments.run(arguments))
        sys.stdout.flush()
    except LlmtraceError as error:
        print(f"llmtrace {arguments.command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        give_up_output()
        return 0
    except OSError as error:
        print(f"llmtrace {arguments.command}: {error}", file=sys.stderr)
        give_up_output()
        return 2
    except KeyboardInterrupt:
        return 130
    return code

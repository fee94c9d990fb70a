"""``llmtrace run``: a program traced with no line of it changed."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from llmtrace import config
from llmtrace.auto.start import SUMMARY_PROCESS
from llmtrace.errors import ConfigError
from llmtrace.telemetry.destination import check_environment


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "run",
        help="trace a program with no line of it changed",
        description="Run a Python program traced, and print a summary when it ends. Traces go to "
        "the program's own OpenTelemetry providers, else to the exporters that OTEL_* variables "
        "name, else to a local file. The exit code is the program's.",
        usage="llmtrace run [options] [--] (app.py | -m module) [args ...]",
    )
    parser.add_argument("--dir", help="folder of the local trace file")
    parser.add_argument("--service", help="service name; also part of the file's name")
    parser.add_argument(
        "--steps", choices=("spans", "none"), help="a span per step, or arrays only"
    )
    parser.add_argument("--no-summary", action="store_true", help="print nothing at the end")
    parser.add_argument("-m", dest="module", action="store_true", help="run a module")
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Become the program, with tracing turned on as Python starts."""
    program: list[str] = arguments.program
    if program[:1] == ["--"]:
        program = program[1:]
    if not program:
        raise ConfigError("no program given; for example: llmtrace run app.py")
    if not arguments.module and not Path(program[0]).exists():
        raise ConfigError(f"{program[0]}: no such file")
    environ = environment(arguments)
    config.load(environ=environ)
    check_environment(environ)
    command = [sys.executable, *(["-m"] if arguments.module else []), *program]
    sys.stdout.flush()
    os.execve(sys.executable, command, environ)  # noqa: S606 - the user's own program


def environment(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the environment of the traced program."""
    environ = dict(os.environ)
    folder = str(Path(__file__).parent.parent / "auto" / "site")
    before = environ.get("PYTHONPATH")
    environ["PYTHONPATH"] = folder + (os.pathsep + before if before else "")
    # The process stays the same one through execve, so its id is known.
    environ.pop(SUMMARY_PROCESS, None)
    if not arguments.no_summary:
        environ[SUMMARY_PROCESS] = str(os.getpid())
    given = {
        "LLMTRACE_DIR": arguments.dir,
        "OTEL_SERVICE_NAME": arguments.service,
        "LLMTRACE_STEPS": arguments.steps,
    }
    return environ | {variable: value for variable, value in given.items() if value is not None}

"""``llmtrace watch``: a running program's traces, as they are written."""

from __future__ import annotations

import argparse
import io
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from llmtrace.cli.extras import require
from llmtrace.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from llmtrace.watch.follow import Follower
    from llmtrace.watch.frame import Frame
    from llmtrace.watch.window import Window

LEAST_REFRESH_S = 0.1
PLAIN_WIDTH = 100
PLAIN_HEIGHT = 40


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "watch",
        help="follow a running program's traces in the terminal",
        description="Show the latest requests of a trace file that is being written: TTFT and "
        "inter-token latency, tokens per second with its conditions, findings. The file may come "
        "later, be cut or be replaced. Where the output is no terminal, a line for each request. "
        "Ctrl-C ends it.",
    )
    parser.add_argument("path", metavar="FILE", help="a trace file, or a folder of such files")
    parser.add_argument("--once", action="store_true", help="print one frame and end")
    parser.add_argument(
        "--json", action="store_true", help="with --once: the report of the latest requests as JSON"
    )
    parser.add_argument(
        "--refresh",
        type=_refresh,
        default=1.0,
        metavar="SECONDS",
        help="look for new requests so often; default: %(default)g, at least 0.1",
    )
    parser.set_defaults(run=run)


def _refresh(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not LEAST_REFRESH_S <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds, 0.1 or more")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Follow the file until Ctrl-C; return the exit code."""
    require("numpy", "orjson", "rich")
    if arguments.json and not arguments.once:
        raise ConfigError("--json is for one frame: add --once")
    from llmtrace.watch.follow import Follower
    from llmtrace.watch.window import Window

    if isinstance(sys.stdout, io.TextIOWrapper):
        # What the terminal has no letters for becomes a question mark.
        sys.stdout.reconfigure(errors="replace")
    follower, window = Follower(arguments.path), Window()
    # A terminal must be given back as it was, also when the program is asked to end.
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        if arguments.once:
            return _once(arguments, follower, window)
        if sys.stdout.isatty():
            _show(arguments, follower, window)
        else:
            _print_lines(arguments, follower, window)
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        follower.close()
    return 0


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _once(arguments: argparse.Namespace, follower: Follower, window: Window) -> int:
    if not follower.exists:
        raise SourceError(f"{arguments.path}: no such file")
    _poll(follower, window)
    if arguments.json:
        from llmtrace.reports.summary import json_text

        print(json_text(list(window.records)))
        return 0
    from rich.console import Console

    terminal = sys.stdout.isatty()
    console = Console(
        width=None if terminal else PLAIN_WIDTH, highlight=False, markup=False, emoji=False
    )
    height = console.height if terminal else PLAIN_HEIGHT
    frame = _frame(window)
    console.print(
        frame.render(_where(arguments.path, follower), time.time(), console.width, height)
    )
    return 0


def _show(arguments: argparse.Namespace, follower: Follower, window: Window) -> None:
    """Fill the terminal's screen until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False, markup=False, emoji=False)
    frame = _frame(window)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            _poll(follower, window)
            where = _where(arguments.path, follower)
            live.update(
                frame.render(where, time.time(), console.width, console.height), refresh=True
            )
            time.sleep(arguments.refresh)


def _print_lines(arguments: argparse.Namespace, follower: Follower, window: Window) -> None:
    """Print a line for each request until Ctrl-C."""
    from llmtrace.watch.frame import request_line

    while True:
        for line in follower.lines():
            for record in window.take(line):
                print(request_line(record))
        sys.stdout.flush()
        time.sleep(arguments.refresh)


def _poll(follower: Follower, window: Window) -> None:
    for line in follower.lines():
        window.take(line)


def _frame(window: Window) -> Frame:
    from llmtrace.watch.frame import Frame

    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower()
    return Frame(window, ascii_only=not encoding.startswith("utf"))


def _where(path: str, follower: Follower) -> str:
    if not follower.exists:
        return f"{path}: not there yet"
    left_out = follower.left_out_bytes
    return f"{path}, without its first {left_out >> 20:,} MiB" if left_out else path

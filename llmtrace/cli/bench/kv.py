"""``llmtrace bench kv``."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from llmtrace.cli.bench import options, running

if TYPE_CHECKING:
    from llmtrace.bench.kv.findings import KvResult
    from llmtrace.bench.kv.steps import Step, Watched

BAD, FAILED, UNDECIDED = 1, 2, 3
ROWS_BESIDE = 8
"""Rows of a terminal that the live table needs beside its layers'."""


def add_parser(tools: Any) -> None:
    """Add the tool."""
    parser = options.tool_parser(
        tools,
        "kv",
        "the KV cache: each layer's size, anomalies, leaks",
        "Each layer's KV cache, live while a prompt is generated, against what is due; then a "
        "leak test over repeated requests. Exit code 1: an anomaly or a leak; 3: too few requests "
        "to tell.",
    )
    options.add_prompts(parser, default="64")
    options.add_generation(parser, new_tokens=64)
    group = parser.add_argument_group("run")
    group.add_argument(
        "--requests", type=options.count, default=50, metavar="N",
        help="of the leak test; 0: none (default: 50)",
    )  # fmt: skip
    group.add_argument(
        "--stop-after", type=options.positive, metavar="N",
        help="end each answer after N tokens, as one that ends before --max-new-tokens would",
    )  # fmt: skip
    group.add_argument(
        "--prepare", metavar="FILE.py:FUNCTION",
        help="an app's function that is called with the model once it is loaded: what it wraps "
        "or patches is examined with it",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, write, print."""
    running.need()
    from llmtrace.bench import environment, result
    from llmtrace.bench.charts import kv as chart
    from llmtrace.bench.kv import findings, output, preparing
    from llmtrace.bench.kv import running as requests
    from llmtrace.bench.texts import kv as text
    from llmtrace.bench.tracing import traced
    from llmtrace.errors import ConfigError

    plan = options.generation(arguments)
    if (arguments.stop_after or 0) > plan.max_new_tokens:
        raise ConfigError("--stop-after is more than --max-new-tokens")
    prepare = preparing.function(arguments.prepare) if arguments.prepare else None
    folder, subject, prompts = running.set_up(arguments, findings.TOOL, plan)
    if prepare is not None:
        prepare(subject.model)
    about = environment.environment()
    folder.clear()
    seen = requests.Run()
    run_of = (subject, prompts, plan, arguments.stop_after)
    with traced(folder.path) as trace:
        requests.warm_up(*run_of, trace)
        with live_table() as show:
            requests.watch_longest(seen, *run_of, show)
        if arguments.requests and not seen.interrupted:
            with running.progress_bar() as progress:
                requests.leak_test(seen, *run_of, requests=arguments.requests, progress=progress)
    found = findings.evaluate(seen)
    header = result.header(findings.TOOL, subject, plan, about)
    made = output.as_object(found, header)
    folder.write_json(made)
    folder.write_csv(output.rows(found), output.COLUMNS)
    folder.write_figure(chart.draw(found, result.subtitle(header)))
    if found.leaks is not None:
        folder.write_figure(chart.draw_leaks(found, found.leaks, result.subtitle(header)), "leaks")
    running.print_result(arguments, made, partial(text.render, found, header))
    running.say_where(folder.path)
    return exit_code(found)


def exit_code(found: KvResult) -> int:
    """Return what the command ends with, saying what failed."""
    if found.failure:
        print(f"llmtrace bench: {found.failure}", file=sys.stderr)
        return FAILED
    if found.interrupted:
        return running.INTERRUPTED
    if found.bad:
        return BAD
    return UNDECIDED if found.undecided else 0


@contextlib.contextmanager
def live_table() -> Iterator[Callable[[Watched, Step], None]]:
    """Lend what shows the table after each step on a terminal's standard error; else nothing."""
    from rich.console import Console
    from rich.live import Live

    from llmtrace.bench.texts.kv import live

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _watched, _step: None
        return
    most_rows = console.height - ROWS_BESIDE
    with Live(console=console, auto_refresh=False, transient=True) as shown:

        def show(watched: Watched, step: Step) -> None:
            shown.update(live(watched, step, most_rows), refresh=True)

        yield show

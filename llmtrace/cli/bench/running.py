"""What every tool does around its measurement: load, show progress, say where things lie."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmtrace.cli.extras import require

if TYPE_CHECKING:
    from llmtrace.bench.models import Subject
    from llmtrace.bench.outputs import OutputFolder
    from llmtrace.bench.prompts import Prompts
    from llmtrace.bench.settings import Generation
    from llmtrace.bench.trials import Progress, Trials

INTERRUPTED = 130


def need() -> None:
    """Check that what the tools are made of is installed.

    Raises:
        MissingExtraError: It is not.
    """
    require("numpy", "rich", "torch", "transformers", "psutil", "matplotlib")


def loaded(arguments: argparse.Namespace) -> Subject:
    """Return the model that the command line asks for, saying so meanwhile."""
    from rich.console import Console

    from llmtrace.bench.models import load
    from llmtrace.cli.bench.options import model_choice

    os.environ.setdefault("HF_HUB_OFFLINE", "1" if _is_local(arguments) else "0")
    choice = model_choice(arguments)
    named = choice.random_weights or choice.model
    with (
        Console(stderr=True).status(f"Loading {named} ..."),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        return load(choice)


def _is_local(arguments: argparse.Namespace) -> bool:
    named = arguments.model
    return named is None or named == "demo" or Path(named).exists()


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress]:
    """Lend a progress bar on standard error; a pipe gets none."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    with Progress(
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task("")

        def show(what: str, done: int, of: int) -> None:
            bar.update(task, description=what, completed=done, total=of)

        yield show


def set_up(
    arguments: argparse.Namespace, tool: str, plan: Generation
) -> tuple[OutputFolder, Subject, Prompts]:
    """Return the folder of the results, the model, and its prompts.

    Raises:
        LlmtraceError: One of them cannot be had, or *plan* cannot work with them.
    """
    from llmtrace.bench import generation
    from llmtrace.bench.outputs import OutputFolder
    from llmtrace.bench.prompts import Prompts
    from llmtrace.cli.bench.options import prompt_choice

    folder = OutputFolder(arguments.out, tool, overwrite=arguments.overwrite)
    subject = loaded(arguments)
    prompts = Prompts(subject, prompt_choice(arguments), plan.seed)
    generation.check(subject, plan, max(prompts.lengths), force=arguments.force)
    generation.prepare(subject, plan)
    return folder, subject, prompts


def print_result(
    arguments: argparse.Namespace, made: Mapping[str, Any], render: Callable[..., str]
) -> None:
    """Print the JSON if that is asked for; else what *render* says, fit for this terminal."""
    from llmtrace.bench.outputs import to_json
    from llmtrace.reports.summary import fit

    if arguments.json:
        print(to_json(made))
    else:
        width, color = fit(sys.stdout)
        print(render(width=width, color=color))


def ended(trials: Trials, folder: Path) -> int:
    """Say where the results lie and what went wrong; return the exit code."""
    say_where(folder)
    if trials.failure:
        print(f"llmtrace bench: {trials.failure}", file=sys.stderr)
        return 2
    return INTERRUPTED if trials.interrupted else 0


def say_where(folder: Path) -> None:
    """Name the files that were written, and what to do with the trace."""
    for file in sorted(folder.iterdir()):
        print(f"  {file}", file=sys.stderr)
    print(f"llmtrace report {folder / 'trace.jsonl'}", file=sys.stderr)

"""``llmtrace bench compare-settings``."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmtrace.cli.bench import options, running

if TYPE_CHECKING:
    from llmtrace.bench.compare_settings.levers import Lever, Unavailable
    from llmtrace.bench.compare_settings.pairs import Bench
    from llmtrace.bench.compare_settings.sides import Tried
    from llmtrace.bench.trials import Progress

ALL = "all"
IN_IT = "Ctrl-C came before both sides had a request"


def add_parser(tools: Any) -> None:
    """Add the tool."""
    parser = options.tool_parser(
        tools,
        "compare-settings",
        "what settings that are said to matter do to this model",
        "What settings that are said to matter do to this model, here: requests before and after "
        "each measure, turn about, and the change of TTFT, ITL, tokens per second and memory, with "
        "its interval. What cannot be tried here is listed with the reason. The exit code is 0 "
        "however it turns out.",
    )
    options.add_prompts(parser, default="128")
    options.add_generation(parser, new_tokens=32)
    run_options = parser.add_argument_group("run")
    run_options.add_argument(
        "--levers", default=ALL, metavar="NAME,NAME,...",
        help="all (default), or some of max-new-tokens, static-cache-size, use-cache, sampling, "
        "static-cache, attention, quantization, compile",
    )  # fmt: skip
    run_options.add_argument(
        "--trials", type=options.positive, default=20, metavar="N",
        help="requests on either side of each lever (default: 20)",
    )  # fmt: skip
    run_options.add_argument(
        "--warmup", type=options.count, default=3, metavar="N",
        help="requests before, on either side (default: 3)",
    )  # fmt: skip
    run_options.add_argument(
        "--at-concurrency", type=options.positive, metavar="K",
        help="also as many batches of K rows: TGS at K concurrent",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, write, print."""
    running.need()
    from llmtrace.bench import cautions, environment, generation, outputs, result
    from llmtrace.bench.charts import compare_settings as chart
    from llmtrace.bench.compare_settings import evaluation, levers, output, pairs, sides
    from llmtrace.bench.prompts import Prompts
    from llmtrace.bench.texts import compare_settings as text
    from llmtrace.bench.tracing import traced

    plan, prompts = options.generation(arguments), options.prompt_choice(arguments)
    names = _names(arguments.levers, tuple(levers.LEVERS))
    folder = outputs.OutputFolder(arguments.out, sides.TOOL, overwrite=arguments.overwrite)
    subject = running.loaded(arguments)
    longest = max(Prompts(subject, prompts, plan.seed).lengths)
    generation.check(subject, plan, longest, force=arguments.force)
    base = levers.Variant(subject.choice, plan, prompts)
    found = levers.levers(names, subject, base)
    about = environment.environment()
    folder.clear()
    header = result.header(sides.TOOL, subject, plan, about)
    how = sides.PairPlan(
        arguments.trials, arguments.warmup, arguments.at_concurrency, arguments.force
    )
    other_work = cautions.OtherWork()
    with traced(folder.path) as trace, running.progress_bar() as progress:
        bench = pairs.Bench(subject, how, trace, progress)
        del subject  # a model that does not fit beside it needs its place
        tried, unavailable, interrupted = _try(bench, found, progress)
    settings = evaluation.evaluate(
        tried, unavailable, how.rows, cautions.busy(other_work.share(), about["gpus"]),
        interrupted=interrupted,
    )  # fmt: skip
    made = output.as_object(settings, header)
    folder.write_json(made)
    folder.write_csv(output.rows(settings), output.COLUMNS)
    picture = chart.draw(settings, result.subtitle(header))
    if picture is not None:
        folder.write_figure(picture)
    running.print_result(arguments, made, partial(text.render, settings, header))
    _say_where(folder.path)
    return running.INTERRUPTED if interrupted else 0


def _names(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names asked for, each once, in the order in which they are tried."""
    asked = [part.strip() for part in text.split(",")]
    unknown = tuple(name for name in asked if name not in {ALL, *known})
    return (
        known if ALL in asked and not unknown else unknown + tuple(n for n in known if n in asked)
    )


def _try(
    bench: Bench, found: list[Lever | Unavailable], progress: Progress
) -> tuple[list[Tried], list[Unavailable], bool]:
    """Try what can be tried; return it, what could not be, and whether Ctrl-C ended it."""
    from llmtrace.bench.compare_settings.levers import Unavailable
    from llmtrace.errors import LlmtraceError

    tried: list[Tried] = []
    unavailable: list[Unavailable] = []
    interrupted = False
    for number, lever in enumerate(found):
        progress(lever.name, number, len(found))
        if isinstance(lever, Unavailable):
            unavailable.append(lever)
        elif interrupted:
            unavailable.append(Unavailable(lever.name, "Ctrl-C came before"))
        else:
            try:
                found_out = bench.tried(lever)
                interrupted = found_out.interrupted
                if interrupted and not found_out.has_both:
                    unavailable.append(Unavailable(lever.name, IN_IT))
                else:
                    tried.append(found_out)
            except LlmtraceError as error:
                unavailable.append(Unavailable(lever.name, str(error)))
    return tried, unavailable, interrupted


def _say_where(folder: Path) -> None:
    """Name the files that were written, and what to do with the traces."""
    for file in sorted(folder.iterdir()):
        print(f"  {file}", file=sys.stderr)
    print(
        f"llmtrace compare {folder}/compare-settings-LEVER-before.jsonl "
        f"{folder}/compare-settings-LEVER-after.jsonl",
        file=sys.stderr,
    )

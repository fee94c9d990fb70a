"""``llmtrace bench itl``."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from llmtrace.cli.bench import options, running
from llmtrace.errors import ConfigError

UNDECIDED = 3


def add_parser(tools: Any) -> None:
    """Add the tool."""
    parser = options.tool_parser(
        tools,
        "itl",
        "gaps between tokens over their position",
        "Gaps between tokens over their position, on the device's clock and the host's: the "
        "curve, the time that reading weights and cache takes at least, and where and why gaps "
        "get longer.",
    )
    options.add_prompts(parser, default="128")
    options.add_generation(parser, new_tokens=128)
    run_options = parser.add_argument_group("run")
    run_options.add_argument(
        "--trials", type=options.positive, default=20, metavar="N", help="default: 20"
    )
    run_options.add_argument(
        "--warmup", type=options.count, default=3, metavar="N",
        help="requests before, one of each prompt at least; reported apart (default: 3)",
    )  # fmt: skip
    run_options.add_argument(
        "--keep-gc", action="store_true",
        help="leave the garbage collector on, and say which gaps it lengthened",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, write, print."""
    running.need()
    from llmtrace.bench import cautions, environment, result
    from llmtrace.bench.charts import itl as chart
    from llmtrace.bench.floor import floor_of
    from llmtrace.bench.itl import evaluation, output
    from llmtrace.bench.pauses import watched
    from llmtrace.bench.texts import itl as text
    from llmtrace.bench.tracing import traced
    from llmtrace.bench.trials import run_trials

    plan = options.generation(arguments)
    if plan.max_new_tokens == 1:
        raise ConfigError("--max-new-tokens 1: one token has no gap before it; 2 are the least")
    folder, subject, prompts = running.set_up(arguments, evaluation.TOOL, plan)
    about = environment.environment()
    folder.clear()
    other_work = cautions.OtherWork()
    with (
        traced(folder.path) as trace,
        running.progress_bar() as progress,
        watched(compiles=plan.compile) as pauses,
    ):
        trials = run_trials(
            subject, prompts, plan, trials=arguments.trials, warmup=arguments.warmup,
            progress=progress, trace=trace, keep_gc=arguments.keep_gc,
        )  # fmt: skip
    doubts = cautions.busy(other_work.share(), about["gpus"])
    floor = floor_of(subject, plan)
    found = evaluation.evaluate(trials, pauses, floor, doubts, collector_on=arguments.keep_gc)
    header = result.header(evaluation.TOOL, subject, plan, about)
    made = output.as_object(found, header)
    folder.write_json(made)
    folder.write_csv(output.rows(found), output.COLUMNS)
    picture = chart.draw(found, result.subtitle(header))
    if picture is not None:
        folder.write_figure(picture)
    running.print_result(arguments, made, partial(text.render, found, header))
    return running.ended(trials, folder.path) or (UNDECIDED if found.itl_s is None else 0)

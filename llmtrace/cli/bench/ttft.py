"""``llmtrace bench ttft``."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from llmtrace.cli.bench import options, running

UNDECIDED = 3


def add_parser(tools: Any) -> None:
    """Add the tool."""
    parser = options.tool_parser(
        tools,
        "ttft",
        "time to first token over many requests",
        "Time to first token over many requests, one after the other: distribution, parts, and "
        "each length of prompt. Requests go round the prompts in turn.",
    )
    options.add_prompts(parser, default="128,256,512")
    options.add_generation(parser, new_tokens=2)
    run_options = parser.add_argument_group("run")
    run_options.add_argument(
        "--trials", type=options.positive, default=100, metavar="N", help="default: 100"
    )
    run_options.add_argument(
        "--warmup", type=options.count, default=3, metavar="N",
        help="requests before, one of each prompt at least; reported apart (default: 3)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, write, print."""
    running.need()
    from llmtrace.bench import cautions, environment, result, ttft
    from llmtrace.bench.charts import ttft as chart
    from llmtrace.bench.texts import ttft as text
    from llmtrace.bench.tracing import traced
    from llmtrace.bench.trials import run_trials

    plan = options.generation(arguments)
    folder, subject, prompts = running.set_up(arguments, ttft.TOOL, plan)
    about = environment.environment()
    folder.clear()
    other_work = cautions.OtherWork()
    with traced(folder.path) as trace, running.progress_bar() as progress:
        trials = run_trials(
            subject, prompts, plan,
            trials=arguments.trials, warmup=arguments.warmup, progress=progress, trace=trace,
        )  # fmt: skip
    found = ttft.evaluate(trials, cautions.busy(other_work.share(), about["gpus"]))
    header = result.header(ttft.TOOL, subject, plan, about)
    made = ttft.as_object(found, header)
    folder.write_json(made)
    folder.write_csv(ttft.rows(found), ttft.COLUMNS)
    picture = chart.draw(found, result.subtitle(header))
    if picture is not None:
        folder.write_figure(picture)
    running.print_result(arguments, made, partial(text.render, found, header))
    return running.ended(trials, folder.path) or (UNDECIDED if found.ttft_s is None else 0)

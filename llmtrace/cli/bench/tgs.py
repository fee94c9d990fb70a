"""``llmtrace bench tgs``."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from llmtrace.cli.bench import options, running
from llmtrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llmtrace.bench.tgs.evaluation import LevelResult
    from llmtrace.bench.tgs.load import Level
    from llmtrace.bench.tgs.running import Measured

UNDECIDED = 3
EACH = 4
"""Requests of a level for each one at a time, unless said otherwise."""
FEWEST = 8

PRESETS: dict[str, dict[str, Any]] = {
    "peak": {"prompt_tokens": (32,), "concurrency": (1,)},
    "steady": {
        "prompt_tokens": (256,),
        "concurrency": (1,),
        "sample": True,
        "temperature": 0.7,
        "top_p": 0.9,
    },
    "concurrent": {"prompt_tokens": (128, 256, 512), "concurrency": (1, 4)},
}


def add_parser(tools: Any) -> None:
    """Add the tool."""
    parser = options.tool_parser(
        tools,
        "tgs",
        "tokens per second with several requests at a time",
        "Tokens per second, TTFT and ITL with 1, 2, 4, 8 requests at a time: closed loop, or open "
        "loop with --rate. What the machine did meanwhile, and what is lost against a linear gain.",
    )
    options.add_prompts(parser, default="128")
    options.add_generation(parser, new_tokens=64)
    load = parser.add_argument_group("load")
    load.add_argument(
        "--mechanism", choices=("threads", "batch", "continuous"), default="threads",
        help="how requests run at the same time (default: threads)",
    )  # fmt: skip
    load.add_argument(
        "--concurrency", type=options.lengths, metavar="N,N,...",
        help="requests at a time (default: 1,2,4,8; with --rate 8, at most)",
    )  # fmt: skip
    load.add_argument(
        "--rate", type=rates, metavar="R,R,...",
        help="open loop: requests that arrive per second, a Poisson process",
    )  # fmt: skip
    number = load.add_mutually_exclusive_group()
    number.add_argument(
        "--requests", type=options.positive, metavar="N",
        help=f"of each level (default: {EACH} for each one at a time, {FEWEST} at least)",
    )  # fmt: skip
    number.add_argument(
        "--duration", type=options.number, metavar="S",
        help="with --rate: those that arrive in so many seconds; all of them are run",
    )  # fmt: skip
    load.add_argument(
        "--preset", choices=tuple(PRESETS),
        help="peak: a short prompt, greedy; steady: 256 tokens, temperature 0.7, top-p 0.9; "
        "concurrent: 4 at a time, prompts of 128, 256, 512. Options given beside it count",
    )  # fmt: skip
    parser.set_defaults(run=run)


def rates(text: str) -> tuple[float, ...]:
    """Parse rates with commas between them."""
    found = tuple(options.number(part.strip()) for part in text.split(","))
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r}: a rate is above 0")
    return found


def _with_preset(arguments: argparse.Namespace) -> None:
    """Fill in what a preset says and the command line does not."""
    for name, value in PRESETS.get(arguments.preset, {}).items():
        if name == "prompt_tokens" and arguments.prompt_file:
            continue
        if not getattr(arguments, name):
            setattr(arguments, name, value)


def _levels(arguments: argparse.Namespace) -> list[Level]:
    from llmtrace.bench.tgs.load import Level, arrive_within

    if arguments.rate is None:
        if arguments.duration is not None:
            raise ConfigError("--duration needs --rate: a closed loop takes --requests")
        each = arguments.concurrency or (1, 2, 4, 8)
        return [
            Level(n, arguments.mechanism, arguments.requests or max(FEWEST, EACH * n))
            for n in dict.fromkeys(each)
        ]
    most = arguments.concurrency or (8,)
    if len(most) > 1:
        raise ConfigError("--rate takes one --concurrency: how many may run at a time")
    seconds, seed = arguments.duration, arguments.seed
    of_each = {
        rate: arrive_within(rate, seconds, seed)
        if seconds is not None
        else arguments.requests or EACH * most[0]
        for rate in arguments.rate
    }
    return [Level(most[0], arguments.mechanism, n, rate) for rate, n in of_each.items()]


def run(arguments: argparse.Namespace) -> int:
    """Measure, write, print."""
    running.need()
    from llmtrace.bench import cautions, environment, result
    from llmtrace.bench.charts import tgs as chart
    from llmtrace.bench.texts import tgs as text
    from llmtrace.bench.tgs import evaluation, output, resources
    from llmtrace.bench.tgs.mechanisms import mechanism_for
    from llmtrace.bench.tgs.running import run_levels
    from llmtrace.bench.tracing import traced

    _with_preset(arguments)
    plan = options.generation(arguments)
    levels = _levels(arguments)
    folder, subject, prompts = running.set_up(arguments, output.TOOL, plan)
    mechanism = mechanism_for(arguments.mechanism, subject, plan)
    about = environment.environment()
    folder.clear()
    other_work = cautions.OtherWork()
    with (
        traced(folder.path) as trace,
        resources.Sampling(folder.path, os.getpid(), _gpu(subject.device)) as sampling,
        running.progress_bar() as progress,
    ):
        measured = run_levels(
            mechanism, prompts, levels, seed=plan.seed, progress=progress, trace=trace
        )
    samples = sampling.samples()
    found = evaluation.evaluate(measured, samples)
    records = [record for one in measured for record in one.records]
    correlations = {n: resources.correlation(samples, records, n) for n in resources.use(samples)}
    doubts = cautions.busy(other_work.share(), about["gpus"])
    header = result.header(output.TOOL, subject, plan, about)
    made = output.as_object(found, correlations, doubts, header)
    folder.write_json(made)
    folder.write_csv(output.rows(found, plan), output.COLUMNS)
    subtitle = result.subtitle(header)
    for picture, name in (
        (chart.draw_rates(found, subtitle), None),
        (chart.draw_resources(found, subtitle), "resources"),
    ):
        if picture is not None:
            folder.write_figure(picture, name)
    running.print_result(arguments, made, partial(text.render, found, correlations, doubts, header))
    running.say_where(folder.path)
    return _exit_code(measured, found)


def _gpu(device: Any) -> str | None:
    """Return by what the driver knows the GPU that prompts go to; None: it is none."""
    from llmtrace.bench.driver import driver_name

    return driver_name(device.index or 0) if device.type == "cuda" else None


def _exit_code(measured: list[Measured], found: Sequence[LevelResult]) -> int:
    failures = [one.run.failure for one in measured if one.run.failure]
    if failures:
        print(f"llmtrace bench: {failures[0]}", file=sys.stderr)
        return 2
    if any(one.run.interrupted for one in measured):
        return running.INTERRUPTED
    return 0 if all(level.tgs is not None for level in found) else UNDECIDED

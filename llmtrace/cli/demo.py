"""``llmtrace demo``: a real model, traced, on whatever this machine has."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import time
from typing import Any

from llmtrace import api, config, demo
from llmtrace.cli.extras import require
from llmtrace.errors import ConfigError


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "demo",
        help="trace a small real model on this machine",
        description="Have a small real Llama-architecture model answer some questions, traced, "
        "and print its TTFT, inter-token latency and tokens per second. Needs no network.",
    )
    parser.add_argument(
        "--max-new-tokens", type=_positive, default=96, metavar="N", help="default: 96"
    )
    parser.add_argument("--question", action="append", help="ask this instead; may be repeated")
    parser.add_argument("--dir", help="folder of the trace file")
    parser.add_argument("--json", action="store_true", help="print the report, and only that")
    parser.set_defaults(run=run)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive whole number")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Run the demonstration."""
    require("numpy", "rich")
    from llmtrace.reports.summary import json_text, summary_text, write_page

    # The model lies on this machine: nothing is to be looked up.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("OTEL_SERVICE_NAME", "demo")
    handle = api.instrument(dir=arguments.dir)
    if config.load().disabled:
        raise ConfigError("LLMTRACE_DISABLED is set, so nothing would be traced")
    talk = sys.stderr if arguments.json else sys.stdout
    with contextlib.redirect_stdout(talk):
        model, tokenizer = _load()
        with api.capture() as records:
            with contextlib.redirect_stdout(io.StringIO()):  # the cold request
                demo.answer(model, tokenizer, "Hello!", 4)
            for question in arguments.question or demo.QUESTIONS:
                print(f"\n> {question}")
                demo.answer(model, tokenizer, question, arguments.max_new_tokens)
    handle.flush()
    if arguments.json:
        print(json_text(records))
    else:
        page = write_page(records, handle.path)
        print("\n" + summary_text(records, handle.path, sys.stdout, page))
    return 0


def _load() -> tuple[Any, Any]:
    """Load the model, saying so."""
    from rich.console import Console

    begun = time.perf_counter()
    with (
        Console(stderr=True).status(f"Loading {demo.MODEL_NAME} ..."),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        model, tokenizer = demo.load()
    took = time.perf_counter() - begun
    print(f"{demo.MODEL_NAME}: {type(model).__name__} on {model.device}, loaded in {took:.0f} s")
    return model, tokenizer

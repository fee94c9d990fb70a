"""``llmtrace demo``: a real model, traced, on whatever this machine has."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import time
from typing import Any

from llmtrace import api, demo
from llmtrace.errors import MissingExtraError


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "demo",
        help="trace a small real model on this machine",
        description="Have a small real Llama-architecture model answer some questions, traced, "
        "and print its TTFT, inter-token latency and tokens per second. Needs no network.",
    )
    parser.add_argument("--max-new-tokens", type=_positive, default=96, metavar="N")
    parser.add_argument("--question", action="append", help="ask this instead; may be repeated")
    parser.add_argument("--dir", help="folder of the trace file")
    parser.set_defaults(run=run)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def run(arguments: argparse.Namespace) -> int:
    """Run the demonstration."""
    summary_text = _summary_renderer()
    # The model lies on this machine: nothing is to be looked up.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    handle = api.instrument(dir=arguments.dir)
    print(f"Loading {demo.MODEL_NAME} ...", end=" ", flush=True)
    begun = time.perf_counter()
    with contextlib.redirect_stderr(io.StringIO()):
        model, tokenizer = demo.load()
    took = time.perf_counter() - begun
    print(f"{type(model).__name__} on {model.device}, {took:.0f} s")
    with api.capture() as records:
        with contextlib.redirect_stdout(io.StringIO()):  # the cold request
            demo.answer(model, tokenizer, "Hello!", 4)
        for question in arguments.question or demo.QUESTIONS:
            print(f"\n> {question}")
            demo.answer(model, tokenizer, question, arguments.max_new_tokens)
    handle.flush()
    print()
    print(summary_text(records, handle.path, sys.stdout))
    return 0


def _summary_renderer() -> Any:
    try:
        from llmtrace.reports.summary import summary_text
    except ImportError as error:
        raise MissingExtraError(
            f"the summary needs {error.name}: pip install 'llmtrace[report]'"
        ) from None
    return summary_text

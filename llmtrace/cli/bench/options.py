"""The options that all measuring tools share."""

from __future__ import annotations

import argparse
from typing import Any

from llmtrace.bench.settings import (
    ATTENTIONS,
    CACHES,
    DTYPES,
    QUANTIZATIONS,
    Generation,
    ModelChoice,
    PromptChoice,
)
from llmtrace.errors import ConfigError

MOST_SEED = 2**32 - 1


def positive(text: str) -> int:
    """Parse a whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive whole number")
    return int(text)


def count(text: str) -> int:
    """Parse a whole number, 0 included."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def seed(text: str) -> int:
    """Parse what random numbers begin with; requests count up from it."""
    value = count(text)
    if value > MOST_SEED:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {MOST_SEED}")
    return value


def lengths(text: str) -> tuple[int, ...]:
    """Parse numbers with commas between them."""
    return tuple(positive(part.strip()) for part in text.split(","))


def number(text: str) -> float:
    """Parse a finite number that is not negative."""
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 up")
    return value


def tool_parser(tools: Any, name: str, summary: str, description: str) -> argparse.ArgumentParser:
    """Return a tool's parser, with the options of the model and of the output."""
    parser: argparse.ArgumentParser = tools.add_parser(name, help=summary, description=description)
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model", "--model_path", metavar="PATH",
        help="a folder, a GGUF file, a hub's name, or `demo` for the demonstration model",
    )  # fmt: skip
    model.add_argument("--gguf-file", metavar="NAME", help="a GGUF file inside that folder")
    model.add_argument(
        "--random-weights", metavar="SHAPE",
        help="instead: llama2-7b, llama2-13b, smollm2-135m or a config.json, weights random",
    )  # fmt: skip
    model.add_argument(
        "--quantization", choices=QUANTIZATIONS, default="none", help="default: none"
    )
    model.add_argument("--dtype", choices=DTYPES, help="default: bfloat16 on a GPU, else float32")
    model.add_argument("--device", metavar="DEVICE", help="default: the GPU where there is one")
    model.add_argument("--device-map", metavar="MAP", help="accelerate's, such as auto, balanced")
    model.add_argument("--attn", choices=ATTENTIONS, help="default: what transformers takes")
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="DIR", help="default: a new folder in llmtrace-bench/")
    output.add_argument("--overwrite", action="store_true", help="replace results that lie there")
    output.add_argument("--json", action="store_true", help="print the JSON, and only that")
    return parser


def add_generation(parser: argparse.ArgumentParser, *, new_tokens: int) -> None:
    """Add the options of ``generate()``."""
    group = parser.add_argument_group("generation")
    group.add_argument(
        "--max-new-tokens", type=positive, default=new_tokens, metavar="N",
        help=f"exactly so many are generated, unless --stop-at-eos (default: {new_tokens})",
    )  # fmt: skip
    group.add_argument("--cache", choices=CACHES, help="default: dynamic; static with --compile")
    group.add_argument("--compile", action="store_true", help="a static cache, compiled")
    group.add_argument("--force", action="store_true", help="measure what is known to be a loss")
    group.add_argument("--sample", action="store_true", help="sample (default: greedy)")
    group.add_argument("--temperature", type=number, metavar="T")
    group.add_argument("--top-p", type=number, metavar="P")
    group.add_argument("--top-k", type=count, metavar="K")
    group.add_argument("--seed", type=seed, default=0, metavar="N", help="default: 0")
    group.add_argument("--stop-at-eos", action="store_true", help="stop as an app would")


def add_prompts(parser: argparse.ArgumentParser, *, default: str) -> None:
    """Add where prompts come from."""
    group = parser.add_argument_group("prompts")
    either = group.add_mutually_exclusive_group()
    either.add_argument(
        "--prompt-file", "--prompt_file", metavar="FILE",
        help='texts, one a line, or JSON lines with "prompt"',
    )  # fmt: skip
    either.add_argument(
        "--prompt-tokens", type=lengths, metavar="N,N,...",
        help=f"random ids of these lengths, new ones for each request (default: {default})",
    )  # fmt: skip
    parser.set_defaults(default_lengths=lengths(default))


def model_choice(arguments: argparse.Namespace) -> ModelChoice:
    """Return which model is asked for."""
    return ModelChoice(
        arguments.model,
        arguments.gguf_file,
        arguments.random_weights,
        arguments.quantization,
        arguments.dtype,
        arguments.device,
        arguments.device_map,
        arguments.attn,
    )


def generation(arguments: argparse.Namespace) -> Generation:
    """Return how text is to be generated.

    Raises:
        ConfigError: Sampling is set but not asked for.
    """
    sampling = {arguments.temperature, arguments.top_p, arguments.top_k}
    if sampling != {None} and not arguments.sample:
        raise ConfigError("--temperature, --top-p and --top-k need --sample")
    return Generation(
        max_new_tokens=arguments.max_new_tokens,
        cache=arguments.cache or ("static" if arguments.compile else "dynamic"),
        compile=arguments.compile,
        do_sample=arguments.sample,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        top_k=arguments.top_k,
        seed=arguments.seed,
        stop_at_eos=arguments.stop_at_eos,
    )


def prompt_choice(arguments: argparse.Namespace) -> PromptChoice:
    """Return where prompts come from."""
    if arguments.prompt_file:
        return PromptChoice(file=arguments.prompt_file)
    return PromptChoice(lengths=arguments.prompt_tokens or arguments.default_lengths)

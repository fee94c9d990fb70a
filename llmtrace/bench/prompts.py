"""Prompts: texts of a file, or random ids of exact lengths that no two requests share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmtrace.bench.models import Subject
from llmtrace.bench.settings import PromptChoice
from llmtrace.errors import ConfigError

_KEYS = ("prompt", "text", "input")
FIRST_ORDINARY_ID = 3
"""LLaMA's first ids mean unknown, begin and end."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: a text, which is tokenized inside of the measured time, or ids."""

    tokens: int
    text: str | None = None
    ids: Any = None
    """``[1, tokens]``, on the model's device."""


class Prompts:
    """Prompts in an endless order: round the texts, or round the lengths with ids ever new."""

    def __init__(self, subject: Subject, choice: PromptChoice, seed: int) -> None:
        """Read the file.

        Raises:
            ConfigError: It cannot be read, holds no prompt, or the model has no tokenizer.
        """
        self._subject = subject
        self._seed = seed
        self._lengths = choice.lengths
        self._texts: list[Prompt] = []
        if choice.file is not None:
            if subject.tokenizer is None:
                raise ConfigError(
                    "--prompt-file needs a tokenizer, which random weights, and folders saved "
                    "without one, do not have: use --prompt-tokens"
                )
            self._texts = [_tokenized(subject, text) for text in read_texts(choice.file)]
            if not all(prompt.tokens for prompt in self._texts):
                raise ConfigError(f"--prompt-file {choice.file}: a prompt has no token")

    @property
    def kinds(self) -> int:
        """How many prompts differ in more than their ids."""
        return len(self._texts) or len(self._lengths)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each kind of prompt, in their order."""
        return tuple(p.tokens for p in self._texts) or self._lengths

    def prompt(self, index: int) -> Prompt:
        """Return the prompt of request *index*, the same in every run with the same seed."""
        if self._texts:
            return self._texts[index % len(self._texts)]
        length = self._lengths[index % len(self._lengths)]
        return Prompt(length, ids=random_ids(self._subject, length, seed=self._seed + index))


def random_ids(subject: Subject, length: int, *, rows: int = 1, seed: int) -> Any:
    """Return random ids ``[rows, length]`` on the model's device; leaves torch's state alone."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    lowest = min(FIRST_ORDINARY_ID, subject.vocabulary - 1)
    ids = torch.randint(lowest, subject.vocabulary, (rows, length), generator=generator)
    return ids.to(subject.device)


def _tokenized(subject: Subject, text: str) -> Prompt:
    return Prompt(len(subject.tokenizer(text).input_ids), text=text)  # type: ignore[misc]


def read_texts(file: str) -> list[str]:
    """Return the prompts of a file: JSON lines with ``prompt``, or one prompt a line.

    Raises:
        ConfigError: It cannot be read, or holds no prompt.
    """
    try:
        content = Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8 text"
        raise ConfigError(f"--prompt-file {file}: {reason}") from None
    # Not splitlines(): a form feed, or a line separator inside of a JSON text, ends no line.
    lines = [(n, line) for n, line in enumerate(content.split("\n"), 1) if line.strip()]
    as_json = bool(lines) and lines[0][1].lstrip().startswith("{")
    found = list(_of_json(file, lines)) if as_json else [line for _, line in lines]
    if not found:
        raise ConfigError(f"--prompt-file {file}: holds no prompt")
    return found


def _of_json(file: str, lines: Sequence[tuple[int, str]]) -> Iterator[str]:
    for number, line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            raise ConfigError(f"--prompt-file {file}, line {number}: is no JSON") from None
        texts = [value[k] for k in _KEYS if k in value] if isinstance(value, dict) else []
        if not texts or not isinstance(texts[0], str) or not texts[0]:
            raise ConfigError(
                f"--prompt-file {file}, line {number}: has no text under one of {', '.join(_KEYS)}"
            )
        yield texts[0]

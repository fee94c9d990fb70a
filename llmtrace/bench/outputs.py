"""The folder of a run's results: JSON, CSV, PNG and the trace; nothing is written over silently."""

from __future__ import annotations

import contextlib
import csv
import datetime as dt
import json
import math
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmtrace.bench.tracing import TRACE, WARMUP_TRACE
from llmtrace.errors import ConfigError

DEFAULT_FOLDER = "llmtrace-bench"
_ENDS = (".json", ".csv", ".png", "-*.png", "-*.jsonl")


class OutputFolder:
    """Where one run of one tool writes."""

    def __init__(self, out: str | None, tool: str, *, overwrite: bool = False) -> None:
        """Make the folder.

        Args:
            out: The folder; None: a new one under ``llmtrace-bench/``.
            tool: ``ttft``, ``itl``, ...: the stem of the files' names.
            overwrite: Replace results that lie there.

        Raises:
            ConfigError: Results lie there already, or it cannot be made.
        """
        self.path = Path(out) if out else Path(DEFAULT_FOLDER) / f"{tool}-{_now()}"
        self.tool = tool
        there = self._there()
        if there and not overwrite:
            raise ConfigError(
                f"--out {self.path}: {there[0].name} lies there already; name another folder, or "
                "say --overwrite"
            )
        try:
            made = self._make(new=out is None)
        except OSError as error:
            raise ConfigError(f"--out {self.path}: {error.strerror or error}") from None
        if made:
            # A run that ends before it writes, because of a typing error say, leaves no folder.
            weakref.finalize(self, _remove_if_empty, self.path)

    def clear(self) -> None:
        """Remove the results that are replaced; called when the model is there to make new ones.

        Raises:
            ConfigError: They cannot be removed.
        """
        try:
            for old in self._there():
                old.unlink()
        except OSError as error:
            raise ConfigError(f"--out {self.path}: {error.strerror or error}") from None

    def _there(self) -> list[Path]:
        """Return the files of a run of this tool, and only those, that lie in the folder."""
        own = (f"{self.tool}{end}" for end in _ENDS)
        found = (p for name in own for p in self.path.glob(name))
        traces = (self.path / TRACE, self.path / WARMUP_TRACE)
        return [*found, *(p for p in traces if p.exists())]

    def _make(self, *, new: bool) -> bool:
        """Make the folder and return whether it was not there; a *new* one is nobody else's."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        first, number = self.path, 1
        while not _made(self.path):
            if not new:
                self.path.mkdir(exist_ok=True)  # it complains of what is no folder
                return False
            number += 1
            self.path = first.with_name(f"{first.name}-{number}")
        return True

    def write_json(self, result: Mapping[str, Any]) -> Path:
        """Write the result, strictly: no NaN, no Infinity."""
        return self._write("json", to_json(result) + "\n")

    def write_csv(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Path:
        """Write one line per row; what does not exist is empty."""
        file = self.path / f"{self.tool}.csv"
        with file.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, columns)
            writer.writeheader()
            writer.writerows(rows)
        return file

    def write_figure(self, figure: Any, name: str | None = None) -> Path:
        """Write a matplotlib figure as ``TOOL.png``, or ``TOOL-NAME.png``."""
        file = self.path / f"{self.tool}{f'-{name}' if name else ''}.png"
        figure.savefig(file)
        return file

    def _write(self, suffix: str, text: str) -> Path:
        file = self.path / f"{self.tool}.{suffix}"
        file.write_text(text, encoding="utf-8")
        return file


def _now() -> str:
    return dt.datetime.now(dt.timezone.utc).strftime("%Y%m%d-%H%M%S")


def _made(folder: Path) -> bool:
    """Make a folder; return False if something of its name is there."""
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def to_json(result: Any) -> str:
    """Return *result* as JSON; what is not finite does not exist."""
    return json.dumps(_strict(result), indent=2, allow_nan=False)


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _strict(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

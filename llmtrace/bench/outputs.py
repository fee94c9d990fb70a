"""The folder of a run's results: JSON, CSV, PNG and the trace; nothing is written over silently."""

from __future__ import annotations

import csv
import datetime as dt
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmtrace.bench.tracing import TRACE, WARMUP_TRACE
from llmtrace.errors import ConfigError

DEFAULT_FOLDER = "llmtrace-bench"


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
        now = dt.datetime.now(dt.timezone.utc).strftime("%Y%m%d-%H%M%S")
        self.path = Path(out) if out else Path(DEFAULT_FOLDER) / f"{tool}-{now}"
        self.tool = tool
        there = [
            p
            for p in (*self.path.glob(f"{tool}*.*"), self.path / TRACE, self.path / WARMUP_TRACE)
            if p.exists()
        ]
        if there and not overwrite:
            raise ConfigError(
                f"--out {self.path}: {there[0].name} lies there already; name another folder, or "
                "say --overwrite"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for old in there:
                old.unlink()
        except OSError as error:
            raise ConfigError(f"--out {self.path}: {error.strerror or error}") from None

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

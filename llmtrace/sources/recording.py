"""What was read: records, what could not be read, and where it came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llmtrace.records import RequestRecord

KEPT_PROBLEMS = 100
"""Problems kept word for word; beyond that they are only counted."""


@dataclass(slots=True)
class Problems:
    """What could not be read, each with file, line and reason."""

    lines: list[str] = field(default_factory=list)
    """The first :data:`KEPT_PROBLEMS`, one line of text each."""
    count: int = 0

    def add(self, where: str, what: str) -> None:
        """Note that *what* is wrong at *where*."""
        self.count += 1
        if len(self.lines) < KEPT_PROBLEMS:
            # A reason may quote the input, which may hold anything, terminal codes included.
            words = " ".join(f"{where}: {what}".split())
            self.lines.append("".join(c if c.isprintable() else "?" for c in words))


@dataclass(frozen=True, slots=True)
class Recording:
    """Everything found in the input."""

    records: list[RequestRecord]
    """In the order in which the requests began."""
    problems: Problems
    files: tuple[str, ...] = ()
    """Every file read, those found in folders included; ``-`` is standard input."""
    resources: tuple[dict[str, Any], ...] = ()
    """Attributes of the distinct resources (processes) whose requests these are."""
    notes: tuple[str, ...] = ()
    """What was put right in reading, and takes nothing from the numbers."""

    @property
    def partial(self) -> bool:
        """Whether something in the input could not be read."""
        return self.problems.count > 0

"""One table of a policy's TOML, whose keys are taken one by one; what is left is unknown."""

from __future__ import annotations

import math
from typing import Any, NoReturn

from llmtrace.errors import PolicyError

MOST = 1e12
"""No limit of a policy is sensibly larger."""

SHOWN = 40
"""Characters of a wrong value that a message repeats."""


class PolicyTable:
    """A table; every method that reads a key raises PolicyError where it holds something else."""

    def __init__(self, name: str, place: str, content: Any) -> None:
        self._name = name
        self._place = place
        self._known: list[str] = []
        if not isinstance(content, dict):
            self.refuse("", f"must be a table, not {_shown(content)}")
        self._content = dict(content)

    def table(self, key: str) -> PolicyTable | None:
        """Return the table at *key*, or None."""
        found = self._take(key)
        return None if found is None else PolicyTable(self._name, f"[{key}]", found)

    def tables(self, key: str) -> list[PolicyTable]:
        """Return an array of tables; a single table is one of one."""
        found = self._take(key)
        if not isinstance(found, list):
            return [] if found is None else [PolicyTable(self._name, f"[{key}]", found)]
        return [
            PolicyTable(self._name, f"[[{key}]] no. {number}", table)
            for number, table in enumerate(found, start=1)
        ]

    def number(self, key: str, *, most: float = MOST) -> float | None:
        """Return a number above 0, up to *most*; None where there is none."""
        found = self._take(key)
        if found is None:
            return None
        good = isinstance(found, (int, float)) and not isinstance(found, bool)
        if not good or not math.isfinite(found) or not 0 < found <= most:
            self.refuse(key, f"must be a number above 0, at most {most:g}, not {_shown(found)}")
        return float(found)

    def whole(self, key: str, default: int) -> int:
        """Return a whole number above 0."""
        found = self.number(key)
        if found is None:
            return default
        if found != int(found):
            self.refuse(key, f"must be a whole number, not {found:g}")
        return int(found)

    def flag(self, key: str) -> bool:
        """Return a truth value; false where there is none."""
        found = self._take(key)
        if found is not None and not isinstance(found, bool):
            self.refuse(key, f"must be true or false, not {_shown(found)}")
        return bool(found)

    def choice(self, key: str, values: tuple[str, ...]) -> str:
        """Return one of *values*; the first where there is none."""
        found = self._take(key)
        if found is not None and found not in values:
            allowed = " or ".join(f'"{value}"' for value in values)
            self.refuse(key, f"must be {allowed}, not {_shown(found)}")
        return values[0] if found is None else str(found)

    def finish(self) -> None:
        """Check that every key was one of those asked for."""
        for key in self._content:
            self.refuse(str(key), f"unknown key; known here: {', '.join(self._known)}")

    def refuse(self, key: str, why: str) -> NoReturn:
        """Raise the error that *key* of this table is wrong."""
        place = " ".join(part for part in (self._place, key) if part)
        said = f"{self._name}: {place}: {why}" if place else f"{self._name}: {why}"
        raise PolicyError("".join(c if c.isprintable() else "?" for c in said))

    def _take(self, key: str) -> Any:
        self._known.append(key)
        return self._content.pop(key, None)


def _shown(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= SHOWN else said[:SHOWN] + "..."

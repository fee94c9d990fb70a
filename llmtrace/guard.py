"""The one place that swallows our own failures, so that telemetry never breaks the application."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from llmtrace.locks import ForkSafeLock

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("llmtrace")

MAX_FAILURES = 10
"""After this many internal errors llmtrace stops recording for the rest of the process."""


class Guard:
    """Counts internal errors: logs the first with its traceback, gives up after a few."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self.failures = 0
        self.warned: set[str] = set()

    @property
    def tripped(self) -> bool:
        """Whether recording has been given up."""
        return self.failures >= MAX_FAILURES

    def report(self, error: Exception, doing: str) -> None:
        """Note that *error* happened in our code while *doing* something; never raises."""
        with self._lock:
            self.failures += 1
            count = self.failures
        if count == 1:
            log.warning(
                "llmtrace failed while %s; your program is not affected, this trace may be "
                "incomplete. Please report this.",
                doing,
                exc_info=error,
            )
        elif count == MAX_FAILURES:
            log.warning("llmtrace failed %d times and has turned itself off.", count)

    def warn_once(self, key: str, message: str, error: Exception | None = None) -> None:
        """Log *message* the first time *key* is seen in this process."""
        with self._lock:
            if key in self.warned:
                return
            self.warned.add(key)
        log.warning("llmtrace: %s", message, exc_info=error)

    def call(
        self, doing: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """Return ``function(*args, **kwargs)``, or None if it raised an ``Exception``."""
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the program goes on without this telemetry
            self.report(error, doing)
            return None

    def call_users(self, doing: str, function: Callable[..., object], *args: Any) -> None:
        """Call a function of the application's: its errors are logged once, and are not ours."""
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001 - the program goes on
            name = getattr(function, "__qualname__", repr(function))
            self.warn_once(f"{doing} {name}", f"{name} failed while {doing}", error)


guard = Guard()

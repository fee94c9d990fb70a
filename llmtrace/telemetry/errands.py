"""Work that may hang, such as an export, done where nobody has to wait for its end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

Errand = Callable[[], object]


class Errands:
    """A thread for work whose end is waited for only so long.

    It is started ahead of time: in Python 3.12 no thread can be started at exit.
    """

    def __init__(self) -> None:
        self._waiting: SimpleQueue[tuple[Errand, threading.Event]] = SimpleQueue()
        self._process: int | None = None

    def start(self) -> None:
        """Be ready; again after a fork, which leaves the thread behind."""
        if self._process == os.getpid():
            return
        self._waiting = SimpleQueue()
        threading.Thread(
            target=_work, args=(self._waiting,), name="llmtrace-errands", daemon=True
        ).start()
        self._process = os.getpid()

    def run(self, errand: Errand, timeout_s: float) -> bool:
        """Do *errand*, which must not raise.

        Returns:
            False if it was not done within *timeout_s*; it may yet be.
        """
        try:
            self.start()
        except RuntimeError:  # Python is ending, and nothing was ever to be exported
            return False
        done = threading.Event()
        self._waiting.put((errand, done))
        return done.wait(timeout_s)


def _work(waiting: SimpleQueue[tuple[Errand, threading.Event]]) -> None:
    while True:
        errand, done = waiting.get()
        errand()
        done.set()

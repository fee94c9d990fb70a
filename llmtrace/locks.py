"""Locks that a forked child finds free, whoever held them in the parent."""

from __future__ import annotations

import os
import threading


class ForkSafeLock:
    """A lock for ``with``. Its block must not fork. One for the whole process: it is kept."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

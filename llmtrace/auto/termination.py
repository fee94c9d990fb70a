"""SIGTERM, for programs that were started traced: what is recorded leaves before they end.

Python ends at once then, and runs nothing that was registered for its end. Servers such as
uvicorn have a handler of their own, shut down, and send themselves the signal again.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType


def before_termination(work: Callable[[], object], limit_s: Callable[[], float]) -> None:
    """Have *work* done when SIGTERM is about to end this process; not in children it forks.

    A program that has a handler of its own is left alone.

    Args:
        work: Must not raise.
        limit_s: Returns the longest wait for it, seconds.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    def terminated(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the shape
        # In a thread: what has been interrupted here may hold a lock that the work needs.
        worker = threading.Thread(target=work, name="llmtrace-termination", daemon=True)
        with suppress(RuntimeError):  # no more threads: it ends all the same
            worker.start()
            worker.join(limit_s())
        # Whoever handles the signal now: a handler of the program's own has called this one.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(number)

    def default() -> None:
        if signal.getsignal(signal.SIGTERM) is terminated:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, terminated)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=default)

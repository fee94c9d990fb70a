"""Whether a request runs in an event loop's thread, where everybody else has to wait for it."""

from __future__ import annotations

import sys

from llmtrace.seams.imported import imported


def other_tasks() -> int | None:
    """Return how many tasks beside this one this thread's running event loop has.

    Returns:
        None where no loop runs here. A notebook's loop is not counted: its cells are meant to run
        in it.
    """
    asyncio = imported("asyncio")
    if asyncio is None or "ipykernel" in sys.modules:
        return None
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    return len(asyncio.all_tasks(loop) - {asyncio.current_task(loop)})

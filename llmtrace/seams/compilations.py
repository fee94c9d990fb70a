"""When torch compiles: dynamo's own callbacks, around each compilation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

Undo = Callable[[], None]


def watch(started: Callable[[], None], ended: Callable[[], None]) -> Undo | None:
    """Have the start and the end of each compilation told; return what ends that.

    Of compilations inside of each other, the outermost is told. None where dynamo has not been
    imported, so that nothing compiles, or is of a torch without such callbacks.
    """
    if "torch._dynamo" not in sys.modules:
        return None
    try:
        from torch._dynamo.callback import callback_handler as handler
    except ImportError:
        return None

    # Releases of torch differ in what they hand over.
    def on_start(*_: Any) -> None:
        started()

    def on_end(*_: Any) -> None:
        ended()

    handler.register_start_callback(on_start)
    handler.register_end_callback(on_end)

    def undo() -> None:
        handler.remove_start_callback(on_start)
        handler.remove_end_callback(on_end)

    return undo

"""The cache of a request, seen after each step: for a measuring tool, for one model, for a while.

``_update_model_kwargs_for_generation`` is what every loop of every release from 4.38 to 5.24 calls
after a step, outside of compiled regions, with what the next step is called with: the cache among
it, also where it is a new tuple each time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from llmtrace.errors import LlmtraceError
from llmtrace.seams.kv_layers import current_cache
from llmtrace.seams.patching import PatchSet

_NAME = "_update_model_kwargs_for_generation"


@contextlib.contextmanager
def watching(model: Any, see: Callable[[Any], None]) -> Iterator[None]:
    """Call *see* with the cache after every step of *model* in this block; None: there is none.

    Raises:
        LlmtraceError: The model has no such step, or someone watches it already.
    """
    original = getattr(model, _NAME, None)
    patches = PatchSet()
    if original is None:
        raise LlmtraceError(f"{type(model).__name__} has no loop of transformers' own to look into")

    def update(*args: Any, **kwargs: Any) -> Any:
        arguments = original(*args, **kwargs)
        see(current_cache(model, arguments))
        return arguments

    if not patches.add(model, _NAME, update):
        raise LlmtraceError(f"{_NAME} of this model is replaced already")
    try:
        yield
    finally:
        patches.restore()

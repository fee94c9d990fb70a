"""How many spans a provider's batch processors hold: what comes after is dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MOST_UNFLUSHED = 1024
"""Half of what a batch processor holds by default."""


def most_unflushed(provider: Any) -> int:
    """Return how many spans may be written to *provider* before it is to be flushed.

    Half of what its smallest queue holds: the app's own spans are in it, too.
    """
    sizes = list(_queue_sizes(getattr(provider, "_active_span_processor", None)))
    return max(min([MOST_UNFLUSHED, *(size // 2 for size in sizes)]), 1)


def _queue_sizes(processor: Any) -> Iterator[int]:
    """Yield the sizes of the queues in *processor*, by the names of the SDK's releases."""
    for inner in getattr(processor, "_span_processors", ()):
        yield from _queue_sizes(inner)
    batch = getattr(processor, "_batch_processor", processor)
    for name in ("_max_queue_size", "max_queue_size"):
        size = getattr(batch, name, None)
        if isinstance(size, int):
            yield size
            return

"""When the background thread works: where the requests under way do not need Python, if it can.

While it runs, no other thread of the process runs Python. A request needs Python in its prefill
throughout; in a decode step on a device only until its kernels are launched, and then it waits for
them: that is the moment to work, and the device says when it is. Where it never comes, as without
a device or where the device waits for Python itself, work is done in small pieces all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

GRACE_S = 0.005
"""A request that follows on a finished one has begun its prefill by then."""

LONGEST_WAIT_S = 0.1
"""How long a finished request waits for a moment in which nobody needs Python."""

LOOKS = 5
LOOK_AGAIN_S = 0.002
"""How often, and how far apart, such a moment is looked for between two pieces of work."""

LOOKS_NEXT_AFTER = 16
"""Looking takes Python too: if no such moment came, it is not looked for in so many requests."""

BREATHER_S = 0.0002
"""How long Python is left to the requests under way, at least, between two pieces."""


class Needing(Protocol):
    """A request under way, and what it needs."""

    @property
    def in_prefill(self) -> bool:
        """Whether its first forward has begun and no token has been selected."""

    @property
    def awaits_device(self) -> bool:
        """Whether all it does is wait for its device."""


class GivingWay:
    """Finds moments for the background thread to work in."""

    def __init__(self, under_way: Callable[[], Iterable[Needing]]) -> None:
        self._under_way = under_way
        self._hopeless = 0
        """Requests for which moments are not looked for, the one at hand included."""

    def makes_room(self, age_s: float) -> bool:
        """Whether work that came up so long ago is to wait."""
        if age_s < GRACE_S:
            return True
        if age_s >= LONGEST_WAIT_S:
            return False
        under_way = list(self._under_way())
        if any(request.in_prefill for request in under_way):
            return True
        return not self._hopeless and not all(request.awaits_device for request in under_way)

    def done(self) -> None:
        """The work for one request is done."""
        self._hopeless = max(self._hopeless - 1, 0)

    def pause(self) -> None:
        """Called between two pieces of work: returns when the next one may be done."""
        under_way = list(self._under_way())
        if not under_way:
            time.sleep(0)
            return
        for _ in range(0 if self._hopeless else LOOKS):
            if all(request.awaits_device for request in under_way):
                return
            time.sleep(LOOK_AGAIN_S)
            under_way = list(self._under_way())
        self._hopeless = self._hopeless or LOOKS_NEXT_AFTER
        time.sleep(BREATHER_S)

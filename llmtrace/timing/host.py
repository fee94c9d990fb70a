"""The host clock, and the one anchor that ties it to wall time."""

from __future__ import annotations

import time
from dataclasses import dataclass

now = time.perf_counter_ns
"""The clock of every host time stamp in llmtrace, nanoseconds."""


@dataclass(frozen=True, slots=True)
class WallAnchor:
    """One instant on both clocks.

    A request's times all go through its own single anchor, so that its spans keep their exact
    distances even if the system clock is stepped meanwhile.
    """

    wall_ns: int
    host_ns: int

    def wall(self, host_ns: int) -> int:
        """Return *host_ns* as nanoseconds since the epoch."""
        return self.wall_ns + (host_ns - self.host_ns)


def anchor() -> WallAnchor:
    """Read both clocks at once."""
    return WallAnchor(time.time_ns(), now())

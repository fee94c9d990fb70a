"""What recording asks of a device's clock, and the choice of one.

Another accelerator is one more module beside ``cuda.py`` and one more line in ``timer_for``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """Marks of a device's stream, mapped onto the host clock."""

    times_ns: list[int]
    """One per mark, in the order given."""
    error_ns: int
    """Each true time lies within this of the one given."""


class DeviceTimer(Protocol):
    """Marks instants on one device's stream without waiting for it.

    ``mark``, ``remark`` and ``capturing`` are called in the request's thread, the others in the
    background thread once the request is over.
    """

    clock: str
    """Name of the clock, as reported in ``llmtrace.clock``."""

    @property
    def mark(self) -> Callable[[], Any]:
        """Records an instant on the stream; returns at once."""

    def remark(self, mark: Any) -> None:
        """Record *mark* anew at the present instant."""

    def capturing(self) -> bool:
        """Whether what is called now is being recorded for later, and must not be marked."""

    def passed(self, mark: Any) -> bool:
        """Whether there is nothing to wait for: the stream has passed *mark*, or never will."""

    def resolve(self, marks: list[tuple[int, Any]]) -> DeviceTimes | None:
        """Map *marks* onto the host clock.

        Args:
            marks: In stream order, each with a host time read before it was recorded.

        Returns:
            None when the stream has not passed the last mark.
        """

    def release(self, marks: list[Any]) -> None:
        """Give marks back for later requests."""


def timer_for(device: Any) -> DeviceTimer | None:
    """Return a timer for a torch device, or None where only the host clock exists."""
    if device is not None and device.type == "cuda":
        from llmtrace.timing.cuda import CudaTimer

        return CudaTimer(device)
    return None


def cuda_timers(indices: Sequence[int]) -> dict[int, DeviceTimer]:
    """Return a timer for each of several CUDA devices, by index."""
    if not indices:
        return {}
    import torch

    from llmtrace.timing.cuda import CudaTimer

    return {index: CudaTimer(torch.device("cuda", index)) for index in indices}

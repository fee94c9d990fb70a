"""The offset between a device's clock and the host's, from what the host saw anyway.

No synchronisation is added. A mark cannot have happened on the device before the host asked for
it, nor after the host saw the stream past it. Each mark narrows the interval from below, the
final look narrows it from above. While decoding waits for Python, which is what eager decoding
does, a mark happens some microseconds after it was asked for, so the lower bound is tight.
"""

from __future__ import annotations

LAUNCH_NS = 5_000
"""Typical time from the host's call to an idle device reaching the mark."""


def offset_ns(asked_ns: list[int], device_ns: list[int], done_ns: int) -> tuple[int, int]:
    """Return the offset to add to device times, and its largest error.

    Args:
        asked_ns: Host time at which each mark was asked for.
        device_ns: Device time of each mark, from any origin.
        done_ns: Host time at which the device had passed the last mark.

    Formula:
        ``max(asked[i] - device[i]) <= offset <= done - device[-1]``
    """
    lower = max(a - d for a, d in zip(asked_ns, device_ns, strict=True))
    upper = max(lower, done_ns - device_ns[-1])
    offset = lower + min((upper - lower) // 2, LAUNCH_NS)
    return offset, max(offset - lower, upper - offset)

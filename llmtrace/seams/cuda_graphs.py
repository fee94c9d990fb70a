"""CUDA graphs, torch.compile's own among them.

A request in which one is captured pays for it once. A forward that replays one starts the device
only there, and what comes before may take Python a millisecond.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from llmtrace.recording.active import active
from llmtrace.seams.patching import PatchSet


def install(patches: PatchSet) -> None:
    """Wrap the beginning of a capture, and replays; torch's graphs have been imported."""
    from torch.cuda.graphs import CUDAGraph

    patches.wrap(CUDAGraph, "capture_begin", _capture_begin)
    patches.put(CUDAGraph, "replay", _before_replay)


def _capture_begin(
    wrapped: Any,
    instance: Any,  # noqa: ARG001 - wrapt's shape
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    recorder = active.get()
    if recorder is not None:
        recorder.captured = True
    return wrapped(*args, **kwargs)


def _before_replay(replay: Any) -> Any:
    """Return what stands before a replay: a closure, as the device waits for it."""
    current = active.get

    @wraps(replay)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = current()
        if recorder is not None and recorder.in_forward:
            recorder.graph_replayed()
        return replay(self, *args, **kwargs)

    return call

"""``CUDAGraph.capture_begin``: a request in which a CUDA graph is captured pays for it once.

torch.compile's own graphs are captured through it too.
"""

from __future__ import annotations

from typing import Any

from llmtrace.recording.active import active
from llmtrace.seams.patching import PatchSet


def install(patches: PatchSet) -> None:
    """Wrap the beginning of a capture; torch's graphs have been imported."""
    from torch.cuda.graphs import CUDAGraph

    patches.wrap(CUDAGraph, "capture_begin", _capture_begin)


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

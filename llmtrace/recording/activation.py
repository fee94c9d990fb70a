"""Which requests run here, where that is said explicitly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType

from llmtrace.recording.active import active
from llmtrace.recording.block import Block, current_block
from llmtrace.recording.recorder import Recorder
from llmtrace.recording.running import RunningRequest
from llmtrace.recording.shared_recorder import SharedRecorder

Entry = tuple[RunningRequest, Block]
"""A request, and the block that ``generate()`` calls made inside it count from."""


class Activation:
    """A ``with`` block in which forward calls are those of the requests given.

    What it changes is undone where it still stands: a generator may leave the block in another
    context than the one it entered it in.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = [entry for entry in entries if not entry[0].recorder.over]
        self._here: Recorder | None = None
        self._outer: Recorder | None = None
        self._outer_block: Block | None = None
        self._leave_span: Callable[[], None] | None = None

    def __enter__(self) -> None:
        if not self._entries:
            return
        self._outer = active.get()
        if len(self._entries) > 1:
            self._here = SharedRecorder([running for running, _ in self._entries])
            active.set(self._here)
            return
        ((running, block),) = self._entries
        self._here = running.recorder
        active.set(self._here)
        self._outer_block = current_block.get()
        current_block.set(block)
        self._leave_span = running.enter_span()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._entries:
            return
        if len(self._entries) == 1:
            ((running, block),) = self._entries
            self._here = running.recorder  # another one, if it has adopted a model meanwhile
            if current_block.get() is block:
                current_block.set(self._outer_block)
        if self._leave_span is not None:
            self._leave_span()
        if active.get() is self._here:
            active.set(self._outer)

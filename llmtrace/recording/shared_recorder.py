"""One recorder that stands for several: a forward call with the rows of several requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmtrace.recording.recorder import Recorder
from llmtrace.recording.running import RunningRequest


class SharedRecorder(Recorder):
    """Stands for the recorders of several requests while they share forward calls.

    What is called with the rows of several requests tells no single one's prompt or cache, so
    none is given to them.
    """

    __slots__ = ("requests",)

    def __init__(self, requests: Sequence[RunningRequest]) -> None:
        named = [r.recorder.model for r in requests if r.recorder.model is not None]
        super().__init__(named[0] if named else None, 0, 0)
        self.own_loop = True
        self.requests = requests

    @property
    def members(self) -> list[Recorder]:
        """The recorders of the requests whose model is called."""
        for request in self.requests:
            if request.recorder.model is None:
                request.adopt(self.model)
        return [r.recorder for r in self.requests if r.recorder.model is self.model]

    def adopted(self, model: Any) -> Recorder:
        self.model = model
        return self

    def capturing(self) -> bool:
        return any(member.capturing() for member in self.members)

    def forward_started(self) -> None:
        super().forward_started()
        for member in self.members:
            member.forward_started()

    def forward_ended(self) -> None:
        self.forward_ends.append(self.forward_starts[-1])
        for member in self.members:
            member.forward_ended()
            member.captured = member.captured or self.captured

    def forward_failed(self) -> None:
        super().forward_failed()
        for member in self.members:
            member.forward_failed()

    def graph_replayed(self) -> None:
        for member in self.members:
            member.graph_replayed()

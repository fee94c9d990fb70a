"""A ``request()`` block: an own decode loop's forward calls as one request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import Token
from typing import Any

from llmtrace.guard import guard
from llmtrace.recording.block import Block, current_block
from llmtrace.recording.pipeline import Pipeline
from llmtrace.recording.request import RequestInfo
from llmtrace.recording.running import RunningRequest, start_request
from llmtrace.timing.host import now

Reader = Callable[[RequestInfo, RunningRequest], None]
"""Fills in what the model and its inputs tell, once the loop is over."""


class OwnLoop:
    """One open block. Without a listener it does nothing."""

    def __init__(
        self,
        pipeline: Pipeline,
        read: Reader,
        model: Any,
        name: str | None,
        attributes: Mapping[str, str | bool | int | float],
    ) -> None:
        self._read = read
        self._name = name
        self._attributes = dict(attributes)
        self._running: RunningRequest | None = None
        self._token: Token[Block | None] | None = None
        self._block = Block(now(), self._attributes)
        if pipeline.listening():
            info = RequestInfo(own_loop=True, attributes=self._attributes)
            device = getattr(model, "device", None)
            self._running = start_request(pipeline, info, model, device)
        if self._running is not None:
            self._running.recorder.adopt = self._running.adopt
            self._running.recorder.own_loop = True
            self._token = current_block.set(self._block)

    def token(self, count: int) -> None:
        """*count* tokens have been selected."""
        if self._running is not None and not self._running.recorder.capturing():
            self._running.recorder.select(count)

    def close(self, error: BaseException | None) -> None:
        """End the request; later calls do nothing."""
        running, self._running = self._running, None
        if running is None:
            return
        self._leave()
        running.ended()
        recorder = running.recorder
        if self._block.generates and not recorder.forward_ends and not recorder.tokens:
            running.close_as_group(self._name)
            return
        try:
            guard.call("reading an own loop", self._read, running.info, running)
            if self._name is not None:
                running.info.span_name = self._name
        finally:
            running.close(error)

    def _leave(self) -> None:
        token, self._token = self._token, None
        if token is not None:
            try:
                current_block.reset(token)
            except ValueError:  # a generator was closed in another context
                current_block.set(None)

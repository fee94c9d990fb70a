"""A ``request()``: an own decode loop's forward calls as one request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from llmtrace.guard import guard
from llmtrace.known_findings import FORWARDS_NOT_SEEN, NEVER_ENDED
from llmtrace.recording.block import Block, current_block
from llmtrace.recording.pipeline import Pipeline
from llmtrace.recording.request import RequestInfo
from llmtrace.recording.running import RunningRequest, start_request
from llmtrace.records import Finding
from llmtrace.timing.host import now

Reader = Callable[[RequestInfo, RunningRequest], None]
"""Fills in what the model and its inputs tell, once the loop is over."""


class OwnLoop:
    """One open block, or one started request. Without a listener it does nothing."""

    def __init__(
        self,
        pipeline: Pipeline,
        read: Reader,
        model: Any,
        name: str | None,
        attributes: Mapping[str, str | bool | int | float],
        *,
        here: bool = True,
        input_tokens: int | None = None,
    ) -> None:
        self._read = read
        self._name = name
        self._attributes = dict(attributes)
        self._running: RunningRequest | None = None
        self._block = Block(now(), current_block.get(), self._attributes)
        if pipeline.listening():
            info = RequestInfo(own_loop=True, attributes=self._attributes)
            device = getattr(model, "device", None)
            if input_tokens is not None:
                info.batch_size, info.input_tokens_per_row = 1, (input_tokens,)
            self._running = start_request(pipeline, info, model, device, here=here)
        self._here = here
        self._forwards = 0
        """Forward calls that had been seen when a token was last marked."""
        if self._running is not None:
            self._running.recorder.adopt = self._running.adopt
            self._running.recorder.own_loop = True
            if here:
                current_block.set(self._block)

    @property
    def entry(self) -> tuple[RunningRequest, Block] | None:
        """What makes this the request that runs somewhere."""
        return None if self._running is None else (self._running, self._block)

    def token(self, count: int) -> None:
        """*count* tokens have been selected."""
        running = self._running
        if running is None or running.recorder.capturing():
            return
        running.recorder.select(count)
        before, self._forwards = self._forwards, running.recorder.forwards_done
        if before != self._forwards or running.innermost:
            return
        # Of a block a call is missing; of a started request several tokens may come of one.
        missing = _INTERLEAVED if self._here else None if self._forwards else FORWARDS_NOT_SEEN
        if missing is not None and missing not in running.info.findings:
            running.info.findings.append(missing)

    def close(self, error: BaseException | None, finish_reason: str | None = None) -> None:
        """End the request; later calls do nothing."""
        running, self._running = self._running, None
        if running is None:
            return
        self._leave()
        running.ended()
        recorder = running.recorder
        if recorder.over:  # abandoned: tracing was turned off meanwhile
            running.leave()
            return
        if self._block.generates and not recorder.forward_ends and not recorder.tokens:
            running.close_as_group(self._name)
            return
        try:
            guard.call("reading an own loop", self._read, running.info, running)
            if finish_reason is not None:
                running.info.finish_reasons = (finish_reason,)
            if self._name is not None:
                running.info.span_name = self._name
        finally:
            running.close(error)

    def dropped(self) -> None:
        """The request's object is gone, so nobody can end it any more.

        Objects die anywhere, under any lock: ending it is left to others.
        """
        running = self._running
        if running is not None:
            running.ended()
            running.info.findings.append(NEVER_ENDED)
            running.pipeline.orphaned(partial(self.close, None), running)

    def _leave(self) -> None:
        self._block.closed = True
        if current_block.get() is self._block:
            outer = self._block.outer
            while outer is not None and outer.closed:
                outer = outer.outer
            current_block.set(outer)


_INTERLEAVED = Finding(
    "interleaved_blocks",
    "warning",
    "Forward calls went to another request() block",
    "token() was called while this block was not the innermost open one of its context.",
    "Run the forward calls of each request under llmtrace.request.active(request).",
)

"""Inside a manager's loop: its steps, and what becomes of each request there."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from llmtrace.guard import guard
from llmtrace.recording.batch import Batch, BatchStep
from llmtrace.recording.batched_request import BatchedRequest
from llmtrace.recording.running import error_type
from llmtrace.recording.step_marks import StepTimer
from llmtrace.seams.batch_state import States, cache_usage, compute_stream, in_step
from llmtrace.seams.patching import PatchSet
from llmtrace.timing.device import timer_for

_here: ContextVar[Batch | None] = ContextVar("llmtrace_batch", default=None)
"""The batch whose loop runs in this thread."""

_SCHEDULERS = ("Scheduler", "FIFOScheduler", "PrefillFirstScheduler")


class BatchLoop:
    """The wrappers around what a manager's thread does."""

    def __init__(
        self,
        patches: PatchSet,
        of_queue: Callable[[Any], Batch | None],
        forked: Callable[..., BatchedRequest | None],
    ) -> None:
        self._patches = patches
        self._of_queue = of_queue
        self._forked = forked
        self.states: States | None = None

    def install(self, find: Callable[[str], Any]) -> None:
        """Put the wrappers in place.

        Args:
            find: Returns a class of continuous batching by its name, or None.
        """
        wrap = self._patches.wrap
        processor = find("ContinuousBatchProcessor")
        wrap(processor, "prepare_next_batch", self._prepare)
        wrap(processor, "update_batch", self._update)
        wrap(processor, "_handle_request_error", self._failed)
        runner = find("ModelRunner")
        if runner is not None:  # 5.9 and later: the rest of the step is copies and waiting
            wrap(runner, "compute_batch", _forward)
        else:
            wrap(processor, "_generation_step", _forward)
        for name in ("_sync", "_get_new_tokens"):  # before 5.3
            wrap(processor, name, _fetch)
        for buffers in ("ContinuousBatchingIOs", "ContinuousBatchingAsyncIOs"):
            if (kind := find(buffers)) is not None:
                wrap(kind, "prepare_batch_update", _fetch)
        router = find("OutputRouter")
        if router is not None:
            wrap(router, "fail_and_deliver", self._undeliverable)
        wrap(find("PagedAttentionCache"), "search_prefix_match", _prefix)
        for name in _SCHEDULERS:
            if (scheduler := find(name)) is not None:
                wrap(scheduler, "add_waiting_request", self._wait)
                wrap(scheduler, "finish_request", _finish)
                wrap(scheduler, "clear_cancelled_requests", _cancel)

    def _prepare(
        self, wrapped: Any, processor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        batch = _here.get() or guard.call("finding a batch", self._enter, processor)
        result = wrapped(*args, **kwargs)
        # The very first request may have come, and been chosen, in between.
        batch = batch or guard.call("finding a batch", self._enter, processor)
        # Before 4.57 it returns nothing, whether there is a step or not.
        if batch is not None and result is not False:
            guard.call("noting a step's requests", self._prepared, batch, processor)
        return result

    def _enter(self, processor: Any) -> Batch | None:
        """Return the batch of this thread, which from now on is known as its loop's."""
        batch = self._of_queue(getattr(processor, "input_queue", None))
        if batch is None:
            return None
        _here.set(batch)
        batch.timer = _timer(processor)
        return batch

    def _prepared(self, batch: Batch, processor: Any) -> None:
        items = in_step(processor)
        if not items or items is batch.last or not batch.requests:
            return
        step = batch.prepared(items)
        scheduler = processor.scheduler
        step.active = len(scheduler.active_requests)
        step.waiting = len(scheduler.waiting_requests)
        step.cache_usage = cache_usage(processor.cache)
        for item in items:
            state = getattr(item, "state", item)
            request = batch.requests.get(state.request_id)
            if request is None or request.state is not state:
                request = self._met(batch, request, state, step)
            if request is not None:
                batch.take_part(request, step, state.position_offset)

    def _met(
        self, batch: Batch, request: BatchedRequest | None, state: Any, step: BatchStep
    ) -> BatchedRequest | None:
        """A state is in a step for the first time."""
        if request is None:
            request = self._forked(batch, state, shares=True)
            if request is None:
                return None
        elif request.state is None:
            request.info.input_tokens_cached = request.shared or None
        if self.states is not None:
            request.begin(state, len(self.states.prompt(state)), step)
        return request

    def _update(
        self,
        wrapped: Any,
        processor: Any,  # noqa: ARG002 - wrapt's shape
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        batch = _here.get()
        if batch is None:
            return wrapped(*args, **kwargs)
        batch.giving = True
        try:
            result = wrapped(*args, **kwargs)
        except BaseException:
            batch.giving = False
            raise
        guard.call("noting a step's tokens", batch.given_out)
        return result

    def _wait(
        self,
        wrapped: Any,
        scheduler: Any,  # noqa: ARG002 - wrapt's shape
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        result = wrapped(*args, **kwargs)
        batch = _here.get()
        if batch is not None:
            state = args[0] if args else kwargs.get("state")
            guard.call("noting a request in the queue", self._waits, batch, state)
        return result

    def _waits(self, batch: Batch, state: Any) -> None:
        request = batch.requests.get(state.request_id)
        if request is None:
            self._forked(batch, state, shares=False)
        elif request.state is not None:
            request.preemptions += 1
        elif state.position_offset:  # 4.53 can go on with what an earlier request left
            request.shared = state.position_offset

    def _failed(
        self,
        wrapped: Any,
        processor: Any,  # noqa: ARG002 - wrapt's shape
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        error = args[0] if args else kwargs.get("error")
        state = args[1] if len(args) > 1 else kwargs.get("state")
        guard.call("ending a failed request", _fail, _here.get(), state, error)
        return wrapped(*args, **kwargs)

    def _undeliverable(
        self,
        wrapped: Any,
        router: Any,  # noqa: ARG002 - wrapt's shape
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        state = args[0] if args else kwargs.get("state")
        error = args[1] if len(args) > 1 else kwargs.get("error")
        guard.call("ending a failed request", _fail, _here.get(), state, error)
        return wrapped(*args, **kwargs)


def _timer(processor: Any) -> StepTimer | None:
    """Return the clock of the stream that a processor computes on."""
    device = getattr(processor, "model_device", None)
    if device is None or device.type == "cpu":
        return None
    stream = compute_stream(processor)
    if stream is None:
        timer = timer_for(device)
    else:
        import torch

        with torch.get_device_module(device).stream(stream):
            timer = timer_for(device)
    return None if timer is None else StepTimer(timer)


def _fail(batch: Batch | None, state: Any, error: Any) -> None:
    if batch is not None and isinstance(error, BaseException):
        batch.fail(state.request_id, error_type(error) or "")


def _forward(wrapped: Any, runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
    batch = _here.get()
    if batch is None:
        return wrapped(*args, **kwargs)
    guard.call("marking a step's forward", batch.forward_started)
    result = wrapped(*args, **kwargs)
    guard.call("marking a step's forward", batch.forward_ended)
    return result


def _fetch(wrapped: Any, holder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The step's tokens are copied to the host, which waits for the device."""
    result = wrapped(*args, **kwargs)
    batch = _here.get()
    if batch is not None and batch.giving:
        # Since 5.3 it says itself whose tokens they are.
        items = result[0] if isinstance(result, tuple) else in_step(holder)
        guard.call("reading a step's device times", batch.fetched, items)
    return result


def _prefix(wrapped: Any, cache: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
    """The scheduler looks for the beginning of a prompt in its cache."""
    found = wrapped(*args, **kwargs)
    batch = _here.get()
    if batch is not None and found:
        key = args[0] if args else kwargs.get("request_id", "")
        guard.call("noting cached tokens", batch.found, key, found)
    return found


def _finish(wrapped: Any, scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
    """A request leaves the scheduler; only while tokens are given out that is its end."""
    batch = _here.get()
    if batch is not None and batch.giving:
        key = args[0] if args else kwargs.get("request_id", "")
        guard.call("ending a batched request", batch.finish, key)
    return wrapped(*args, **kwargs)


def _cancel(wrapped: Any, scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    batch = _here.get()
    if batch is None:
        return wrapped(*args, **kwargs)
    held = guard.call("noting who may be cancelled", _held, scheduler) or ()
    result = wrapped(*args, **kwargs)
    guard.call("ending cancelled requests", _cancelled, batch, scheduler, held)
    return result


def _held(scheduler: Any) -> tuple[str, ...]:
    """Return the requests that a scheduler has: one that it does not have yet it cannot cancel.

    Not those it is asked to cancel: before 5.17 other threads add to them meanwhile.
    """
    return (*scheduler.active_requests, *scheduler.waiting_requests)


def _cancelled(batch: Batch, scheduler: Any, held: tuple[str, ...]) -> None:
    active, waiting = scheduler.active_requests, scheduler.waiting_requests
    if len(active) + len(waiting) == len(held):
        return
    for key in held:
        if key not in active and key not in waiting:
            batch.cancel(key)

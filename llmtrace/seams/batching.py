"""Continuous batching, 4.53 and later: requests in a manager's queue, steps in its own thread.

A request is a ``RequestState`` made inside ``add_request``. It is found again by its id, and its
manager by the queue that the manager shares with its processor: nothing is put on transformers'
objects, which are pickled and copied. The loop's thread is told by a context variable, so steps
that run elsewhere, such as a warm-up, are nobody's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary, finalize

from llmtrace import names
from llmtrace.guard import guard
from llmtrace.locks import ForkSafeLock
from llmtrace.recording.active import active
from llmtrace.recording.batch import Batch
from llmtrace.recording.batched_request import BatchedRequest
from llmtrace.recording.pipeline import Pipeline
from llmtrace.recording.running import error_type
from llmtrace.seams.batch_loop import BatchLoop
from llmtrace.seams.batch_state import States
from llmtrace.seams.batch_submission import Submission
from llmtrace.seams.model_facts import cold_before, model_facts
from llmtrace.seams.patching import PatchSet
from llmtrace.timing.host import anchor

PACKAGE = "transformers.generation.continuous_batching"

_submitting: ContextVar[Submission | None] = ContextVar("llmtrace_submitting", default=None)
"""The ``add_request`` call that runs here."""


class BatchingSeam:
    """The wrappers around continuous batching."""

    def __init__(self, patches: PatchSet, pipeline: Pipeline) -> None:
        self._patches = patches
        self._pipeline = pipeline
        self._batches: WeakKeyDictionary[Any, Batch] = WeakKeyDictionary()
        """By the queue through which a manager is given requests."""
        self._lock = ForkSafeLock()
        self._loop = BatchLoop(patches, self._of_queue, self._forked)
        self._states: States | None = None

    def install(self) -> None:
        """Put the wrappers in place; the package, or before 4.56 the module, has been imported."""
        state, manager = _find("RequestState"), _find("ContinuousBatchingManager")
        if state is None or manager is None:
            return
        self._states = self._loop.states = States(state)
        wrap = self._patches.wrap
        wrap(state, "__init__", self._state_made)
        wrap(manager, "add_request", self._add_request)
        wrap(manager, "_run_generation_loop", self._run)
        wrap(manager, "_handle_critical_error", self._critical)
        wrap(manager, "get_result", self._result)
        wrap(manager, "register_result_handler", self._handler)
        self._loop.install(_find)

    def _of_queue(self, queue: Any) -> Batch | None:
        return None if queue is None else self._batches.get(queue)

    def _of(self, manager: Any) -> Batch | None:
        return self._of_queue(getattr(manager, "input_queue", None))

    def _add_request(
        self, wrapped: Any, manager: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if not self._patches.enabled or not self._pipeline.listening():
            return wrapped(*args, **kwargs)
        submission = Submission(manager, anchor())
        token = _submitting.set(submission)
        try:
            return wrapped(*args, **kwargs)
        except BaseException as error:  # such as a queue that stays full
            guard.call("ending a request that was refused", self._refused, submission, error)
            raise
        finally:
            _submitting.reset(token)

    def _refused(self, submission: Submission, error: BaseException) -> None:
        batch = self._of(submission.manager)
        if batch is not None and submission.key is not None:
            batch.fail(submission.key, error_type(error) or "")

    def _state_made(
        self, wrapped: Any, state: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        result = wrapped(*args, **kwargs)
        submission = _submitting.get()
        if submission is not None and submission.key is None:
            guard.call("starting a batched request", self._submitted, submission, state)
        return result

    def _submitted(self, submission: Submission, state: Any) -> None:
        if self._states is None:
            return
        batch = self._batch(submission.manager)
        request = submission.start(self._pipeline, batch, self._states, state)
        submission.key = state.request_id
        if request is not None:
            batch.add(state.request_id, request)

    def _batch(self, manager: Any) -> Batch:
        with self._lock:  # two threads may bring a manager its first requests
            batch = self._of(manager)
            if batch is None:
                model = manager.model
                facts = model_facts(model)
                batch = Batch(self._pipeline, facts, cold_before(model, facts.quantization))
                self._batches[manager.input_queue] = batch
                finalize(manager.input_queue, self._dropped, batch).atexit = False
            return batch

    def _dropped(self, batch: Batch) -> None:
        """A manager is gone; it may have been given requests and never started."""
        self._pipeline.orphaned(batch.stopped, *batch.requests.values())

    def _forked(self, batch: Batch, state: Any, *, shares: bool) -> BatchedRequest | None:
        """Return the request of a sequence that the scheduler has split off another's prompt.

        It does so before the prompt's last token; where there is no room to, it shares nothing.
        """
        parent = batch.requests.get(str(state.request_id).partition("__child#")[0])
        if parent is None or self._states is None:
            return None
        length = parent.info.input_length or 0
        child = parent.fork(self._pipeline, length - 1 if shares else 0)
        if child is not None:
            child.info.attributes[names.BATCH_REQUEST_ID] = str(state.request_id)
            batch.add(state.request_id, child)
        return child

    def _run(
        self, wrapped: Any, manager: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        active.set(None)  # the thread may have been given the context of who started it
        try:
            return wrapped(*args, **kwargs)
        finally:
            guard.call("ending a batch", self._stopped, manager)

    def _stopped(self, manager: Any) -> None:
        batch = self._of(manager)
        if batch is not None:
            batch.stopped()

    def _critical(
        self, wrapped: Any, manager: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The loop has failed."""
        error = args[0] if args else kwargs.get("error")
        guard.call("noting why a batch ends", self._fatal, manager, error)
        return wrapped(*args, **kwargs)

    def _fatal(self, manager: Any, error: Any) -> None:
        batch = self._of(manager)
        if batch is not None and isinstance(error, BaseException):
            batch.fatal = error_type(error)

    def _result(
        self, wrapped: Any, manager: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Somebody takes a result out of the queue; not one who puts back another's."""
        output = wrapped(*args, **kwargs)
        if output is not None:
            queue = getattr(manager, "input_queue", None)
            guard.call("noting a delivery", self._delivered, queue, output)
        return output

    def _delivered(self, queue: Any, output: Any) -> None:
        batch = self._of_queue(queue)
        if batch is not None:
            batch.delivered(output.request_id)

    def _handler(
        self, wrapped: Any, manager: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Results are to be handed to a function, on the event loop."""
        queue = getattr(manager, "input_queue", None)
        if len(args) == 2:  # noqa: PLR2004 - request id and callback
            args = (args[0], self._delivering(queue, args[1]))
        elif "callback" in kwargs:
            kwargs = {**kwargs, "callback": self._delivering(queue, kwargs["callback"])}
        return wrapped(*args, **kwargs)

    def _delivering(self, queue: Any, callback: Any) -> Callable[[Any], Any]:
        def delivered(output: Any) -> Any:
            guard.call("noting a delivery", self._delivered, queue, output)
            return callback(output)

        return delivered


def _find(name: str) -> Any:
    """Return a class of continuous batching, wherever this release has it."""
    for module in ("", ".requests", ".scheduler", ".cache", ".input_outputs", ".model_runner",
                   ".continuous_api"):  # fmt: skip
        try:
            found = getattr(importlib.import_module(PACKAGE + module), name, None)
        except ImportError:
            continue
        if found is not None:
            return found
    return None

"""``generate()``, of ``GenerationMixin`` and of models with one of their own: a request's bounds.

The outermost call is the request. A call inside it that comes before any decoding loop, or
between two, does a part of the request's work: a model's own ``generate()`` calls
``super().generate()`` or another model's, perhaps several times. A call inside a running loop is
a draft's, and none of the request's.
"""

from __future__ import annotations

from typing import Any

from llmtrace.guard import guard
from llmtrace.recording.active import active
from llmtrace.recording.pipeline import Pipeline
from llmtrace.recording.recorder import Recorder
from llmtrace.seams import forward, loop, overrides
from llmtrace.seams.candidates import Candidates
from llmtrace.seams.generate_request import GenerateRequest
from llmtrace.seams.patching import PatchSet
from llmtrace.seams.wrapping import MethodWrapper
from llmtrace.timing.host import WallAnchor, anchor


class GenerateSeam:
    """The wrappers around ``generate()`` and its preparation."""

    def __init__(self, patches: PatchSet, pipeline: Pipeline) -> None:
        self._patches = patches
        self._pipeline = pipeline
        self._requests: dict[int, GenerateRequest] = {}
        """Running requests, by their recorder's id."""

    def install(self) -> None:
        """Put the wrappers in place; transformers has been imported."""
        from transformers.generation.utils import GenerationMixin

        wrap = self._patches.wrap
        wrap(GenerationMixin, "generate", self._generate)
        wrap(GenerationMixin, "_get_logits_processor", self._prepared)
        wrap(GenerationMixin, "_get_candidate_generator", self._candidates)
        wrap(GenerationMixin, "load_custom_generate", self._custom)
        forward.install_chunks(self._patches)
        overrides.install(self._patches, GenerationMixin, self._generate)

    def _generate(
        self, wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        outer = self._running()
        if outer is not None:
            if outer.looping:
                return _unrecorded(wrapped, args, kwargs)
            return _part_of(outer, wrapped, instance, args, kwargs)
        if not self._patches.enabled or not self._pipeline.listening():
            return wrapped(*args, **kwargs)
        entered = anchor()
        request = guard.call(
            "starting a request", self._start, entered, wrapped, instance, args, kwargs
        )
        if request is None:
            return wrapped(*args, **kwargs)
        try:
            result = wrapped(*request.args, **request.kwargs)
        except BaseException as error:
            guard.call("ending a failed request", self._end, request, None, error)
            raise
        guard.call("ending a request", self._end, request, result, None)
        return result

    def _running(self) -> GenerateRequest | None:
        """Return the request that runs here."""
        recorder = active.get()
        return None if recorder is None else self._requests.get(id(recorder))

    def _start(
        self,
        entered: WallAnchor,
        wrapped: Any,
        model: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> GenerateRequest | None:
        request = GenerateRequest(self._pipeline, entered, wrapped, model, args, kwargs)
        if request.running is None:
            return None
        self._see_forwards(request.running.recorder)
        self._requests[id(request.running.recorder)] = request
        return request

    def _see_forwards(self, recorder: Recorder) -> None:
        if not recorder.sees_forwards:
            loop.install_processors(self._patches)

    def _end(self, request: GenerateRequest, result: Any, error: BaseException | None) -> None:
        if request.running is not None:
            self._requests.pop(id(request.running.recorder), None)
        request.end(result, error)

    def _prepared(
        self, wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """``generate()`` has its final config and inputs, and is about to enter the loop.

        Called once per loop, in every release and also by models with a flow of their own.
        """
        request = self._running()
        if request is not None and not request.looping:
            config = args[0] if args else kwargs.get("generation_config")
            length = args[1] if len(args) > 1 else kwargs.get("input_ids_seq_length")
            guard.call("reading the generation config", request.prepared, instance, config, length)
            if request.running is not None:
                self._see_forwards(request.running.recorder)
        return wrapped(*args, **kwargs)

    def _candidates(
        self, wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Assisted decoding has what proposes its candidates."""
        generator = wrapped(*args, **kwargs)
        request = self._running()
        if request is None or not request.decodes(instance):
            return generator
        return Candidates(generator, request.info)

    def _custom(
        self, wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A ``generate()`` was loaded that a model will have as its own attribute."""
        function = wrapped(*args, **kwargs)
        if self._running() is not None or not callable(function):
            return function

        def wrapper(
            custom: Any, _: Any, custom_args: tuple[Any, ...], custom_kwargs: dict[str, Any]
        ) -> Any:
            return self._generate(custom, instance, custom_args, custom_kwargs)

        return MethodWrapper(function, wrapper)


def _part_of(
    request: GenerateRequest,
    wrapped: Any,
    instance: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a ``generate()`` that does some of a request's work."""
    guard.call("entering a part of a request", request.enter, instance, args, kwargs)
    try:
        result = wrapped(*args, **kwargs)
    except BaseException:
        guard.call("leaving a part of a request", request.leave, None)
        raise
    guard.call("leaving a part of a request", request.leave, result)
    return result


def _unrecorded(wrapped: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a ``generate()`` inside another, such as a draft: its tokens are not the request's."""
    token = active.set(None)
    try:
        return wrapped(*args, **kwargs)
    finally:
        active.reset(token)

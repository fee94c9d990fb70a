"""``GenerationMixin.generate``: where a request begins and ends."""

from __future__ import annotations

import inspect
import sys
from functools import cache
from typing import Any

from llmtrace.guard import guard
from llmtrace.recording.active import active
from llmtrace.recording.block import block_attributes, block_start
from llmtrace.recording.pipeline import Pipeline
from llmtrace.recording.request import RequestInfo
from llmtrace.recording.running import RunningRequest, start_request
from llmtrace.seams import memory
from llmtrace.seams.generation_config import (
    max_length,
    pad_id,
    parameters_of,
    stop_ids,
    strategy_of,
)
from llmtrace.seams.inputs import device_of, main_input, read_input, read_output
from llmtrace.seams.kv_cache import CACHE_NAMES, cache_bytes, cache_kind, cached_tokens
from llmtrace.seams.model_facts import first_use, model_facts
from llmtrace.seams.patching import PatchSet
from llmtrace.seams.streamers import StreamerProxy, context_of, is_proxied, observe
from llmtrace.seams.tokenizers import take_tokenization, texts_of
from llmtrace.timing.host import WallAnchor, anchor

_SEVERAL_TOKENS_A_STEP = frozenset({"assisted", "prompt_lookup"})


class GenerateSeam:
    """The wrappers around ``generate()`` and its preparation."""

    def __init__(self, patches: PatchSet, pipeline: Pipeline) -> None:
        self._patches = patches
        self._pipeline = pipeline
        self._requests: dict[int, _GenerateRequest] = {}
        """Running requests, by their recorder's id."""

    def install(self) -> None:
        """Put the wrappers in place; transformers has been imported."""
        from transformers.generation.utils import GenerationMixin

        self._patches.wrap(GenerationMixin, "generate", self._generate)
        self._patches.wrap(GenerationMixin, "_get_logits_processor", self._prepared)

    def _generate(
        self, wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        recorder = active.get()
        if recorder is not None and id(recorder) in self._requests:
            if instance is recorder.model and isinstance(kwargs.get("custom_generate"), str):
                return wrapped(*args, **kwargs)  # the same request, handed to the Hub's loop
            return _unrecorded(wrapped, args, kwargs)
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

    def _start(
        self,
        entered: WallAnchor,
        wrapped: Any,
        model: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> _GenerateRequest | None:
        request = _GenerateRequest(self._pipeline, entered, wrapped, model, args, kwargs)
        if request.running is None:
            return None
        self._requests[id(request.running.recorder)] = request
        return request

    def _end(self, request: _GenerateRequest, result: Any, error: BaseException | None) -> None:
        if request.running is not None:
            self._requests.pop(id(request.running.recorder), None)
        request.end(result, error)

    def _prepared(
        self, wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """``generate()`` has its final config and inputs, and is about to enter the loop."""
        recorder = active.get()
        if recorder is not None and recorder.model is instance:
            request = self._requests.get(id(recorder))
            if request is not None and request.info.prompt_length is None:
                config = args[0] if args else kwargs.get("generation_config")
                length = args[1] if len(args) > 1 else kwargs.get("input_ids_seq_length")
                guard.call("reading the generation config", request.prepared, config, length)
        return wrapped(*args, **kwargs)


def _unrecorded(wrapped: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a ``generate()`` inside another, such as a draft: its tokens are not the request's."""
    token = active.set(None)
    try:
        return wrapped(*args, **kwargs)
    finally:
        active.reset(token)


class _GenerateRequest:
    """One ``generate()`` call under way."""

    def __init__(
        self,
        pipeline: Pipeline,
        entered: WallAnchor,
        wrapped: Any,
        model: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.args, self.kwargs = args, kwargs
        self.model = model
        arguments = _by_name(wrapped, args, kwargs)
        self.tensor = main_input(args, kwargs)
        self.mask = kwargs.get("attention_mask")
        streamer = arguments.get("streamer")
        context = None
        if streamer is not None and pipeline.telemetry.here() is None:
            context = context_of(streamer)
        self.info = info = RequestInfo(model=model_facts(model))
        config = arguments.get("generation_config")
        if config is None:
            config = getattr(model, "generation_config", None)
        info.strategy = strategy_of(_Override(config, kwargs), kwargs)
        info.queued_since_ns = block_start()
        info.attributes = block_attributes()
        self.tokenizer = self._adopt_tokenization(pipeline, context, streamer, kwargs)
        info.cold_reasons = ("first_request",) if first_use(model) else ()
        self._read_cache(kwargs)
        device = device_of(model, self.tensor)
        info.device = str(device)
        self._content = pipeline.config.content in {"span_only", "span_and_event"}
        self._device = device
        self._memory = memory.before(device)
        self._graphs = _compiled_graphs()
        # Last, as what it starts must be ended: nothing after it may fail.
        self.running: RunningRequest | None = start_request(
            pipeline, info, model, device, context, entered
        )
        guard.call("setting up a request", self._set_up_recorder, streamer)

    def _set_up_recorder(self, streamer: Any) -> None:
        if self.running is None:
            return
        recorder = self.running.recorder
        recorder.sees_forwards = isinstance(self.model, _pretrained_model())
        if self.info.strategy in _SEVERAL_TOKENS_A_STEP:
            recorder.lengths = []
        if streamer is not None and not is_proxied(streamer):
            times = observe(streamer)
            self.info.stream = times
            self._replace_streamer(StreamerProxy(streamer, recorder, times))

    def _replace_streamer(self, proxy: Any) -> None:
        if "streamer" in self.kwargs:
            self.kwargs = {**self.kwargs, "streamer": proxy}
        else:
            position = _STREAMER_POSITION
            self.args = (*self.args[:position], proxy, *self.args[position + 1 :])

    def _adopt_tokenization(
        self, pipeline: Pipeline, context: Any, streamer: Any, kwargs: dict[str, Any]
    ) -> Any:
        before = take_tokenization(pipeline.telemetry.key(context))
        if before is not None:
            self.info.tokenize_ns = before.duration_ns
            self.info.operation = "chat" if before.chat else "text_completion"
        known = kwargs.get("tokenizer")
        if known is None:
            known = getattr(streamer, "tokenizer", None)
        if known is None and before is not None and before.tokenizer is not None:
            known = before.tokenizer()
        return known

    def _read_cache(self, kwargs: dict[str, Any]) -> None:
        for name in CACHE_NAMES:
            if kwargs.get(name) is not None:
                self.info.input_tokens_cached = cached_tokens(kwargs[name]) or None

    def prepared(self, config: Any, prompt_length: Any) -> None:
        """The config in force and the prompt's length are known."""
        info = self.info
        length = int(prompt_length) if isinstance(prompt_length, int) else None
        info.prompt_length = length
        info.strategy = strategy_of(config, self.kwargs)
        info.parameters = parameters_of(config, length, stream=info.stream is not None)
        info.eos_token_ids = stop_ids(config)
        info.pad_token_id = pad_id(config)
        info.max_length = max_length(config)
        info.cache_implementation = getattr(config, "cache_implementation", None)
        if self.running is not None and self.running.recorder.lengths is not None:
            self.running.recorder.lengths.append((0, length or 0))

    def end(self, result: Any, error: BaseException | None) -> None:
        """Read what the request left and hand it over."""
        running = self.running
        if running is None:
            return
        running.ended()
        try:
            guard.call("reading a request's result", self._read, result, error)
        finally:
            running.close(error)

    def _read(self, result: Any, error: BaseException | None) -> None:
        info, recorder = self.info, self.running.recorder  # type: ignore[union-attr]
        read_input(info, self.tensor, self.mask)
        # Of an interrupted batch the ids so far tell which rows had ended; of a single row the
        # marks are nearer to the truth, as a streamer may have failed on a token just chosen.
        interrupted = recorder.ids if (info.batch_size or 2) > 1 else None
        rows = read_output(info, result if error is None else interrupted)
        info.kv_cache_bytes = cache_bytes(recorder.cache)
        info.cache_implementation = info.cache_implementation or cache_kind(recorder.cache)
        info.compiled = recorder.compiled or _is_compiled(self.model)
        if _compiled_graphs() != self._graphs:
            info.cold_reasons = (*info.cold_reasons, "compilation")
        memory.after(info, self._device, self._memory)
        if self._content and self.tokenizer is not None:
            info.input_text = texts_of(self.tokenizer, self.tensor)
            info.output_text = texts_of(self.tokenizer, rows)


_STREAMER_POSITION = 7


def _by_name(wrapped: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by name; the first eight positions are the same in every release."""
    if not args:
        return kwargs
    names = _parameter_names(getattr(wrapped, "__func__", wrapped))
    return {**dict(zip(names, args, strict=False)), **kwargs}


@cache
def _pretrained_model() -> type:
    """Return the class whose calls are seen."""
    from transformers.modeling_utils import PreTrainedModel

    return PreTrainedModel  # type: ignore[no-any-return]


@cache
def _parameter_names(function: Any) -> tuple[str, ...]:
    return tuple(name for name in inspect.signature(function).parameters if name != "self")


class _Override:
    """A generation config with ``generate()``'s own arguments over it."""

    def __init__(self, config: Any, kwargs: dict[str, Any]) -> None:
        self._config, self._kwargs = config, kwargs

    def __getattr__(self, name: str) -> Any:
        if name in self._kwargs:
            return self._kwargs[name]
        return getattr(self._config, name, None)


def _is_compiled(model: Any) -> bool:
    """Whether the user compiled the model or its forward."""
    forward = vars(model).get("forward")
    return getattr(model, "_compiled_call_impl", None) is not None or hasattr(
        forward, "_torchdynamo_orig_callable"
    )


def _compiled_graphs() -> int:
    """Return how many graphs dynamo has compiled in this process so far."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return 0
    return int(dynamo.counters["stats"].get("unique_graphs", 0))

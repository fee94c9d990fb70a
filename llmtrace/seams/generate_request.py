"""One ``generate()`` call under way: what it was given, what it left."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from llmtrace.guard import guard
from llmtrace.known_findings import CACHED_TOKENS_UNKNOWN
from llmtrace.recording.block import block_attributes, block_start
from llmtrace.recording.pipeline import Pipeline
from llmtrace.recording.request import RequestInfo
from llmtrace.recording.running import RunningRequest, start_request
from llmtrace.seams import accelerator
from llmtrace.seams.decoding_loops import Loops
from llmtrace.seams.device_map import several_cuda_devices
from llmtrace.seams.event_loop import other_tasks
from llmtrace.seams.generation_config import parameters_of, strategy_of
from llmtrace.seams.imported import imported
from llmtrace.seams.inputs import device_of, read_input, read_prompt
from llmtrace.seams.kv_cache import (
    CACHE_NAMES,
    cache_bytes,
    cache_kind,
    cached_tokens,
)
from llmtrace.seams.model_cost import read_cost
from llmtrace.seams.model_facts import cold_before, model_facts
from llmtrace.seams.ranks import read_ranks
from llmtrace.seams.streamers import (
    StreamerProxy,
    context_of,
    is_proxied,
    observe,
    place_of,
)
from llmtrace.seams.tokenizers import take_tokenization, texts_of
from llmtrace.timing.host import WallAnchor

_SEVERAL_TOKENS_A_STEP = frozenset({"assisted", "prompt_lookup"})
_ONE_TOKEN_A_STEP = frozenset({"greedy", "sample", "contrastive", "dola"})


class GenerateRequest:
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
        self.looping = False
        """Whether a decoding loop of this request is running."""
        self._loops = Loops()
        self._names, arguments = _by_name(wrapped, args, kwargs)
        self._criteria_given = bool(arguments.get("stopping_criteria"))
        self.prompt = read_prompt(model, args, kwargs)
        streamer = arguments.get("streamer")
        context = None
        if streamer is not None and pipeline.telemetry.here() is None:
            context = context_of(streamer)
        self.info = info = RequestInfo(model=model_facts(model))
        self._config = _Override(_config_of(model, arguments), kwargs)
        info.strategy = strategy_of(self._config, kwargs)
        info.queued_since_ns = block_start()
        info.attributes = block_attributes()
        self.tokenizer = self._adopt_tokenization(pipeline, context, streamer, kwargs)
        if info.strategy != "continuous":  # its rows are requests of their own, and they pay
            info.cold_reasons = cold_before(model, info.model.quantization)
        info.loop_tasks = other_tasks()
        self._cached = self._read_cache(kwargs)
        device = device_of(model, self.prompt.tensor)
        info.device = str(device)
        info.devices = several_cuda_devices(model)
        read_ranks(info, model, tuple(getattr(self.prompt.tensor, "shape", ())))
        self._content = pipeline.config.content in {"span_only", "span_and_event"}
        self._device = device
        self._memory = accelerator.memory_before(device, info.devices)
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
        if streamer is not None and not is_proxied(streamer):
            times = observe(streamer)
            self.info.stream = times
            self._replace_streamer(StreamerProxy(streamer, recorder, times))

    def _replace_streamer(self, proxy: Any) -> None:
        if "streamer" in self.kwargs:
            self.kwargs = {**self.kwargs, "streamer": proxy}
        else:
            position = self._names.index("streamer")
            self.args = (*self.args[:position], proxy, *self.args[position + 1 :])

    def _adopt_tokenization(
        self, pipeline: Pipeline, context: Any, streamer: Any, kwargs: dict[str, Any]
    ) -> Any:
        before = take_tokenization(pipeline.telemetry.key(context), self.prompt.tensor)
        if before is None and (place := place_of(streamer)) is not None:
            before = take_tokenization(place, self.prompt.tensor)
        if before is not None:
            self.info.tokenize_ns = before.duration_ns
            self.info.tokenize_begun_ns = before.begun_ns
            self.info.operation = "chat" if before.chat else "text_completion"
        known = kwargs.get("tokenizer")
        if known is None:
            known = getattr(streamer, "tokenizer", None)
        if known is None and before is not None and before.tokenizer is not None:
            known = before.tokenizer()
        return known

    def _read_cache(self, kwargs: dict[str, Any]) -> int:
        """Return how many tokens of each row the cache handed in holds."""
        cache = next((kwargs[n] for n in CACHE_NAMES if kwargs.get(n) is not None), None)
        held = cached_tokens(cache)
        if held is None:
            self.info.findings.append(CACHED_TOKENS_UNKNOWN)
        return held or 0

    def decodes(self, model: Any) -> bool:
        """Whether *model* is the one whose loop is running."""
        return self.running is not None and self.running.recorder.model is model

    def enter(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A ``generate()`` begins that does a part of this request's work."""
        self._loops.depth += 1
        self._criteria_given = self._criteria_given or bool(kwargs.get("stopping_criteria"))
        if model is self.model or self.info.loops:
            return
        # A model made of several: the one that decodes is given what counts as the prompt.
        prompt = read_prompt(model, args, kwargs)
        if prompt.counts_tokens:
            self.prompt = prompt

    def leave(self, result: Any) -> None:
        """It has returned, or failed: then *result* is None."""
        if self.looping and self._loops.at_depth():
            self.looping = False
            self._loops.ended(self.info, self.running.recorder, result)  # type: ignore[union-attr]
        self._loops.depth -= 1

    def prepared(self, model: Any, config: Any, prompt_length: Any) -> None:
        """A loop begins: the config in force and the prompt's length are known."""
        info, recorder = self.info, self.running.recorder  # type: ignore[union-attr]
        self.looping = True
        length = prompt_length if isinstance(prompt_length, int) else None
        self._loops.begun(info, recorder, config, length)
        strategy = strategy_of(config, self.kwargs)
        if info.loops == 1:
            info.strategy = strategy
            info.parameters = parameters_of(config, length, stream=info.stream is not None)
            info.cache_implementation = getattr(config, "cache_implementation", None)
        recorder.verdicts = [] if self._rows_end_unseen(config, strategy) else None
        if strategy in _SEVERAL_TOKENS_A_STEP:
            self._loops.count_lengths(recorder, length or 0)
        if model is not recorder.model:
            recorder.model = model
            recorder.sees_forwards = isinstance(model, _pretrained_model())

    def _rows_end_unseen(self, config: Any, strategy: str) -> bool:
        """Whether a row may end by what its ids do not show, while others go on."""
        shape = getattr(self.prompt.tensor, "shape", None) or (0,)
        several = int(shape[0]) != 1
        several = several or (getattr(config, "num_return_sequences", None) or 1) > 1
        asked = self._criteria_given or bool(getattr(config, "stop_strings", None))
        return several and asked and strategy in _ONE_TOKEN_A_STEP

    def end(self, result: Any, error: BaseException | None) -> None:
        """Read what the request left and hand it over."""
        running = self.running
        if running is None:
            return
        running.ended()
        if self.info.strategy == "continuous" and error is None:
            running.close_as_group(None)
            return
        try:
            guard.call("reading a request's result", self._read, result, error)
        finally:
            running.close(error)

    def _read(self, result: Any, error: BaseException | None) -> None:
        info, recorder = self.info, self.running.recorder  # type: ignore[union-attr]
        read_input(info, self.prompt, self._cached)
        if error is not None:
            self._loops.interrupted(info, recorder)
        elif self.looping:
            self._loops.ended(info, recorder, result)
        elif not info.loops:
            self._loops.never_seen(info, self._config, self.prompt.tensor, result)
        rows = self._loops.sum_up(info, failed=error is not None)
        info.kv_cache_bytes = cache_bytes(recorder.cache)
        info.cache_implementation = info.cache_implementation or cache_kind(recorder.cache)
        info.compiled = recorder.compiled or _is_compiled(self.model)
        if _compiled_graphs() != self._graphs:
            info.cold_reasons = (*info.cold_reasons, "compilation")
        read_cost(info, self.model, recorder.cache, self._device)
        # Growth is what a request leaves behind, so nothing of it may be kept here.
        recorder.cache = recorder.ids = None
        accelerator.memory_after(info, self._memory)
        if self._content and self.tokenizer is not None:
            info.input_text = texts_of(self.tokenizer, self.prompt.tensor)
            info.output_text = texts_of(self.tokenizer, rows)


def _by_name(
    wrapped: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the names of the positions, and the arguments by name."""
    if not args:
        return (), kwargs
    names = _parameter_names(getattr(wrapped, "__func__", wrapped))
    return names, {**dict(zip(names, args, strict=False)), **kwargs}


@cache
def _pretrained_model() -> type:
    """Return the class whose calls are seen."""
    from transformers.modeling_utils import PreTrainedModel

    return PreTrainedModel  # type: ignore[no-any-return]


@cache
def _parameter_names(function: Any) -> tuple[str, ...]:
    return tuple(name for name in inspect.signature(function).parameters if name != "self")


def _config_of(model: Any, arguments: dict[str, Any]) -> Any:
    config = arguments.get("generation_config")
    return getattr(model, "generation_config", None) if config is None else config


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
    dynamo = imported("torch._dynamo.utils")
    if dynamo is None:
        return 0
    return int(dynamo.counters["stats"].get("unique_graphs", 0))

"""What an own decode loop's model and first call tell."""

from __future__ import annotations

from typing import Any

from llmtrace.recording.request import RequestInfo
from llmtrace.recording.running import RunningRequest
from llmtrace.seams.inputs import Prompt, read_input
from llmtrace.seams.kv_cache import cache_bytes, cache_kind
from llmtrace.seams.model_cost import read_cost
from llmtrace.seams.model_facts import cold_before, model_facts


def recorded_model(model: Any) -> Any:
    """Return the transformers model inside what a compiler or PEFT made of it."""
    for unwrap in ("_orig_mod", "get_base_model"):
        inner = getattr(model, unwrap, None)
        if inner is not None:
            model = inner() if callable(inner) and unwrap == "get_base_model" else inner
    return model


def read_own_loop(info: RequestInfo, running: RunningRequest) -> None:
    """Fill in *info* once the loop is over."""
    recorder = running.recorder
    model = recorder.model
    if model is None:
        return
    info.model = model_facts(model)
    info.device = str(getattr(model, "device", "cpu"))
    if recorder.first_call is not None and info.input_tokens_per_row is None:
        args, kwargs = recorder.first_call
        ids = args[0] if args else kwargs.get("input_ids", kwargs.get("inputs_embeds"))
        read_input(info, Prompt(ids, kwargs.get("attention_mask"), counts_tokens=True))
    info.cold_reasons = cold_before(model, info.model.quantization)
    info.kv_cache_bytes = cache_bytes(recorder.cache)
    info.cache_implementation = cache_kind(recorder.cache)
    read_cost(info, model, recorder.cache, getattr(model, "device", None))

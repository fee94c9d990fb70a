"""What is true of a model at the time of a request."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any
from weakref import WeakSet

from llmtrace.records import ModelFacts

_warm: WeakSet[Any] = WeakSet()


def model_facts(model: Any) -> ModelFacts:
    """Return the facts of *model*, which may have been cast or changed since last time."""
    config = getattr(model, "config", None)
    return ModelFacts(
        name=model_name(model, config),
        dtype=dtype_of(model),
        quantization=_quantization(config),
        attn_implementation=getattr(config, "_attn_implementation", None),
    )


def cold_before(model: Any, quantization: str | None) -> tuple[str, ...]:
    """Return what a request of *model* is about to pay for once, as far as it can be foreseen."""
    reasons = []
    if model not in _warm:
        _warm.add(model)
        reasons.append("first_request")
        if quantization in _BITSANDBYTES and _not_set_up(model):
            reasons.append("quantization_setup")
    return tuple(reasons)


_BITSANDBYTES = frozenset({"8bit", "4bit", "nf4", "fp4"})


def _not_set_up(model: Any) -> bool:
    """Whether bitsandbytes has still to prepare a linear layer, at its first call."""
    for module in model.modules():
        if hasattr(module, "compute_type_is_set"):  # 4 bits
            return not module.compute_type_is_set
        if hasattr(getattr(module, "weight", None), "SCB"):  # 8 bits
            return module.state.CB is None
    return False


def model_name(model: Any, config: Any) -> str:
    """Return the model's name; a local folder goes by its last path component."""
    name = getattr(config, "_name_or_path", "") or getattr(model, "name_or_path", "")
    if not name:
        return str(getattr(config, "model_type", "") or type(model).__name__)
    return _short(str(name))


@lru_cache(maxsize=256)
def _short(name: str) -> str:
    """Return a hub's name as it is, a local folder by its last path component."""
    if os.path.isabs(name) or name.startswith(("./", "../")) or os.path.isdir(name):  # noqa: PTH112,PTH117
        return os.path.basename(os.path.normpath(name))  # noqa: PTH119
    return name


def dtype_of(model: Any) -> str | None:
    """Return the name of a model's type of numbers, without torch's prefix."""
    dtype = getattr(model, "dtype", None)
    return None if dtype is None else str(dtype).removeprefix("torch.")


def _quantization(config: Any) -> str | None:
    """Return how the weights are stored: ``8bit``, ``nf4``, ``fp4``, or the method's name."""
    quantization = getattr(config, "quantization_config", None)
    if quantization is None:
        return None
    read = quantization.get if isinstance(quantization, dict) else _attribute_of(quantization)
    if read("load_in_8bit"):
        return "8bit"
    if read("load_in_4bit"):
        return str(read("bnb_4bit_quant_type") or "4bit")
    method = read("quant_method")
    method = getattr(method, "value", method)
    # A GGUF file's tensors are dequantized while they are loaded.
    if method is None or method == "gguf":
        return None
    return str(method)


def _attribute_of(holder: Any) -> Any:
    return lambda name: getattr(holder, name, None)

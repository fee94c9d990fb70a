"""What a pass of a model needs: bytes of weights to read, weights to multiply with.

Only for models that decode text alone and use all their weights for each token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from llmtrace.recording.request import RequestInfo
from llmtrace.recording.utilization import ModelCost
from llmtrace.seams.accelerator import device_name
from llmtrace.seams.kv_cache import kv_layers
from llmtrace.seams.model_facts import dtype_of

_OTHER_KINDS = (
    "vision_config", "audio_config", "speech_config", "is_encoder_decoder",
    "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts",
)  # fmt: skip
"""Parts of a config that say: not every weight is used for every token, or not only text is."""

_costs: WeakKeyDictionary[Any, tuple[Any, ModelCost | None]] = WeakKeyDictionary()


def read_cost(info: RequestInfo, model: Any, cache: Any, device: Any) -> None:
    """Note what a pass of *model* needs, and the device that it ran on."""
    info.device_name = device_name(device)
    info.cost = model_cost(model, info.model.quantization)
    if info.cost is not None and device is not None:
        info.kv_layers = kv_layers(cache, device)


def model_cost(model: Any, quantization: str | None) -> ModelCost | None:
    """Return what a pass of *model* needs, or None if that cannot be told from its parts."""
    key = (getattr(model, "dtype", None), quantization)
    known = _costs.get(model)
    if known is None or known[0] != key:
        known = (key, _cost(model, quantization))
        _costs[model] = known
    return known[1]


def _cost(model: Any, quantization: str | None) -> ModelCost | None:
    config = getattr(model, "config", None)
    heads, hidden = (getattr(config, n, None) for n in ("num_attention_heads", "hidden_size"))
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is None or not isinstance(heads, int) or not isinstance(hidden, int):
        return None
    if any(getattr(config, name, None) for name in _OTHER_KINDS) or _offloaded(model):
        return None
    ranks = getattr(model, "tp_size", None) or 1
    width = heads * (getattr(config, "head_dim", None) or hidden // heads)
    return ModelCost(
        weight_bytes=_bytes_read(model, head),
        linear_weights=sum(_weights(m) for m in model.modules() if m is not head) // ranks,
        output_weights=_weights(head) // ranks,
        attention_width=width // ranks,
        operand="int8" if quantization == "8bit" else dtype_of(model),
    )


def _offloaded(model: Any) -> bool:
    """Whether weights come from somewhere that is not the device's memory."""
    places = getattr(model, "hf_device_map", None) or {}
    return any(str(place) in {"cpu", "disk"} for place in places.values())


def _bytes_read(model: Any, head: Any) -> int:
    """Return the bytes of all weights but those of an input embedding that is only looked up."""
    embedding = getattr(model.get_input_embeddings(), "weight", None)
    tied = embedding is getattr(head, "weight", None)
    total = 0
    for tensor in (*model.parameters(), *_stored_buffers(model)):
        if tensor is not embedding or tied:
            total += sum(_bytes(part) for part in (tensor, *_scales(tensor)))
    return total


def _stored_buffers(model: Any) -> Iterator[Any]:
    """Yield buffers that are saved with the model: some quantized weights are."""
    for module in model.modules():
        passing = getattr(module, "_non_persistent_buffers_set", ())
        yield from (b for name, b in module.named_buffers(recurse=False) if name not in passing)


def _scales(weight: Any) -> Iterator[Any]:
    """Yield the tensors that bitsandbytes keeps beside a quantized weight."""
    row_scales = getattr(weight, "SCB", None)
    if row_scales is not None:
        yield row_scales
    state = getattr(weight, "quant_state", None)
    if state is not None:
        yield state.absmax
        nested = getattr(state, "state2", None)
        if nested is not None:
            yield nested.absmax


def _bytes(tensor: Any) -> int:
    local = getattr(tensor, "_local_tensor", tensor)  # of a tensor spread over ranks, this one's
    return int(local.numel() * local.element_size())


def _weights(module: Any) -> int:
    """Return the weights of a linear layer, however they are stored; 0 for other modules."""
    if hasattr(module, "base_layer"):  # an adapter around a layer that is counted by itself
        return 0
    sizes = (getattr(module, "in_features", None), getattr(module, "out_features", None))
    if not all(isinstance(size, int) for size in sizes):
        sizes = (getattr(module, "nx", None), getattr(module, "nf", None))  # GPT-2's
    if not all(isinstance(size, int) for size in sizes):
        return 0
    return sizes[0] * sizes[1]  # type: ignore[no-any-return, operator]

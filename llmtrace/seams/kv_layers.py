"""What each layer of a KV cache holds, in every release: shapes and sizes, never values.

Shapes, element sizes and the sizes of storages are known on the host: nothing here waits for a
device, and nothing is changed. A static cache's length in use is known to the device alone and
is not asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from llmtrace.seams.kv_cache import CACHE_NAMES


@dataclass(frozen=True, slots=True)
class KvLayer:
    """One layer of a cache at one moment."""

    kind: str
    """``full``, ``sliding``, ``static``, ``static_sliding``, ``quantized``, ``empty``: nothing yet,
    or ``other``: a layer that is made to hold no keys and values, as a state-space model's."""
    keys: tuple[int, ...] | None
    """``[rows, kv_heads, tokens, head_dim]``; of a quantized layer as if it were not packed."""
    values: tuple[int, ...] | None
    tokens: int
    """Length of what is held: of a static layer its capacity."""
    size: int
    """Bytes of the tensors, scales of quantized ones included."""
    held: int
    """Bytes of the storages under them: more where a tensor is a part of a larger one."""
    dtype: str | None = None
    device: str | None = None
    element_size: int = 0
    """Bytes of one number that is not packed."""
    capacity: int | None = None
    """What a static layer says that it holds at most."""
    window: int | None = None
    packed: int | None = None
    """Bytes of packed numbers of a quantized layer, without their scales."""
    residual: int | None = None
    """Tokens that a quantized layer holds unpacked."""
    bits: int | None = None
    """Of a packed number, where the layer tells."""


def current_cache(model: Any, arguments: dict[str, Any]) -> Any:
    """Return the cache after a step: from what the next step is called with.

    4.38 to 4.40 keep a static one in the model's layers instead, one object for each.
    """
    for name in CACHE_NAMES:
        if arguments.get(name) is not None:
            return arguments[name]
    kept = [getattr(module, "past_key_value", None) for module in model.modules()]
    return [cache for cache in kept if cache is not None] or None


def is_offloaded(cache: Any) -> bool:
    """Return whether the cache's layers change between device and host."""
    return "offload" in type(cache).__name__.lower() or getattr(cache, "offloading", False) is True


def look(cache: Any) -> tuple[KvLayer, ...]:
    """Return what each layer of *cache* holds.

    Raises:
        TypeError: It is the cache of an encoder and a decoder.
    """
    if hasattr(cache, "cross_attention_cache"):
        raise TypeError("an encoder's and a decoder's cache")
    if isinstance(cache, list):  # 4.38 to 4.40, static: a cache for each layer
        return tuple(_whole(one) for one in cache)
    if isinstance(cache, tuple):
        return tuple(_plain(layer[0], layer[1], None) for layer in cache)
    if hasattr(cache, "_quantized_key_cache"):
        return tuple(_old_quantized(cache))
    # ``layers`` before ``key_cache``: 4.54 and 4.55 have both, and warn about the latter.
    if hasattr(cache, "layers"):
        processor = getattr(cache, "cache_processor", None)  # 4.54 and 4.55
        packed = getattr(processor, "_quantized_keys", None)
        if packed is not None:
            return tuple(_processed(cache.layers, processor))
        return tuple(_layer(layer) for layer in cache.layers)
    if hasattr(cache, "key_cache"):
        pairs = zip_longest(cache.key_cache, cache.value_cache)
        return tuple(
            _plain(keys, values, cache, slides=_slides(cache, index, keys))
            for index, (keys, values) in enumerate(pairs)
        )
    return ()


def _whole(cache: Any) -> KvLayer:
    return _plain(cache.key_cache, cache.value_cache, cache)


def _layer(layer: Any) -> KvLayer:
    """Return the view of one layer object, 4.54 and later."""
    keys, values = (
        getattr(layer, "_quantized_keys", None),
        getattr(layer, "_quantized_values", None),
    )
    if keys is not None:
        return _quantized(keys, values, layer.keys, layer.values, layer)
    if not hasattr(layer, "keys") or type(layer).__name__ == "DummyLayer":
        return KvLayer("other", None, None, 0, *_sizes(_tensors(vars(layer).values())))
    return _plain(layer.keys, layer.values, layer)


def _slides(cache: Any, index: int, keys: Any) -> bool:
    """Return whether this layer of a hybrid cache (4.42 to 4.55) has a window."""
    told = getattr(cache, "is_sliding", None)
    if isinstance(told, list):
        return bool(told[index])
    # Up to 4.52 it is told by a tensor on the device, which is not waited for.
    hybrid = "Hybrid" in type(cache).__name__ and hasattr(keys, "shape")
    return hybrid and keys.shape[-2] < cache.max_cache_len


def _plain(keys: Any, values: Any, owner: Any, *, slides: bool = False) -> KvLayer:
    """Return the view of two tensors; *owner* tells whether they are of fixed size."""
    if not hasattr(keys, "element_size") or not hasattr(values, "element_size"):
        # Lists stand for layers that are passed over (4.45 to 4.53).
        return KvLayer("empty" if keys is None else "other", None, None, 0, 0, 0)
    capacity = getattr(owner, "max_cache_len", None)
    window = getattr(owner, "sliding_window", None)
    sliding = slides or isinstance(window, int) or "Sliding" in type(owner).__name__
    static = isinstance(capacity, int)
    kind = ("static_sliding" if sliding else "static") if static else None
    size, held = _sizes((keys, values))
    return KvLayer(
        kind=kind or ("sliding" if sliding else "full"),
        keys=tuple(keys.shape),
        values=tuple(values.shape),
        tokens=_tokens(keys),
        size=size,
        held=held,
        **_where(keys, values),
        capacity=capacity if static else None,
        window=window if isinstance(window, int) else None,
    )


def _where(*tensors: Any) -> dict[str, Any]:
    """Return type and device of tensors, or the types and devices where they differ."""
    return {
        "dtype": " and ".join(sorted({str(t.dtype).removeprefix("torch.") for t in tensors})),
        "device": " and ".join(sorted({str(t.device) for t in tensors})),
        "element_size": tensors[0].element_size(),
    }


def _tokens(tensor: Any) -> int:
    return int(tensor.shape[-2]) if tensor.dim() > 1 and tensor.numel() else 0


def _old_quantized(cache: Any) -> Iterator[KvLayer]:
    """Yield the layers of a quantized cache, 4.42 to 4.53."""
    for parts in zip(
        cache._quantized_key_cache,  # noqa: SLF001 - they are nowhere else
        cache._quantized_value_cache,  # noqa: SLF001
        cache.key_cache,
        cache.value_cache,
        strict=True,
    ):
        yield _quantized(*parts, cache)


def _processed(layers: Iterable[Any], processor: Any) -> Iterator[KvLayer]:
    """Yield the layers of a quantized cache, 4.54 and 4.55."""
    packed = processor._quantized_keys, processor._quantized_values  # noqa: SLF001
    for keys, values, layer in zip(*packed, layers, strict=False):
        yield _quantized(keys, values, layer.keys, layer.values, processor)


def _quantized(keys: Any, values: Any, rest_keys: Any, rest_values: Any, owner: Any) -> KvLayer:
    """Return the view of packed keys and values and of those that are not packed yet."""
    shape, packed_tokens = _packed_shape(keys)
    residual = _tokens(rest_keys)
    rests = [rest_keys, rest_values]
    inner = list(_tensors((keys, values)))
    size, held = _sizes([*inner, *rests])
    whole = None if shape is None else (*shape[:-2], packed_tokens + residual, shape[-1])
    # The numbers are the greatest of a side's tensors, the scales the others.
    packed = sum(max(map(_bytes, _tensors((side,))), default=0) for side in (keys, values))
    bits = getattr(owner, "nbits", None)
    if bits is None and inner and inner[0].element_size() == 1:
        bits = 8
    return KvLayer(
        kind="quantized",
        keys=whole,
        values=whole,
        tokens=packed_tokens + residual,
        size=size,
        held=held,
        **_where(*rests),
        packed=packed,
        residual=residual,
        bits=bits if isinstance(bits, int) else None,
    )


def _packed_shape(packed: Any) -> tuple[tuple[int, ...] | None, int]:
    """Return the shape that packed numbers stand for, and its tokens."""
    if isinstance(packed, tuple):
        tensor, about = packed[0], packed[1]
        shape = about["shape"] if isinstance(about, dict) and "shape" in about else tensor.shape
    else:
        shape = packed.shape
    return tuple(int(n) for n in shape), int(shape[-2])


def _tensors(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the plain tensors in nested tuples, dicts, and tensors made of tensors."""
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())
        elif hasattr(value, "element_size"):
            flatten = getattr(value, "__tensor_flatten__", None)
            if flatten is None:
                yield value
            else:
                yield from _tensors(getattr(value, name) for name in flatten()[0])


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _sizes(tensors: Iterable[Any]) -> tuple[int, int]:
    """Return the bytes of tensors, and of the storages under them, each counted once."""
    size, storages = 0, {}
    for tensor in tensors:
        size += _bytes(tensor)
        if not hasattr(tensor, "untyped_storage"):  # torch before 2.0
            continue
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return size, sum(storages.values())

"""KV caches of every release: their size in bytes, without touching the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from llmtrace.recording.utilization import KvLayers

CACHE_NAMES = ("past_key_values", "cache", "cache_params")
"""What a model calls its cache: ``cache`` since 5.24, ``cache_params`` for state-space models."""

_DYNAMIC = frozenset({"DynamicCache", "QuantizedCache", "SinkCache"})
"""Classes that know their length on the host, and so do those derived from them."""


def cache_bytes(cache: Any) -> int | None:
    """Return the bytes of a cache's tensors, or None if they are not to be found.

    Of a static cache this is its capacity, of an offloaded one it includes host memory.
    """
    total = sum(t.numel() * t.element_size() for t in _tensors(cache))
    return total or None


def cache_kind(cache: Any) -> str | None:
    """Return the cache's class in the words of ``cache_implementation``."""
    if cache is None:
        return None
    if isinstance(cache, tuple):
        return "legacy_tuple"
    name = type(cache).__name__
    return name.removesuffix("Cache").lower() or name


def kv_layers(cache: Any, device: Any) -> tuple[KvLayers, ...]:
    """Return what a token's keys and values take in each kind of layer.

    Empty where they are not all tensors on *device*: quantized, offloaded, or not attention's.
    """
    # Mostly one kind, told apart by the parts that cost least to ask for: this is a request's time.
    alike: Counter[tuple[Any, ...]] = Counter()
    for held, window in _layers(cache):
        tensors = [t for t in held if hasattr(t, "element_size")]
        alike[(*((t.shape, t.dtype, t.device) for t in tensors), window)] += 1
    kinds: Counter[tuple[float, int | None]] = Counter()
    for (*tensors, window), layers in alike.items():
        if len(tensors) != 2 or any(len(shape) != 4 for shape, _, _ in tensors):  # noqa: PLR2004
            return ()
        if any(d.type != device.type or not shape.numel() for shape, _, d in tensors):
            return ()
        rows, tokens = tensors[0][0][0], tensors[0][0][-2]
        size = sum(shape.numel() * dtype.itemsize for shape, dtype, _ in tensors)
        kinds[size / (rows * tokens), window] += layers
    return tuple(KvLayers(n, n * size, window) for (size, window), n in kinds.items())


def _layers(cache: Any) -> Iterator[tuple[tuple[Any, ...], int | None]]:
    """Yield each layer's keys and values, and its window where one is known."""
    if "quantized" in type(cache).__name__.lower():
        yield (), None
    elif isinstance(cache, tuple):
        yield from ((tuple(layer[:2]), None) for layer in cache)
    elif hasattr(cache, "layers"):
        for layer in cache.layers:
            window = getattr(layer, "sliding_window", None)
            quantized = "quantized" in type(layer).__name__.lower()
            names = () if quantized else ("keys", "values")
            yield tuple(_present(layer, names)), window if isinstance(window, int) else None
    elif hasattr(cache, "key_cache"):
        yield from ((pair, None) for pair in zip(cache.key_cache, cache.value_cache, strict=False))


def cached_tokens(cache: Any) -> int | None:
    """Return how many tokens of a row a cache holds, or None if only a device could tell.

    A static cache answers from the device, which would be waited for: on the CPU that is no wait.
    """
    if cache is None or hasattr(cache, "cross_attention_cache"):
        return 0  # of an encoder's input nothing is cached
    if isinstance(cache, tuple):
        return int(cache[0][0].shape[-2]) if cache else 0
    known = any(cls.__name__ in _DYNAMIC for cls in type(cache).__mro__)
    if not known and any(t.device.type != "cpu" for t in _tensors(cache)):
        return None
    try:
        return int(cache.get_seq_length())
    except (AttributeError, TypeError, ValueError):  # a state-space model's has no length
        return None


def _tensors(cache: Any) -> Iterator[Any]:
    for part in ("self_attention_cache", "cross_attention_cache"):
        inner = getattr(cache, part, None)
        if inner is not None:
            yield from _tensors(inner)
    if isinstance(cache, tuple):
        yield from (t for layer in cache for t in layer if hasattr(t, "element_size"))
    # ``layers`` before ``key_cache``: 4.54 and 4.55 have both, and warn about the latter.
    elif hasattr(cache, "layers"):
        for layer in cache.layers:
            yield from _present(layer, ("keys", "values"))
    elif hasattr(cache, "key_cache"):
        for tensors in (cache.key_cache, cache.value_cache):
            yield from (t for t in tensors if hasattr(t, "element_size"))


def _present(layer: Any, names: tuple[str, ...]) -> Iterator[Any]:
    for name in names:
        tensor = getattr(layer, name, None)
        if hasattr(tensor, "element_size"):
            yield tensor

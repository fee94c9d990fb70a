"""KV caches of every release: their size in bytes, without touching the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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

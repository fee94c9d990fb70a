"""What a layer is due to hold, worked out from the model and the tokens alone.

Bytes of a layer are ``2 x kv_heads x head_dim x tokens x element_size x rows``: heads of keys and
values, not of queries, where several queries share one.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmtrace.bench.kv.geometry import Geometry
from llmtrace.seams.kv_layers import KvLayer

GROUP = 64
"""Packed numbers that share a scale and a shift: transformers' default of both libraries."""


@dataclass(frozen=True, slots=True)
class Due:
    """What one layer is due to hold; None where nothing can be said."""

    tokens: int | None
    shape: tuple[int, ...] | None
    size: int | None


NOTHING = Due(None, None, None)


def due(layer: KvLayer, needs: Geometry, tokens: int, rows: int = 1) -> Due:
    """Return what *layer* is due after *tokens* tokens of each row have been run.

    A layer of fixed size is due its capacity, one with a window at most the window, less one
    where it grows: the token that comes is in the window too.
    """
    if layer.kind == "other":
        return NOTHING
    held = _tokens(layer, needs, tokens)
    if needs.kv_heads is None or needs.head_dim is None or needs.token_bytes is None:
        return Due(held, None, None)
    shape = (rows, needs.kv_heads, held, needs.head_dim)
    if layer.kind == "quantized":
        return Due(held, shape, _quantized(layer, needs, held, rows))
    return Due(held, shape, needs.token_bytes * held * rows)


def _tokens(layer: KvLayer, needs: Geometry, tokens: int) -> int:
    window = layer.window or needs.window
    if layer.kind == "static":
        return layer.capacity or tokens
    if layer.kind == "static_sliding":
        capacity = layer.capacity or tokens
        return min(capacity, window or capacity)
    if layer.kind == "sliding" and window is not None:
        return min(tokens, window - 1)
    return tokens


def _quantized(layer: KvLayer, needs: Geometry, held: int, rows: int) -> int | None:
    """Return packed numbers with a scale and a shift for each group, and the unpacked rest."""
    if layer.bits is None or needs.token_bytes is None:
        return None
    residual = layer.residual or 0
    numbers = needs.token_bytes // needs.element_size * rows * (held - residual)
    scales = 2 * needs.element_size * numbers // GROUP if layer.bits < 8 else 0  # noqa: PLR2004
    return numbers * layer.bits // 8 + scales + needs.token_bytes * residual * rows

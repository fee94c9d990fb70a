"""How much of a device's peak a request used: MBU and MFU.

Both count what the algorithm needs at least, not what the kernels did: weights once a step,
keys and values of the tokens so far once a step, attention among the tokens that see each other,
logits of the last position only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class KvLayers(NamedTuple):
    """Layers whose caches are alike."""

    layers: int
    bytes_per_token: float
    """Keys and values of one token of one row, in all these layers."""
    window: int | None
    """Tokens at most that a step looks back on; None for all."""


@dataclass(frozen=True, slots=True)
class ModelCost:
    """What one pass of a decoder-only model needs, whatever the request."""

    weight_bytes: int
    """Bytes of the weights that a decode step reads: an input embedding that is only looked up
    is not among them; scales and tables of quantized weights are."""
    linear_weights: int
    """Weights that each token is multiplied with, those that make the logits left out."""
    output_weights: int
    """Weights that make one position's logits."""
    attention_width: int
    """Query heads times their width."""
    operand: str | None
    """The type of the matrix products' operands: a torch name or ``int8``."""


class Row(NamedTuple):
    """One sequence of a request."""

    prompt: int
    """Tokens before the first generated one."""
    cached: int
    """Those of them that were in the cache already."""
    generated: int


def decode_bytes(cost: ModelCost, kv: Sequence[KvLayers], rows: Sequence[Row]) -> float | None:
    """Return the bytes that a decode step must read, averaged over a request's decode steps.

    Formula:
        ``weights + sum over rows and layers of (tokens so far, within the window) x (bytes of a
        token's keys and values)``
    """
    steps = max((row.generated for row in rows), default=0) - 1
    if steps < 1 or not kv:
        return None
    held = 0.0
    for layers in kv:
        tokens = sum(_tokens_read(row, layers.window) for row in rows)
        held += layers.bytes_per_token * tokens
    return cost.weight_bytes + held / steps


def _tokens_read(row: Row, window: int | None) -> float:
    """Return the cached tokens that a row's decode steps look at, all steps together."""
    first, last = row.prompt + 1, row.prompt + row.generated - 1
    if last < first:
        return 0
    if window is None or last <= window:
        return (first + last) * (last - first + 1) / 2
    if first >= window:
        return float(window * (last - first + 1))
    return (first + window) * (window - first + 1) / 2 + window * (last - window)


def prefill_flops(cost: ModelCost, kv: Sequence[KvLayers], rows: Sequence[Row]) -> float:
    """Return the floating-point operations that a prefill needs.

    Formula:
        ``2 x linear weights x tokens + 2 x width x (tokens seen twice) per layer
        + 2 x output weights``, for each row, where causal attention makes the tokens seen twice
        ``prompt^2 - cached^2`` without a window.
    """
    total = 0.0
    for row in rows:
        total += 2.0 * cost.linear_weights * (row.prompt - row.cached) + 2.0 * cost.output_weights
        for layers in kv:
            pairs = _pairs(row.prompt, layers.window) - _pairs(row.cached, layers.window)
            total += 2.0 * layers.layers * cost.attention_width * pairs
    return total


def _pairs(tokens: int, window: int | None) -> int:
    """Return twice the pairs of tokens of which one sees the other."""
    if window is None or tokens <= window:
        return tokens * tokens
    return 2 * tokens * window - window * window

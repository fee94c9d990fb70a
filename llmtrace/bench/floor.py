"""What a decode step takes at least: the bytes it must read, at the device's peak bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from llmtrace import config
from llmtrace.bench.models import Subject
from llmtrace.bench.prompts import random_ids
from llmtrace.bench.settings import Generation
from llmtrace.hardware import parse_peaks, peaks_of
from llmtrace.recording.utilization import KvLayers
from llmtrace.seams.accelerator import device_name
from llmtrace.seams.kv_cache import CACHE_NAMES, kv_layers
from llmtrace.seams.model_cost import model_cost
from llmtrace.seams.model_facts import model_facts

FORMULA = "(bytes of the weights + bytes of keys and values of the tokens so far) / peak bandwidth"
_WHOLE = frozenset({"dynamic", "static"})
"""Caches whose keys and values lie on the device as they are."""


@dataclass(frozen=True, slots=True)
class Floor:
    """The least that a decode step of one row reads."""

    weight_bytes: int
    kv: Sequence[KvLayers]
    bandwidth: float | None
    """Bytes per second; None where the device's peak is not known."""

    def bytes_at(self, context: int) -> float:
        """Return the bytes that the step after *context* tokens reads.

        What is counted is as in a record's ``decode_bytes``: of a static cache the tokens it
        holds, not those it has room for.
        """
        held = (
            layers.bytes_per_token * min(context, layers.window or context) for layers in self.kv
        )
        return self.weight_bytes + sum(held)

    def seconds_at(self, context: int) -> float | None:
        """Return the time that reading takes at peak bandwidth."""
        return None if self.bandwidth is None else self.bytes_at(context) / self.bandwidth


def floor_of(subject: Subject, plan: Generation) -> Floor | None:
    """Return the floor of one row; None where it cannot be told from the model and its cache.

    Runs the model once, on two tokens.
    """
    import torch

    facts = model_facts(subject.model)
    cost = model_cost(subject.model, facts.quantization)
    if cost is None or not plan.use_cache or plan.cache not in _WHOLE:
        return None
    made: dict[str, Any] = {}
    # A floor is not worth the figures of a run that has been measured.
    with torch.no_grad(), suppress(RuntimeError, ValueError, TypeError, AttributeError):
        made = dict(subject.model(random_ids(subject, 2, seed=0), use_cache=True))
    cache = next((made[name] for name in CACHE_NAMES if name in made), None)
    layers = () if cache is None else kv_layers(cache, subject.device)
    if not layers:
        return None
    given = config.load().peaks
    peaks = parse_peaks(given) if given else peaks_of(device_name(subject.device))
    return Floor(cost.weight_bytes, layers, None if peaks is None else peaks.bandwidth)

"""What is wrong with a cache: lengths, shapes, growth, places and types of its layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from llmtrace.bench.kv.due import Due
from llmtrace.bench.kv.geometry import Geometry
from llmtrace.bench.kv.steps import Step, Watched
from llmtrace.seams.kv_layers import KvLayer

Case = tuple[int, str, str]
"""A step, what was found after it, and what is due."""
FIXED = frozenset({"static", "static_sliding"})


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that is wrong, in one or more layers."""

    code: str
    """``missing``, ``length``, ``shape``, ``growth``, ``capacity``, ``device`` or ``dtype``."""
    layers: tuple[int, ...]
    first_step: int
    last_step: int
    steps: int
    """In so many it was found."""
    found: str
    due: str
    text: str


def find(watched: Watched) -> list[Anomaly]:
    """Return what is wrong; what was found alike in several layers is one anomaly."""
    seen: dict[tuple[int, str], list[Case]] = {}
    for position, step in enumerate(watched.steps):
        before = watched.steps[position - 1] if position else None
        for layer, code, found, due in of_step(watched, step, before):
            seen.setdefault((layer, code), []).append((step.index, found, due))
    alike: dict[tuple[str, tuple[Case, ...]], list[int]] = {}
    for (layer, code), cases in seen.items():
        alike.setdefault((code, tuple(cases)), []).append(layer)
    return [_anomaly(code, cases, layers) for (code, cases), layers in alike.items()]


def _anomaly(code: str, cases: Sequence[Case], layers: Sequence[int]) -> Anomaly:
    (first, found, due), last = cases[0], cases[-1][0]
    return Anomaly(
        code=code,
        layers=tuple(layers),
        first_step=first,
        last_step=last,
        steps=len(cases),
        found=found,
        due=due,
        text=f"{named(layers)}: {_WORDS[code]}{found} where {due} is due after step {first}"
        + ("" if len(cases) == 1 else f"; wrong in {len(cases)} steps, {first} to {last}"),
    )


_WORDS = {
    "missing": "",
    "length": "",
    "shape": "",
    "growth": "growth of ",
    "capacity": "room for ",
    "device": "on ",
    "dtype": "numbers of type ",
}


def named(layers: Sequence[int]) -> str:
    """Return layers in words, neighbours as a range."""
    parts = []
    for first, last in ranges(layers):
        parts.append(str(first) if first == last else f"{first}-{last}")
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(parts)}"


def ranges(layers: Iterable[int]) -> list[tuple[int, int]]:
    """Return first and last of each run of neighbours."""
    found: list[tuple[int, int]] = []
    for layer in sorted(layers):
        if found and layer == found[-1][1] + 1:
            found[-1] = (found[-1][0], layer)
        else:
            found.append((layer, layer))
    return found


def of_step(
    watched: Watched, step: Step, before: Step | None
) -> Iterator[tuple[int, str, str, str]]:
    """Yield layer, code, what was found and what is due, for all that is wrong after *step*."""
    types = Counter(layer.dtype for layer in step.layers if layer.dtype)
    places = Counter(layer.device for layer in step.layers if layer.device)
    for index, (layer, due) in enumerate(zip(step.layers, step.dues, strict=True)):
        if layer.kind == "other":
            continue
        if layer.kind == "empty":
            yield index, "missing", "nothing", shape(due.shape) or f"{due.tokens} tokens"
            continue
        yield from ((index, *wrong) for wrong in _of_shape(layer, due, watched.needs))
        yield from ((index, *wrong) for wrong in _of_growth(index, layer, due, before))
        yield from ((index, *wrong) for wrong in _of_capacity(layer, watched))
        if layer.dtype and layer.dtype != (usual := types.most_common(1)[0][0]):
            yield index, "dtype", layer.dtype, str(usual)
        own = watched.needs.devices.get(index) or places.most_common(1)[0][0]
        if layer.device and not watched.offloaded and layer.device != own:
            yield index, "device", layer.device, str(own)


def _of_shape(layer: KvLayer, due: Due, needs: Geometry) -> Iterator[tuple[str, str, str]]:
    if due.tokens is not None and layer.tokens != due.tokens:
        yield "length", shape(layer.keys) or str(layer.tokens), shape(due.shape) or str(due.tokens)
        return
    for held in (layer.keys, layer.values):
        if due.shape is None or held is None or held == due.shape:
            continue
        repeated = held[1:2] == (needs.query_heads,) != due.shape[1:2]
        why = " (a head for each query: keys and values are repeated before they are kept)"
        yield "shape", shape(held) + (why if repeated else ""), shape(due.shape)
        return


def _of_growth(
    index: int, layer: KvLayer, due: Due, before: Step | None
) -> Iterator[tuple[str, str, str]]:
    """Compare how much longer the layer is than after the step before."""
    if before is None or index >= len(before.layers) or layer.kind in FIXED:
        return
    due_before = before.dues[index].tokens
    if due.tokens is None or due_before is None:
        return
    grown, due_growth = layer.tokens - before.layers[index].tokens, due.tokens - due_before
    if grown != due_growth:
        yield "growth", f"{grown} tokens", f"{due_growth}"


def _of_capacity(layer: KvLayer, watched: Watched) -> Iterator[tuple[str, str, str]]:
    """The last token is selected, but never run: room for it is not needed."""
    needed = watched.prompt_tokens + watched.max_new_tokens - 1
    if layer.kind == "static" and layer.tokens < needed:
        yield "capacity", f"{layer.tokens} tokens", f"{needed}"


def shape(sizes: tuple[int, ...] | None) -> str:
    """Return sizes as they are usually written; empty where there are none."""
    return "" if sizes is None else f"[{','.join(map(str, sizes))}]"

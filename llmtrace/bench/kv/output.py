"""The result as JSON and CSV."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from llmtrace.bench import result
from llmtrace.bench.kv.findings import KvResult
from llmtrace.bench.kv.leaks import LeakTest
from llmtrace.bench.kv.steps import Allocator, Step, Watched

COLUMNS = (
    "step", "tokens", "layer", "kind", "keys_shape", "values_shape", "layer_tokens",
    "due_tokens", "bytes", "due_bytes", "held_bytes", "growth_bytes", "dtype", "device",
)  # fmt: skip
MOST_STEPS = 512
"""In JSON; of more, so many are told, evenly spread."""
MOST_ROWS = 65_536
"""In CSV, a row for each layer and step."""


def _thinned(steps: Sequence[Step], most: int, always: Iterable[int] = ()) -> list[Step]:
    """Return at most about *most* steps, evenly spread, the last and those of *always* included."""
    if len(steps) <= most:
        return list(steps)
    every = -(-len(steps) // most)
    kept = {*always, 0, len(steps) - 1, *range(0, len(steps), every)}
    return [step for step in steps if step.index in kept]


def as_object(found: KvResult, header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result for JSON."""
    watched, last = found.watched, found.watched.steps[-1]
    shown = _thinned(watched.steps, MOST_STEPS, (a.first_step for a in found.anomalies))
    return {
        **header,
        "interrupted": found.interrupted,
        "verdict": "bad" if found.bad else "undecided" if found.undecided else "good",
        "cache": {
            "kind": watched.kind,
            "offloaded": watched.offloaded,
            "prompt_tokens": watched.prompt_tokens,
            "max_new_tokens": watched.max_new_tokens,
            "steps": len(watched.steps),
            "bytes": last.size,
            "held_bytes": last.held,
            "due_bytes": last.due,
            "unused": None if found.unused is None else asdict(found.unused),
            "looking_s_per_step": watched.looking_s / len(watched.steps),
        },
        "needs": {
            **{k: v for k, v in asdict(watched.needs).items() if k != "devices"},
            "token_bytes": watched.needs.token_bytes,
            "formula": "2 x kv_heads x head_dim x tokens x element_size x rows, each layer",
        },
        "steps": [
            {"step": s.index, "tokens": s.tokens, "bytes": s.size, "held_bytes": s.held,
             "due_bytes": s.due, "allocator": _allocator(s.allocator)}
            for s in shown
        ],
        "layers": [_layer(watched, shown, index) for index in range(len(last.layers))],
        "anomalies": [asdict(anomaly) for anomaly in found.anomalies],
        "leak_test": None if found.leaks is None else _leak_test(found.leaks),
        "cautions": result.cautions_of(found.cautions),
        "report": result.report_of(found.records),
    }  # fmt: skip


def _allocator(state: Allocator | None) -> dict[str, Any] | None:
    if state is None:
        return None
    return {
        "allocated_bytes": state.allocated,
        "reserved_bytes": state.reserved,
        "split_bytes": state.split,
        "unused_share": state.unused,
        "fragmentation": state.fragmentation,
    }


def _layer(watched: Watched, shown: Sequence[Step], index: int) -> dict[str, Any]:
    """Return one layer after the last step, and its length after each that is shown."""
    last = watched.steps[-1]
    return {
        "layer": index,
        **asdict(last.layers[index]),
        "due": asdict(last.dues[index]),
        "growth_bytes_per_step": growth(watched, index),
        "tokens_by_step": [
            s.layers[index].tokens if index < len(s.layers) else None for s in shown
        ],
    }


def growth(watched: Watched, index: int) -> float | None:
    """Return by how many bytes a layer grew in each decode step, on average; None: there is one."""
    first, last = watched.steps[0], watched.steps[-1]
    if first is last or index >= len(first.layers):
        return None
    grown = last.layers[index].size - first.layers[index].size
    return grown / (last.index - first.index)


def _leak_test(leaks: LeakTest) -> dict[str, Any]:
    return {
        "verdict": leaks.verdict,
        "reason": leaks.reason,
        "requests": len(leaks.samples),
        "measured": leaks.measured,
        "bytes_per_request": leaks.bytes_per_request,
        "rss_per_request": leaks.rss_per_request,
        "growing": [{"class": name, "per_request": per} for name, per in leaks.growing],
        "holders": list(leaks.holders),
        "samples": [
            {k: v for k, v in asdict(sample).items() if k != "classes"} for sample in leaks.samples
        ],
    }


def rows(found: KvResult) -> list[dict[str, Any]]:
    """Return one line of CSV for each step and layer."""
    watched = found.watched
    most = max(2, MOST_ROWS // max(1, len(watched.steps[-1].layers)))
    made = []
    for step in _thinned(watched.steps, most, (a.first_step for a in found.anomalies)):
        before = watched.steps[step.index - 1].layers if step.index else ()
        for index, (layer, due) in enumerate(zip(step.layers, step.dues, strict=True)):
            grown = layer.size - before[index].size if index < len(before) else None
            made.append(
                {
                    "step": step.index,
                    "tokens": step.tokens,
                    "layer": index,
                    "kind": layer.kind,
                    "keys_shape": _cell(layer.keys),
                    "values_shape": _cell(layer.values),
                    "layer_tokens": layer.tokens,
                    "due_tokens": due.tokens,
                    "bytes": layer.size,
                    "due_bytes": due.size,
                    "held_bytes": layer.held,
                    "growth_bytes": grown,
                    "dtype": layer.dtype,
                    "device": layer.device,
                }
            )
    return made


def _cell(shape: tuple[int, ...] | None) -> str:
    return "x".join(map(str, shape or ()))

"""The whole result of the tool: its verdict, and what goes into JSON and CSV."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from llmtrace.bench import result
from llmtrace.bench.cautions import Caution
from llmtrace.bench.kv.anomalies import FIXED, Anomaly, find
from llmtrace.bench.kv.leaks import LEAK, UNDECIDED, LeakTest
from llmtrace.bench.kv.running import Run
from llmtrace.bench.kv.steps import Allocator, Step, Watched
from llmtrace.records import RequestRecord

TOOL = "kv"
COLUMNS = (
    "step", "tokens", "layer", "kind", "keys_shape", "values_shape", "layer_tokens",
    "due_tokens", "bytes", "due_bytes", "held_bytes", "growth_bytes", "dtype", "device",
)  # fmt: skip
MOST_STEPS = 512
"""In JSON; of more, so many are told, evenly spread."""
MOST_ROWS = 65_536
"""In CSV, a row for each layer and step."""
LARGER = 1.25
"""Storages of so many times what the tensors take hold memory that no one can use."""


@dataclass(frozen=True, slots=True)
class Unused:
    """Room of a cache of fixed size that no token came into."""

    capacity: int
    """Tokens."""
    used: int
    """Tokens that were run: the last one is selected, but never run."""
    size: int
    """Bytes of the room that stayed empty."""


@dataclass(frozen=True, slots=True)
class KvResult:
    """What was found."""

    watched: Watched
    anomalies: tuple[Anomaly, ...]
    unused: Unused | None
    """None: nothing in the cache is of fixed size."""
    leaks: LeakTest | None
    """None: none was asked for."""
    records: tuple[RequestRecord, ...]
    cautions: tuple[Caution, ...]
    interrupted: bool = False
    failure: str | None = None

    @property
    def bad(self) -> bool:
        """Whether there is an anomaly or a leak."""
        return bool(self.anomalies) or (self.leaks is not None and self.leaks.verdict == LEAK)

    @property
    def undecided(self) -> bool:
        """Whether nothing bad was found, but the leak test could not tell."""
        return not self.bad and self.leaks is not None and self.leaks.verdict == UNDECIDED


def evaluate(run: Run) -> KvResult:
    """Return what is wrong with the cache of the request that was watched, and what is in vain."""
    watched = run.watched
    if watched is None:
        raise ValueError("no request was watched")
    own = () if watched.record is None else (watched.record,)
    return KvResult(
        watched=watched,
        anomalies=tuple(find(watched)),
        unused=unused(watched.steps[-1]),
        leaks=run.leaks,
        records=(*own, *run.records),
        cautions=(*_cut_short(run), *_doubts(watched, run.leaks)),
        interrupted=run.interrupted,
        failure=run.failure,
    )


def _cut_short(run: Run) -> list[Caution]:
    found = []
    if run.interrupted:
        found.append(Caution("interrupted", "Ctrl-C ended the run before all requests had run."))
    if run.failure:
        text = f"A request failed, and none was run after it: {run.failure}"
        found.append(Caution("failed", text))
    return found


def unused(step: Step) -> Unused | None:
    """Return the room of fixed size that is empty after *step*."""
    full = [layer for layer in step.layers if layer.kind in FIXED and layer.tokens]
    if not full:
        return None
    capacity = max(layer.tokens for layer in full)
    empty = sum(layer.size * max(0, layer.tokens - step.tokens) // layer.tokens for layer in full)
    return Unused(capacity, min(step.tokens, capacity), empty)


def _doubts(watched: Watched, leaks: LeakTest | None) -> list[Caution]:
    found, last = [], watched.steps[-1]
    types = {layer.dtype for layer in last.layers if layer.dtype} - {watched.needs.dtype}
    if types:
        text = f"The model's numbers are {watched.needs.dtype}, the cache's {', '.join(types)}."
        found.append(Caution("other_dtype", text))
    if last.size and last.held > LARGER * last.size:
        text = (
            f"The cache's tensors are parts of larger ones: {last.held:,} bytes are held for "
            f"{last.size:,}."
        )
        found.append(Caution("larger_storage", text))
    if last.due is None:
        text = "What this cache is due to hold in bytes is not known: lengths are compared only."
        found.append(Caution("due_unknown", text))
    if leaks is not None and leaks.verdict != LEAK and leaks.rss_per_request is not None:
        grown = leaks.rss_per_request * (len(leaks.samples) - 1)
        if grown > RSS_GROWTH * leaks.samples[0].rss:
            text = (
                f"The process grew by {grown:,.0f} bytes while no tensor stayed: no proof of a "
                "leak, since freed memory need not go back, but look at it over more requests."
            )
            found.append(Caution("rss_grew", text))
    return found


RSS_GROWTH = 0.1


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
        "measured": measured(leaks),
        "bytes_per_request": leaks.bytes_per_request,
        "rss_per_request": leaks.rss_per_request,
        "growing": [{"class": name, "per_request": per} for name, per in leaks.growing],
        "holders": list(leaks.holders),
        "samples": [
            {k: v for k, v in asdict(sample).items() if k != "classes"} for sample in leaks.samples
        ],
    }


def measured(leaks: LeakTest) -> str:
    """Return which bytes the verdict is made of."""
    on_gpu = bool(leaks.samples) and leaks.samples[0].allocated is not None
    return "torch.cuda.memory_allocated" if on_gpu else "storages of live tensors"


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

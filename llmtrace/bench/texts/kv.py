"""The KV cache in the terminal: the table of its layers, live and at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from llmtrace.bench.kv.anomalies import of_step, ranges, shape
from llmtrace.bench.kv.findings import KvResult
from llmtrace.bench.kv.leaks import CLEAN, LEAK, LeakTest
from llmtrace.bench.kv.steps import Step, Watched
from llmtrace.bench.result import conditions_of
from llmtrace.bench.texts.parts import cautions, findings, heading
from llmtrace.reports.printing import printed
from llmtrace.reports.table_parts import pairs, small_print

FORMULA = "Due: 2 x kv_heads x head_dim x tokens x bytes of a number x rows, in each layer"
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
STEP = 1024


def size(value: float | None) -> str:
    """Return bytes in the unit that suits."""
    if value is None:
        return "-"
    number, unit = float(value), UNITS[0]
    for larger in UNITS[1:]:
        if abs(number) < STEP:
            break
        number, unit = number / STEP, larger
    return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.2f} {unit}"


def render(
    found: KvResult, header: Mapping[str, Any], *, width: int = 100, color: bool = False
) -> str:
    """Return the result as text."""
    # A layer that was wrong may be right in the end: the last step in which one was is shown.
    wrong = [one.last_step for one in found.anomalies if one.code != "growth"]
    shown = found.watched.steps[max(wrong, default=-1)]
    sections: list[RenderableType] = [
        heading(header),
        Text(),
        live(found.watched, shown, most_rows=None),
        *(small_print(note) for note in _notes(found)),
        Text(),
        _anomalies(found),
    ]
    if found.leaks is not None:
        sections += [Text(), _leaks(found.leaks)]
    conditions = pairs(conditions_of(found.records))
    sections += [Text(), Text("Conditions", style="bold"), _indented(conditions)]
    sections += [
        *findings(found.records),
        Text(),
        cautions(found.cautions),
        Text(),
        _verdict(found),
    ]
    return printed(sections, width, color)


def live(watched: Watched, step: Step, most_rows: int | None) -> RenderableType:
    """Return the table of all layers after *step*.

    Args:
        watched: The request.
        step: One of its steps.
        most_rows: As many layers have a row each; of more, and with None, neighbours that are
            alike share one.
    """
    before = watched.steps[step.index - 1] if step.index else None
    wrong: dict[int, str] = {}
    for layer, code, _, _ in of_step(watched, step, before):
        wrong[layer] = f"{wrong[layer]}, {code}" if layer in wrong else code
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("layer", "kind", "keys and values", "type", "device"):
        table.add_column(name, no_wrap=True)
    for name in ("bytes", "due", "growth"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    together = most_rows is None or len(step.layers) > most_rows
    for layers in _groups(step, before, wrong) if together else [[i] for i in _all(step)]:
        table.add_row(*_row(step, before, layers), wrong.get(layers[0], ""),
                      style="bold red" if layers[0] in wrong else None)  # fmt: skip
    return Group(Text(_state(watched, step)), table)


def _all(step: Step) -> range:
    return range(len(step.layers))


def _groups(step: Step, before: Step | None, wrong: Mapping[int, str]) -> list[list[int]]:
    """Return layers that are alike, each run of neighbours by itself."""
    alike: dict[Any, list[int]] = {}
    for index in _all(step):
        key = (step.layers[index], step.dues[index], _growth(step, before, index), index in wrong)
        alike.setdefault(key, []).append(index)
    runs = [list(range(a, b + 1)) for group in alike.values() for a, b in ranges(group)]
    return sorted(runs)


def _growth(step: Step, before: Step | None, index: int) -> int | None:
    if before is None or index >= len(before.layers):
        return None
    return step.layers[index].size - before.layers[index].size


def _row(step: Step, before: Step | None, layers: Sequence[int]) -> Iterator[str]:
    layer, due = step.layers[layers[0]], step.dues[layers[0]]
    grown = _growth(step, before, layers[0])
    told = shape(layer.keys)
    if layer.values != layer.keys:
        told += f" {shape(layer.values)}"
    first, last = layers[0], layers[-1]
    yield str(first) if first == last else f"{first}-{last}"
    yield layer.kind
    yield told or "-"
    yield layer.dtype or "-"
    yield layer.device or "-"
    yield size(layer.size)
    yield size(due.size)
    yield "-" if grown is None else size(grown)


def _state(watched: Watched, step: Step) -> str:
    """Return the whole cache in a line, and the allocator's state in another."""
    due = "" if step.due is None else f", due {size(step.due)}"
    said = (
        f"{watched.kind} cache after {step.tokens} tokens ({watched.prompt_tokens} of the prompt): "
        f"{size(step.size)} in {len(step.layers)} layers{due}"
    )
    state = step.allocator
    if state is None:
        return said
    return (
        f"{said}\nCUDA: {size(state.allocated)} allocated of {size(state.reserved)} reserved; "
        f"{state.unused:.1%} unused, {state.fragmentation:.1%} in split blocks"
    )


def _notes(found: KvResult) -> Iterator[str]:
    needs, watched = found.watched.needs, found.watched
    if needs.token_bytes is None:
        yield "This attention is not of the usual form: only lengths are compared."
    else:
        each = needs.token_bytes * needs.layers
        yield (
            f"{FORMULA}: {needs.kv_heads} heads of keys and values ({needs.query_heads} of "
            f"queries) x {needs.head_dim}, {needs.dtype}; {each:,} bytes a token. Bytes, due and "
            "growth of one layer each; growth in the step shown."
        )
    yield (
        f"Looking between steps took {watched.looking_s / len(watched.steps) * 1e6:,.0f} us a step "
        "of host time: this trace is no measurement of latency."
    )
    if found.unused is not None:
        room = found.unused
        yield (
            f"Room for {room.capacity} tokens, {room.used} were run: {room.size:,} bytes "
            f"({size(room.size)}) are held for {room.capacity - room.used} that never came."
        )


def _indented(said: RenderableType) -> RenderableType:
    return Padding(said, (0, 0, 0, 3))


def _anomalies(found: KvResult) -> RenderableType:
    if not found.anomalies:
        return Text("Anomalies: none")
    lines = [_indented(Text(f"{one.code}  {one.text}")) for one in found.anomalies]
    return Group(Text("Anomalies", style="bold red"), *lines)


def _leaks(leaks: LeakTest) -> RenderableType:
    style = {LEAK: "bold red", CLEAN: "green"}.get(leaks.verdict, "yellow")
    heading_line = Text(f"Leak test: {leaks.verdict}: {leaks.reason}", style=style)
    lines = [_indented(Text(said)) for said in _told(leaks)]
    return Group(heading_line, *lines)


def _told(leaks: LeakTest) -> Iterator[str]:
    if leaks.bytes_per_request is None:
        return
    first, last = leaks.samples[0], leaks.samples[-1]
    yield (
        f"{leaks.bytes_per_request:+,.0f} bytes a request over {len(leaks.samples)} requests "
        f"({leaks.measured}: {first.bytes:,} to {last.bytes:,}); live tensors {first.tensors:,} "
        f"to {last.tensors:,}"
    )
    if first.reserved is not None and last.reserved is not None:
        yield f"reserved by the allocator: {size(first.reserved)} to {size(last.reserved)}"
    if leaks.verdict == LEAK:
        grown = ", ".join(f"{name} +{per:,.1f}" for name, per in leaks.growing)
        if grown:
            yield f"more alive after each request: {grown}"
        yield from (f"held: {holder}" for holder in leaks.holders)


def _verdict(found: KvResult) -> RenderableType:
    if found.bad:
        return Text("KV cache: not as it should be", style="bold red")
    if found.undecided:
        return Text("KV cache: undecided", style="bold yellow")
    return Text("KV cache: as it should be", style="bold green")

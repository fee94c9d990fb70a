"""Tokens per second, of requests and of the system, with the conditions that make it a figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from llmtrace.analysis.summary import Summary, summarise
from llmtrace.analysis.timeline import AtConcurrency, by_concurrency, timeline
from llmtrace.records import RequestRecord


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens were chosen, and how many requests did it that way."""

    strategy: str
    do_sample: bool | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    num_beams: int | None
    requests: int


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Requests running at a time, over the time in which at least one was running."""

    mean: float | None
    max: int | None


@dataclass(frozen=True, slots=True)
class Conditions:
    """Under what a throughput figure was taken."""

    prompt_tokens: Summary | None
    """One value per row: prompt tokens without padding."""
    sampling: tuple[Sampling, ...]
    concurrency: Concurrency
    gpu_memory_bytes: Summary | None
    """One value per request: what torch's allocator held at its end, at least its peak."""
    batch_sizes: tuple[int, ...]
    models: tuple[str, ...]
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    quantizations: tuple[str, ...]
    attn_implementations: tuple[str, ...]
    cache_implementations: tuple[str, ...]
    clocks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Throughput:
    """Tokens per second."""

    request: Summary | None
    decode: Summary | None
    system: float | None
    conditions: Conditions
    by_concurrency: tuple[AtConcurrency, ...] = ()
    """While one request ran, while two ran, ..."""


@dataclass(frozen=True, slots=True)
class Load:
    """What was running while."""

    busy_s: float
    """Time in which at least one of the requests was running."""
    concurrency: Concurrency


def throughput(records: Sequence[RequestRecord], running: Iterable[RequestRecord]) -> Throughput:
    """Return the throughput of *records*.

    Formula:
        Per request ``n / (tn - t0)``; decode ``(n - 1) / (tn - t1)``; system: output tokens of
        all rows / time in which at least one of *records* was running.

    Args:
        records: The requests that count.
        running: Every request there was: the others were part of the load.
    """
    counted, running = _with_tokens(records), list(running)
    load = load_of(counted, running)
    found = timeline(counted, running)
    return Throughput(
        request=summarise(r.tgs for r in records),
        decode=summarise(r.decode_tgs for r in records),
        system=_rate(counted, load),
        conditions=_conditions(records, load),
        by_concurrency=() if found is None else by_concurrency(found),
    )


def system_tgs(records: Sequence[RequestRecord]) -> float | None:
    """Return the tokens of *records* over the time in which at least one of them was running."""
    counted = _with_tokens(records)
    return _rate(counted, load_of(counted, counted))


def _with_tokens(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    return [record for record in records if record.output_tokens is not None]


def _rate(counted: Iterable[RequestRecord], load: Load) -> float | None:
    tokens = sum(record.output_tokens or 0 for record in counted)
    return tokens / load.busy_s if tokens and load.busy_s else None


def load_of(records: Iterable[RequestRecord], running: Iterable[RequestRecord]) -> Load:
    """Return how long *records* ran, and how many of *running* did so at the time."""
    events: list[tuple[int, int, int]] = []
    counts = {id(record) for record in records}
    for record in running:
        end = record.start_unix_ns + round(record.duration_s * 1e9)
        if end > record.start_unix_ns:
            own = int(id(record) in counts)
            events += [(record.start_unix_ns, 1, own), (end, -1, -own)]
    # At one instant ends come before starts: back to back is not at the same time.
    events.sort()
    busy_ns = request_ns = most = here = own_here = 0
    last = 0
    for at, change, own_change in events:
        if own_here:
            busy_ns += at - last
            request_ns += here * (at - last)
            most = max(most, here) if at > last else most
        last, here, own_here = at, here + change, own_here + own_change
    if not busy_ns:
        return Load(0.0, Concurrency(None, None))
    return Load(busy_ns / 1e9, Concurrency(request_ns / busy_ns, most))


def _conditions(records: Sequence[RequestRecord], load: Load) -> Conditions:
    return Conditions(
        prompt_tokens=summarise(n for r in records for n in _prompts(r)),
        sampling=_samplings(records),
        concurrency=load.concurrency,
        gpu_memory_bytes=summarise(_memory(r) for r in records),
        batch_sizes=tuple(sorted({r.batch_size for r in records if r.batch_size is not None})),
        models=_distinct(records, lambda r: r.model),
        devices=_distinct(records, lambda r: r.device),
        dtypes=_distinct(records, lambda r: r.dtype),
        quantizations=_distinct(records, lambda r: r.quantization),
        attn_implementations=_distinct(records, lambda r: r.attn_implementation),
        cache_implementations=_distinct(records, lambda r: r.cache_implementation),
        clocks=_distinct(records, lambda r: r.clock),
    )


def _prompts(record: RequestRecord) -> Sequence[int]:
    if record.input_tokens_per_row:
        return record.input_tokens_per_row
    return () if record.input_tokens is None else (record.input_tokens,)


def _memory(record: RequestRecord) -> int | None:
    """Return the memory held; reserved >= peak >= allocated, where they were all recorded."""
    known = (
        record.memory_reserved_bytes,
        record.memory_peak_bytes,
        record.memory_allocated_bytes,
    )
    return max((n for n in known if n is not None), default=None)


def _samplings(records: Iterable[RequestRecord]) -> tuple[Sampling, ...]:
    """Return the distinct settings, the most frequent first."""
    counter = Counter(
        (
            r.strategy,
            r.parameters.do_sample,
            r.parameters.temperature,
            r.parameters.top_p,
            r.parameters.top_k,
            r.parameters.num_beams,
        )
        for r in records
    )
    return tuple(Sampling(*setting, times) for setting, times in counter.most_common())


def _distinct(
    records: Iterable[RequestRecord], value: Callable[[RequestRecord], str | None]
) -> tuple[str, ...]:
    return tuple(sorted({found for r in records if (found := value(r)) is not None}))

"""What the seams learn of a request while it runs, beside its marks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llmtrace.hardware import Peaks
from llmtrace.recording.recorder import Marks
from llmtrace.recording.stream import StreamTimes
from llmtrace.recording.utilization import KvLayers, ModelCost
from llmtrace.records import Finding, GenerationParameters, ModelFacts


@dataclass(slots=True)
class Tokenization:
    """Tokenizer calls that went before a request, in the same place."""

    duration_ns: int = 0
    begun_ns: int = 0
    chat: bool = False
    tokenizer: Any = None
    """A weak reference to the tokenizer."""


@dataclass(slots=True)
class RequestInfo:
    """Facts of one request; every field may stay at "not known"."""

    model: ModelFacts = field(default_factory=ModelFacts)
    device: str = "cpu"
    devices: tuple[int, ...] = ()
    """Indices of the CUDA devices that the model's layers lie on, if there are several."""
    operation: str = "text_completion"
    own_loop: bool = False
    """A ``request()`` block, which may yet turn out to hold ``generate()`` calls instead."""
    span_name: str | None = None
    """The caller's own name for the request's span."""
    rank: int | None = None
    world_size: int | None = None
    ranks_request: str | None = None
    """48 hexadecimal digits, the same on every rank of one tensor-parallel request."""
    first_rank: bool = False
    strategy: str = "custom"
    parameters: GenerationParameters = field(default_factory=GenerationParameters)
    batch_size: int | None = None
    input_length: int | None = None
    """Padded length of the input, in tokens."""
    prompt_length: int | None = None
    """Ids that come before the first generated one in each returned row."""
    max_length: int | None = None
    eos_token_ids: frozenset[int] = frozenset()
    pad_token_id: int | None = None
    input_tokens_per_row: tuple[int, ...] | None = None
    input_tokens_cached: int | None = None
    output_tokens_per_row: tuple[int, ...] | None = None
    output_tokens: int | None = None
    """Total, where the rows cannot be told apart."""
    loops: int = 0
    """Decoding loops that ran: a model's own ``generate()`` may run several one after another."""
    assisted_drafted: int | None = None
    """Candidate tokens proposed, in assisted decoding."""
    assisted_accepted: int | None = None
    """Candidate tokens kept."""
    finish_reasons: tuple[str, ...] = ()
    cache_implementation: str | None = None
    compiled: bool = False
    cold_reasons: tuple[str, ...] = ()
    kv_cache_bytes: int | None = None
    memory_allocated_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    memory_peak_bytes: int | None = None
    memory_growth_bytes: int | None = None
    memory_inactive_split_bytes: int | None = None
    device_name: str | None = None
    cost: ModelCost | None = None
    """What a pass of the model needs, where that can be told."""
    kv_layers: tuple[KvLayers, ...] = ()
    peaks: Peaks | None = None
    """The user's own peaks of the device."""
    queued_since_ns: int | None = None
    """Start of the enclosing server span or ``request()`` block, host clock."""
    admitted_ns: int | None = None
    """A scheduler took the request into a batch, host clock."""
    preemptions: int | None = None
    """How often a scheduler put the request back into its queue."""
    tokenize_ns: int | None = None
    tokenize_begun_ns: int | None = None
    stream: StreamTimes | None = None
    loop_tasks: int | None = None
    """Other tasks of the event loop in whose thread the request ran."""
    error: str | None = None
    findings: list[Finding] = field(default_factory=list)
    attributes: dict[str, str | bool | int | float] = field(default_factory=dict)
    input_text: list[str] | None = None
    output_text: list[str] | None = None


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """All there is to make a record of."""

    info: RequestInfo
    marks: Marks
    start_unix_ns: int
    trace_id: str | None
    span_id: str | None

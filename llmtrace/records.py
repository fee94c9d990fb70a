"""What is known of a finished request: frozen data, standard library only.

All durations are seconds, all sizes bytes. What does not exist is ``None``: never 0, never NaN.
The words and formulas are those of docs/glossary.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Phase = Literal["prefill", "decode"]
Severity = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One diagnostic result."""

    code: str
    """Stable identifier, such as ``steps_truncated``."""
    severity: Severity
    title: str
    evidence: str
    """The numbers it rests on."""
    remedy: str
    trace_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Leg:
    """One device's part of a forward call. Times count from the start of the request."""

    device: str
    start_s: float
    """The device had its inputs."""
    end_s: float
    """It was done: what comes before the next leg's start is the hand-over."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One advance of generation. All times count from the start of the request."""

    index: int
    """0 is the prefill step; decode steps count from 1."""
    phase: Phase
    start_s: float
    """The previous token; 0 for the prefill step."""
    end_s: float
    """This step's token was selected."""
    tokens: int
    """Tokens selected for one row: 1, or several in assisted decoding."""
    forwards: int
    """Forward calls of the model in this step: more than 1 when prefill is chunked."""
    forward_start_s: float | None = None
    """The first forward call was entered; on a device, it was given its work: in a compiled forward
    at the replay of its CUDA graph."""
    forward_end_s: float | None = None
    """The last forward call was done: on the device where ``clock`` is a device's, else on the
    host."""
    host_duration_s: float | None = None
    """Host time inside the forward calls."""
    device_duration_s: float | None = None
    """Time on the device's stream from the step's start to the end of its forward, waiting for
    launches included."""
    launch_lead_s: float | None = None
    """Device end of the forward minus host return of the call; near 0 = the device waits for
    Python. The end is marked in the first steps and in every eighth, and worked out in between."""
    put_s: float | None = None
    """The streamer was handed this step's token."""
    host_end_s: float | None = None
    """Python had this step's token marked, where ``end_s`` is the device's time of it; a trace does
    not hold it."""
    legs: tuple[Leg, ...] = ()
    """What each device did of the forward, where the model's layers lie on several."""


@dataclass(frozen=True, slots=True)
class GenerationParameters:
    """What the caller asked of ``generate()``, after defaults were applied."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    do_sample: bool | None = None
    choice_count: int | None = None
    """Returned sequences per prompt."""
    num_beams: int | None = None
    stop_sequences: tuple[str, ...] = ()
    stream: bool = False


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is true of the model, whatever the request."""

    name: str = "unknown"
    dtype: str | None = None
    quantization: str | None = None
    attn_implementation: str | None = None


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One finished request: a ``generate()`` call or a ``request()`` block."""

    model: str
    strategy: str
    """greedy, sample, beam, assisted, prompt_lookup, contrastive, custom, ..."""
    device: str
    clock: str
    """What measured token times: ``cuda`` or ``host``."""
    start_unix_ns: int
    """Start of the request, nanoseconds since the epoch."""
    duration_s: float
    """Start of the request to its return."""
    operation: str = "text_completion"
    """``text_completion``, or ``chat`` when the input was chat messages."""
    batch_size: int | None = None
    """Prompts in the call."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    """Total over all returned rows."""
    input_tokens_padded: int | None = None
    input_tokens_cached: int | None = None
    input_tokens_per_row: tuple[int, ...] = ()
    output_tokens_per_row: tuple[int, ...] = ()
    assisted_drafted: int | None = None
    """Candidate tokens proposed, in assisted decoding."""
    assisted_accepted: int | None = None
    """Candidate tokens kept; what each step selects beside them is the model's own."""
    finish_reasons: tuple[str, ...] = ()
    ttft_s: float | None = None
    ttft_from_request_s: float | None = None
    itl_s: list[float] = field(default_factory=list)
    """One gap per token after the first; of a batch, each step's gap once."""
    tpot_s: float | None = None
    e2e_s: float | None = None
    tgs: float | None = None
    decode_tgs: float | None = None
    prefill_s: float | None = None
    queue_s: float | None = None
    """Server span or ``request()`` block to ``generate()``; of a batched request, which has this
    inside its own time, submission to admission."""
    ttft_from_admission_s: float | None = None
    """Of a batched request: TTFT without the time in the scheduler's queue."""
    preemptions: int | None = None
    """Times a scheduler put the request back into its queue; None where there is no scheduler."""
    tokenize_s: float | None = None
    prepare_s: float | None = None
    """Entry of ``generate()`` to the first forward."""
    sampling_s: float | None = None
    """End of the prefill to the first token."""
    delivery_s: float | None = None
    """First token selected to handed to the streamer's consumer."""
    hold_back_s: float | None = None
    """First delivery to first visible text."""
    first_delivery_s: float | None = None
    first_visible_text_s: float | None = None
    steps: Sequence[StepRecord] = field(default_factory=list)
    steps_truncated: bool = False
    """More steps ran than ``max_step_spans``: ``steps`` and ``itl_s`` hold the first ones only."""
    cold: bool = False
    compiled: bool = False
    cold_reasons: tuple[str, ...] = ()
    error: str | None = None
    """The exception's type, as ``module.Name``."""
    trace_id: str | None = None
    span_id: str | None = None
    parameters: GenerationParameters = field(default_factory=GenerationParameters)
    dtype: str | None = None
    quantization: str | None = None
    attn_implementation: str | None = None
    cache_implementation: str | None = None
    host_bound_ratio: float | None = None
    clock_error_s: float | None = None
    """Each of the device's times lies within this of the one given."""
    kv_cache_bytes: int | None = None
    memory_allocated_bytes: int | None = None
    """What torch's allocator had given out when the request ended."""
    memory_reserved_bytes: int | None = None
    """What it held then, given out or not."""
    memory_peak_bytes: int | None = None
    """Most it had given out during the request; known where that was the process's highest."""
    memory_growth_bytes: int | None = None
    """What was given out at the end of the request beyond what was at its start."""
    memory_inactive_split_bytes: int | None = None
    """Fragmentation: free parts of blocks whose other parts are in use, at the end."""
    device_name: str | None = None
    mbu: float | None = None
    """Share of the device's peak bandwidth that decoding used at least."""
    mfu: float | None = None
    """Share of the device's peak rate of operations that the prefill used at least."""
    decode_bytes: float | None = None
    """Bytes that a decode step must read, averaged over the request's."""
    prefill_flops: float | None = None
    rank: int | None = None
    world_size: int | None = None
    ranks_request: str | None = None
    """The same on every rank of one tensor-parallel request."""
    devices: tuple[str, ...] = ()
    """Where the model's layers lie, if on several devices, in the order of a forward's way."""
    devices_prefill_s: tuple[float, ...] = ()
    devices_decode_s: tuple[float, ...] = ()
    """Each device's time in the prefill, and on average in a decode step."""
    handover_s: float | None = None
    """Average time from one device's end to the next one's start."""
    """Floating-point operations that the prefill needs."""
    findings: tuple[Finding, ...] = ()
    attributes: dict[str, str | bool | int | float] = field(default_factory=dict)
    """The caller's own, from ``request(attributes=...)``."""


@dataclass(frozen=True, slots=True)
class BatchStepRecord:
    """One step of a continuous-batching scheduler: a forward that many requests share."""

    index: int
    """Counts the scheduler's steps, from 1."""
    start_unix_ns: int
    """The forward began: on the device where the batch's ``clock`` is a device's."""
    end_unix_ns: int
    """Its tokens were selected, or were on the host."""
    requests: int
    """Requests in the step."""
    active: int
    """Requests the scheduler has admitted."""
    waiting: int
    """Requests in its queue."""
    prefill_tokens: int
    """Prompt tokens processed for requests that are traced."""
    decode_tokens: int
    """Other tokens processed for them: one for each that is decoding."""
    cache_usage: float | None = None
    """Share of the KV cache's blocks that are in use, 0 to 1."""
    host_duration_s: float | None = None
    """Host time inside the forward call."""
    device_duration_s: float | None = None
    """Time on the device's stream from the forward's start to its end."""


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """Consecutive steps of one scheduler."""

    model: str
    clock: str
    steps: list[BatchStepRecord]
    requests: tuple[tuple[str, str], ...] = ()
    """Trace and span id of each traced request that took part."""


def rows_per_gap(record: RequestRecord) -> list[int]:
    """Return, for each gap, how many rows got a token in it; of beams, one."""
    rows = record.output_tokens_per_row
    gaps = len(record.itl_s)
    if len(rows) <= 1 or record.parameters.num_beams:
        return [1] * gaps
    return [max(1, sum(n >= position for n in rows)) for position in range(2, gaps + 2)]


def first_text_phases(record: RequestRecord) -> dict[str, float | None]:
    """Return the parts of the time to the first visible text, in order, seconds.

    Formula:
        queue + tokenize + prepare + prefill + sampling = TTFT from the request;
        with delivery + hold_back: first visible text since the request reached the program.
    """
    return {
        "queue": record.queue_s,
        "tokenize": record.tokenize_s,
        "prepare": record.prepare_s,
        "prefill": record.prefill_s,
        "sampling": record.sampling_s,
        "delivery": record.delivery_s,
        "hold_back": record.hold_back_s,
    }

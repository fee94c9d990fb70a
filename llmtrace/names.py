"""Every name, unit and boundary that leaves the process, once.

``gen_ai.*`` follow the OpenTelemetry GenAI conventions as Python packages emit them today; the
``gen_ai.server.*`` metrics have the same names in every generation of those conventions. All
names of our own begin ``llmtrace.``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SCOPE = "llmtrace"
PROVIDER = "huggingface.transformers"
"""The conventions have no value for transformers: a custom one may be used."""

OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
MAX_TOKENS = "gen_ai.request.max_tokens"
TEMPERATURE = "gen_ai.request.temperature"
TOP_P = "gen_ai.request.top_p"
TOP_K = "gen_ai.request.top_k"
STREAM = "gen_ai.request.stream"
CHOICE_COUNT = "gen_ai.request.choice.count"
STOP_SEQUENCES = "gen_ai.request.stop_sequences"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
FINISH_REASONS = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
ERROR_TYPE = "error.type"
TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105 - no password

STRATEGY = "llmtrace.strategy"
BATCH_SIZE = "llmtrace.batch_size"
NUM_BEAMS = "llmtrace.num_beams"
DO_SAMPLE = "llmtrace.do_sample"
INPUT_TOKENS_PADDED = "llmtrace.input_tokens.padded"
INPUT_TOKENS_CACHED = "llmtrace.input_tokens.cached"
INPUT_TOKENS_PER_ROW = "llmtrace.input_tokens.per_row"
OUTPUT_TOKENS_PER_ROW = "llmtrace.output_tokens.per_row"
ASSISTED_DRAFTED = "llmtrace.assisted.drafted"
ASSISTED_ACCEPTED = "llmtrace.assisted.accepted"
TTFT = "llmtrace.ttft"
TTFT_FROM_REQUEST = "llmtrace.ttft.from_request"
TTFT_FROM_ADMISSION = "llmtrace.ttft.from_admission"
FIRST_DELIVERY = "llmtrace.first_delivery"
FIRST_VISIBLE_TEXT = "llmtrace.first_visible_text"
QUEUE = "llmtrace.queue"
TOKENIZE = "llmtrace.tokenize"
PREPARE = "llmtrace.prepare"
PREFILL = "llmtrace.prefill"
SAMPLING = "llmtrace.sampling"
DELIVERY = "llmtrace.delivery"
HOLD_BACK = "llmtrace.hold_back"
PHASE = "llmtrace.phase"
TPOT = "llmtrace.tpot"
E2E = "llmtrace.e2e"
ITL = "llmtrace.itl"
ITL_P50 = "llmtrace.itl.p50"
ITL_P95 = "llmtrace.itl.p95"
ITL_P99 = "llmtrace.itl.p99"
ITL_MAX = "llmtrace.itl.max"
STEP_DEVICE_DURATIONS = "llmtrace.step.device_durations"
STEP_HOST_DURATIONS = "llmtrace.step.host_durations"
STEP_LAUNCH_LEADS = "llmtrace.step.launch_leads"
STEP_PUTS = "llmtrace.step.puts"
STEPS_TRUNCATED = "llmtrace.steps.truncated"
TGS = "llmtrace.tgs"
DECODE_TGS = "llmtrace.decode_tgs"
CLOCK = "llmtrace.clock"
CLOCK_ERROR = "llmtrace.clock.error"
COLD = "llmtrace.cold"
COLD_REASONS = "llmtrace.cold.reasons"
DEVICE = "llmtrace.device"
DTYPE = "llmtrace.dtype"
QUANTIZATION = "llmtrace.quantization"
ATTN_IMPLEMENTATION = "llmtrace.attn_implementation"
CACHE_IMPLEMENTATION = "llmtrace.cache_implementation"
COMPILED = "llmtrace.compiled"
HOST_BOUND_RATIO = "llmtrace.host_bound_ratio"
KV_CACHE_BYTES = "llmtrace.kv_cache.bytes"
MEMORY_ALLOCATED = "llmtrace.cuda.memory.allocated"
MEMORY_RESERVED = "llmtrace.cuda.memory.reserved"
MEMORY_PEAK = "llmtrace.cuda.memory.peak"
MEMORY_GROWTH = "llmtrace.cuda.memory.growth"
MEMORY_INACTIVE_SPLIT = "llmtrace.cuda.memory.inactive_split"
DEVICE_NAME = "llmtrace.device.name"
MBU = "llmtrace.mbu"
MFU = "llmtrace.mfu"
DECODE_BYTES = "llmtrace.decode.bytes"
PREFILL_FLOPS = "llmtrace.prefill.flops"
DEVICES = "llmtrace.devices"
DEVICES_PREFILL = "llmtrace.devices.prefill"
DEVICES_DECODE = "llmtrace.devices.decode"
DEVICES_HANDOVER = "llmtrace.devices.handover"
RANK = "llmtrace.rank"
WORLD_SIZE = "llmtrace.world_size"
VERSION = "llmtrace.version"
"""Of a package: followed by its name; in the resource."""
RANKS_REQUEST = "llmtrace.ranks.request"
"""The same on every rank of one tensor-parallel request."""
FINDINGS = "llmtrace.findings"
FINDINGS_EVIDENCE = "llmtrace.findings.evidence"

BATCH_REQUEST_ID = "llmtrace.batch.request_id"
BATCH_PREEMPTIONS = "llmtrace.batch.preemptions"
BATCH_STEP = "llmtrace.batch.step"
BATCH_STEPS = "llmtrace.batch.steps"
BATCH_REQUESTS = "llmtrace.batch.requests"
BATCH_ACTIVE = "llmtrace.batch.active"
BATCH_WAITING = "llmtrace.batch.waiting"
BATCH_PREFILL_TOKENS = "llmtrace.batch.prefill_tokens"
BATCH_DECODE_TOKENS = "llmtrace.batch.decode_tokens"
BATCH_CACHE_USAGE = "llmtrace.batch.cache_usage"
BATCH_PHASE = "llmtrace.batch.phase"

STEP_INDEX = "llmtrace.step.index"
STEP_TOKENS = "llmtrace.step.tokens"
STEP_FORWARDS = "llmtrace.step.forwards"
HOST_DURATION = "llmtrace.host.duration"
DEVICE_DURATION = "llmtrace.device.duration"
LAUNCH_LEAD = "llmtrace.launch_lead"
FORWARD_OFFSET = "llmtrace.forward.offset"
"""From a decode span's start to its forward call, seconds."""
LEG_DEVICES = "llmtrace.legs.devices"
LEG_OFFSETS = "llmtrace.legs.offsets"
LEG_DURATIONS = "llmtrace.legs.durations"
"""Of each device's part of the step, in order: seconds from the step's start, and in it."""

SPAN_PREFILL = "prefill"
SPAN_FIRST_TOKEN = "first_token"  # noqa: S105 - no password
SPAN_DECODE = "decode"
SPAN_TOKENIZE = "tokenize"
SPAN_POSTPROCESS = "postprocess"
SPAN_BATCH = "batch"
"""Some steps of a continuous-batching scheduler, one after the other."""
SPAN_BATCH_STEP = "batch_step"
SPAN_GROUP = "llmtrace.request"
"""A ``request()`` block around ``generate()`` calls, which are the requests."""

DURATION_BOUNDS = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
)  # fmt: skip
TPOT_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
TTFT_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
TOKEN_BOUNDS = (
    1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864,
)  # fmt: skip
ITL_BOUNDS = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1,
    0.15, 0.25, 0.5, 1.0, 2.5,
)  # fmt: skip
TGS_BOUNDS = (1, 2, 5, 10, 15, 20, 30, 40, 50, 75, 100, 150, 200, 300, 500, 1000, 2000, 5000)
RATIO_BOUNDS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric."""

    name: str
    kind: Literal["histogram", "counter", "up_down_counter", "gauge"]
    unit: str
    description: str
    bounds: tuple[float, ...] | None = None


TIME_TO_FIRST_TOKEN = Instrument(
    "gen_ai.server.time_to_first_token",
    "histogram",
    "s",
    "Time to generate first token for successful responses.",
    TTFT_BOUNDS,
)
TIME_PER_OUTPUT_TOKEN = Instrument(
    "gen_ai.server.time_per_output_token",
    "histogram",
    "s",
    "Time per output token generated after the first token for successful responses.",
    TPOT_BOUNDS,
)
REQUEST_DURATION = Instrument(
    "gen_ai.server.request.duration",
    "histogram",
    "s",
    "Generative AI server request duration such as time-to-last byte or last output token.",
    DURATION_BOUNDS,
)
TOKEN_USAGE = Instrument(
    "gen_ai.client.token.usage",
    "histogram",
    "{token}",
    "Number of input and output tokens used.",
    TOKEN_BOUNDS,
)
INTER_TOKEN_LATENCY = Instrument(
    "llmtrace.inter_token_latency",
    "histogram",
    "s",
    "Every gap between consecutive output tokens of a row.",
    ITL_BOUNDS,
)
PREFILL_DURATION = Instrument(
    "llmtrace.prefill.duration",
    "histogram",
    "s",
    "Start of the first forward to the end of the one that yields the first token's logits.",
    TTFT_BOUNDS,
)
QUEUE_DURATION = Instrument(
    "llmtrace.queue.duration",
    "histogram",
    "s",
    "Wait from the enclosing server span or request() block to generate(), without tokenizing.",
    TTFT_BOUNDS,
)
TTFT_FROM_REQUEST_DURATION = Instrument(
    "llmtrace.ttft.from_request",
    "histogram",
    "s",
    "First token since the start of the enclosing server span or request() block.",
    TTFT_BOUNDS,
)
FIRST_TEXT_PHASE = Instrument(
    "llmtrace.first_text.phase.duration",
    "histogram",
    "s",
    "Parts of the time to the first visible text; they add up to it.",
    TTFT_BOUNDS,
)
TOKENS_PER_SECOND = Instrument(
    "llmtrace.tgs",
    "histogram",
    "{token}/s",
    "Output tokens of a request per second of its duration.",
    TGS_BOUNDS,
)
HOST_BOUND = Instrument(
    "llmtrace.host_bound_ratio",
    "histogram",
    "1",
    "Share of a request's decode steps in which the device waited for Python.",
    RATIO_BOUNDS,
)
TOKENS_GENERATED = Instrument(
    "llmtrace.tokens.generated", "counter", "{token}", "Output tokens of all rows."
)
REQUESTS = Instrument("llmtrace.requests", "counter", "{request}", "Finished requests.")
REQUESTS_ACTIVE = Instrument(
    "llmtrace.requests.active", "up_down_counter", "{request}", "Requests under way."
)
BATCH_STEP_DURATION = Instrument(
    "llmtrace.batch.step.duration",
    "histogram",
    "s",
    "A scheduler's step: start of its forward to its tokens.",
    ITL_BOUNDS,
)
BATCH_TOKENS = Instrument(
    "llmtrace.batch.tokens", "counter", "{token}", "Tokens processed in a scheduler's steps."
)
ACTIVE_IN_BATCH = Instrument(
    BATCH_ACTIVE, "gauge", "{request}", "Requests a scheduler has admitted, at its latest step."
)
WAITING_FOR_BATCH = Instrument(
    BATCH_WAITING, "gauge", "{request}", "Requests in a scheduler's queue, at its latest step."
)
CACHE_IN_USE = Instrument(
    BATCH_CACHE_USAGE, "gauge", "1", "Share of a scheduler's KV cache in use, at its latest step."
)
KV_CACHE_USAGE = Instrument(
    "llmtrace.kv_cache.usage", "gauge", "By", "KV cache of the latest finished request."
)
CUDA_ALLOCATED = Instrument(
    MEMORY_ALLOCATED, "gauge", "By", "Memory torch's allocator has given out, at request end."
)
CUDA_RESERVED = Instrument(
    MEMORY_RESERVED, "gauge", "By", "Memory torch's allocator holds, at request end."
)
CUDA_PEAK = Instrument(
    MEMORY_PEAK, "gauge", "By", "Most memory allocated during a request that raised the peak."
)

"""A trace file of any size, with the times of an invented GPU.

The records are made up; the file is written by llmtrace itself, through the SDK and the local
file's exporter, a line for every 1,024 spans as in an application. One request in four begins
while the one before it is still running.

    python benchmarks/make_traces.py OUT.jsonl [--spans 1000000] [--tokens 500] [--seed N]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from llmtrace import names
from llmtrace.recording.request import RequestInfo
from llmtrace.records import GenerationParameters, ModelFacts, RequestRecord, StepRecord
from llmtrace.telemetry.emitter import FLUSH_EVERY_SPANS
from llmtrace.telemetry.local_file import BufferedProcessor, LocalFileExporter
from llmtrace.telemetry.spans import LiveSpan, write_spans

START_UNIX_NS = 1_700_000_000_000_000_000
SPANS_BESIDE_STEPS = 2
"""The request's own and the prefill's."""


def make_record(random: np.random.Generator, tokens: int, start_unix_ns: int) -> RequestRecord:
    """Return a request of *tokens* tokens: prefill by prompt length, gaps that grow with it."""
    prompt = int(random.choice((64, 128, 256, 512, 1024)))
    prefill = 0.02 + prompt * 7e-5
    context = prompt + np.arange(1, tokens)
    gaps = 0.024 + context * 4e-6 + random.gamma(2.0, 4e-4, tokens - 1)
    durations = [prefill, *(gaps * 0.93).tolist()]
    leads = random.uniform(5e-5, 6e-4, tokens).tolist()
    ends = list(accumulate([prefill + 0.004, *gaps.tolist()]))
    ends = [round(end, 9) for end in ends]
    steps = [
        StepRecord(
            index=index,
            phase="decode" if index else "prefill",
            start_s=ends[index - 1] if index else 0.0,
            end_s=end,
            tokens=1,
            forwards=1,
            forward_start_s=None if index else 0.002,
            forward_end_s=None if index else 0.002 + prefill,
            host_duration_s=durations[index] - leads[index],
            device_duration_s=durations[index],
            launch_lead_s=leads[index],
            put_s=end + 4e-5,
        )
        for index, end in enumerate(ends)
    ]
    ttft, e2e = ends[0], ends[-1]
    return RequestRecord(
        model="Llama-2-7b-hf",
        strategy="sample",
        device="cuda:0",
        clock="cuda",
        start_unix_ns=start_unix_ns,
        duration_s=e2e + 0.001,
        batch_size=1,
        input_tokens=prompt,
        output_tokens=tokens,
        input_tokens_per_row=(prompt,),
        output_tokens_per_row=(tokens,),
        finish_reasons=("length",),
        ttft_s=ttft,
        itl_s=[b - a for a, b in pairwise(ends)],
        tpot_s=(e2e - ttft) / (tokens - 1) if tokens > 1 else None,
        e2e_s=e2e,
        tgs=tokens / e2e,
        decode_tgs=(tokens - 1) / (e2e - ttft) if tokens > 1 else None,
        prefill_s=prefill,
        first_delivery_s=ttft + 1e-4,
        steps=steps,
        parameters=GenerationParameters(
            max_tokens=tokens, do_sample=True, temperature=0.7, top_p=0.9, stream=True
        ),
        dtype="float16",
        attn_implementation="sdpa",
        cache_implementation="dynamic",
        host_bound_ratio=sum(lead < 2e-4 for lead in leads[1:]) / max(tokens - 1, 1),
        clock_error_s=4e-6,
        kv_cache_bytes=(prompt + tokens) * 524_288,
        memory_allocated_bytes=13_500_000_000,
        memory_reserved_bytes=14_200_000_000,
        memory_peak_bytes=13_900_000_000,
    )


def write(path: Path, spans: int, tokens: int, seed: int) -> int:
    """Write a file of at least *spans* spans; return how many there are."""
    random = np.random.default_rng(seed)
    written = 0
    start_unix_ns = START_UNIX_NS
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        exporter = LocalFileExporter(folder, "traces")
        resource = Resource({"service.name": "traces", "process.pid": 1})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BufferedProcessor(exporter))
        tracer = provider.get_tracer(names.SCOPE, "0")

        def rest(count: int) -> None:
            if count and count % FLUSH_EVERY_SPANS == 0:
                provider.force_flush()

        while written < spans:
            record = make_record(random, tokens, start_unix_ns)
            info = RequestInfo(model=ModelFacts(name=record.model), operation=record.operation)
            live = LiveSpan(tracer, info, record.start_unix_ns, None)
            live.leave()
            write_spans(tracer, live, record, info, "spans", rest)
            provider.force_flush()
            written += tokens + SPANS_BESIDE_STEPS
            lasted_ns = round(record.duration_s * 1e9)
            start_unix_ns += lasted_ns // 2 if random.random() < 1 / 4 else lasted_ns + 10**8
        exporter.path.replace(path)
    return written


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--spans", type=int, default=1_000_000, help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=500, help="of a request (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    written = write(arguments.out, arguments.spans, arguments.tokens, arguments.seed)
    size = arguments.out.stat().st_size / 1e6
    print(f"{arguments.out}: {written:,} spans, {size:,.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())

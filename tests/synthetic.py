"""Requests of an invented GPU: as many as wanted, the same each time."""

from dataclasses import replace
from itertools import accumulate

import numpy as np

from llmtrace.known_findings import STEPS_TRUNCATED
from llmtrace.records import GenerationParameters, RequestRecord, StepRecord

START_UNIX_NS = 1_700_000_000_000_000_000
MODEL = "Llama-2-7b-hf"
SHAPES = 60
"""Requests that differ in more than their place: the others share their steps with one of them."""


def shape(random, number, tokens):
    """One request: prefill by prompt length, gaps that grow with the context, now and then slow."""
    prompt = int(random.choice((48, 96, 128, 256, 400, 512, 1024)))
    n = int(random.integers(max(tokens // 2, 2), tokens + 1))
    prefill = round(0.021 + prompt * 7e-5 * random.uniform(0.95, 1.15), 6)
    gaps = 0.0221 + (prompt + np.arange(1, n)) * 4e-6 + random.gamma(2.0, 4e-4, n - 1)
    gaps[random.random(n - 1) < 0.004] *= 2.6
    gaps = [round(gap, 6) for gap in gaps.tolist()]
    ttft = round(prefill + 0.0045, 6)
    ends = list(accumulate([ttft, *gaps]))
    leads = random.uniform(5e-5, 6e-4, n).round(6).tolist()
    forwards = [prefill, *(round(gap * 0.93, 6) for gap in gaps)]
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
            host_duration_s=max(forwards[index] * 0.96 - leads[index], 1e-6),
            device_duration_s=forwards[index],
            launch_lead_s=leads[index],
            put_s=end + 6e-5,
        )
        for index, end in enumerate(ends)
    ]
    return RequestRecord(
        model=MODEL,
        strategy="sample",
        device="cuda:0",
        clock="cuda",
        start_unix_ns=START_UNIX_NS,
        duration_s=ends[-1] + 0.0012,
        batch_size=1,
        input_tokens=prompt,
        output_tokens=n,
        input_tokens_per_row=(prompt,),
        output_tokens_per_row=(n,),
        finish_reasons=("length",) if number % 3 else ("stop",),
        ttft_s=ttft,
        itl_s=gaps,
        tpot_s=(ends[-1] - ttft) / (n - 1),
        e2e_s=ends[-1],
        tgs=n / ends[-1],
        decode_tgs=(n - 1) / (ends[-1] - ttft),
        prefill_s=prefill,
        queue_s=round(float(random.exponential(0.012)), 6),
        tokenize_s=0.0018,
        first_delivery_s=ttft + 9e-5,
        steps=steps,
        parameters=GenerationParameters(
            max_tokens=n, do_sample=True, temperature=0.7, top_p=0.9, stream=True
        ),
        dtype="bfloat16",
        attn_implementation="sdpa",
        cache_implementation="dynamic",
        host_bound_ratio=sum(lead < 2e-4 for lead in leads[1:]) / (n - 1),
        clock_error_s=4e-6,
        kv_cache_bytes=(prompt + n) * 524_288,
        memory_allocated_bytes=13_500_000_000,
        memory_reserved_bytes=14_200_000_000,
        memory_peak_bytes=13_900_000_000,
    )


def invented(count, tokens=300, seed=1):
    """Return *count* requests; the first is cold, one in 90 failed, one in 150 has a finding."""
    random = np.random.default_rng(seed)
    shapes = [shape(random, number, tokens) for number in range(min(count, SHAPES))]
    start = START_UNIX_NS
    records = []
    for number in range(count):
        record = shapes[number % len(shapes)]
        changes = {"start_unix_ns": start, "trace_id": f"{number + 1:032x}"}
        if count > 1 and number == 0:
            changes |= {"cold": True, "cold_reasons": ("first_request",)}
        if number % 90 == 41:
            changes |= {"error": "torch.OutOfMemoryError"}
        if number % 150 == 77:
            changes |= {"findings": (replace(STEPS_TRUNCATED, evidence="4096 of 5000 steps"),)}
        records.append(replace(record, **changes))
        wait = random.exponential(record.duration_s * 0.45)
        start += round(wait * 1e9)
    return records

"""Requests whose times a test decides."""

from __future__ import annotations

import itertools

from llmtrace.records import RequestRecord

SECOND = 1_000_000_000


def request(*times, start=0.0, duration=None, prompt=10, **more):
    """A request of one row whose tokens were selected at *times*, seconds from its start."""
    gaps = [b - a for a, b in itertools.pairwise(times)]
    n, last = len(times), times[-1] if times else None
    values = {
        "model": "m",
        "strategy": "greedy",
        "device": "cpu",
        "clock": "host",
        "start_unix_ns": round(start * SECOND),
        "duration_s": last or 0.0 if duration is None else duration,
        "batch_size": 1,
        "input_tokens": prompt,
        "input_tokens_per_row": (prompt,),
        "output_tokens": n,
        "output_tokens_per_row": (n,),
        "ttft_s": times[0] if times else None,
        "itl_s": gaps,
        "tpot_s": (last - times[0]) / (n - 1) if n > 1 else None,
        "e2e_s": last,
        "tgs": n / last if last else None,
        "decode_tgs": (n - 1) / (last - times[0]) if n > 1 and last > times[0] else None,
    }
    return RequestRecord(**{**values, **more})


def request_of_gaps(ttft, gaps, **more):
    """A request of one row: the first token after *ttft* seconds, then one after each gap."""
    times = list(itertools.accumulate([ttft, *gaps]))
    return request(*times, **{"itl_s": list(gaps), **more})

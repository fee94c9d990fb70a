"""The JSON report: its exact shape, and strictness."""

from __future__ import annotations

import json

import pytest

from llmtrace.analysis.report import build_report
from llmtrace.records import Finding, GenerationParameters, RequestRecord
from llmtrace.reports import json_report

SUMMARY = {"count", "mean", "std", "min", "p50", "p90", "p95", "p99", "max"}


def request(ttft, gap, **more):
    """Three tokens: the first after *ttft* seconds, then one every *gap*."""
    last = ttft + 2 * gap
    values = {
        "model": "m",
        "strategy": "sample",
        "device": "cuda:0",
        "clock": "cuda",
        "start_unix_ns": 0,
        "duration_s": last,
        "batch_size": 1,
        "input_tokens": 100,
        "input_tokens_per_row": (100,),
        "output_tokens": 3,
        "output_tokens_per_row": (3,),
        "ttft_s": ttft,
        "itl_s": [gap, gap],
        "tpot_s": gap,
        "e2e_s": last,
        "tgs": 3 / last,
        "decode_tgs": 1 / gap,
        "prefill_s": ttft / 2,
        "host_bound_ratio": 0.5,
        "mbu": 0.25,
        "memory_reserved_bytes": 2**30,
        "trace_id": "ab",
        "parameters": GenerationParameters(do_sample=True, temperature=0.7, top_p=0.9),
        "findings": (Finding("x", "warning", "X", "1 of 2", "do y"),),
    }
    return RequestRecord(**{**values, **more})


def rendered(*records, **options):
    """The report as a strict reader sees it."""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(json_report.render(build_report(records, **options)), parse_constant=refuse)


def test_the_exact_shape():
    """The keys of docs: at every level these and no others."""
    report = rendered(request(1.0, 0.5))
    assert list(report) == [
        "schema",
        "requests",
        "ttft_s",
        "ttft_by_prompt_tokens",
        "itl_s",
        "itl_by_position",
        "tpot_s",
        "e2e_s",
        "prefill_s",
        "tgs",
        "output_tokens",
        "input_tokens",
        "host_bound_ratio",
        "findings",
        "mbu",
        "mfu",
        "itl_trend",
        "groups",
        "ranks",
        "confidence",
        "cold",
    ]
    assert report["schema"] == "llmtrace.report/1"
    assert report["requests"] == {"total": 1, "ok": 1, "error": 0, "cold": 0}
    for name in ("ttft_s", "itl_s", "tpot_s", "e2e_s", "prefill_s"):
        assert set(report[name]) == SUMMARY
    for name in ("output_tokens", "input_tokens", "host_bound_ratio", "mbu"):
        assert set(report[name]) == SUMMARY
    assert report["mfu"] is None
    assert [set(b) for b in report["ttft_by_prompt_tokens"]] == [{"from", "to", "ttft_s"}] * 4
    assert [set(b) for b in report["itl_by_position"]] == [{"from", "to", "itl_s"}] * 4
    assert set(report["tgs"]) == {"request", "decode", "system", "conditions", "by_concurrency"}
    conditions = report["tgs"]["conditions"]
    assert {"prompt_tokens", "sampling", "concurrency", "gpu_memory_bytes"} <= set(conditions)
    assert set(conditions["concurrency"]) == {"mean", "max"}
    assert report["findings"] == [
        {
            "code": "x",
            "severity": "warning",
            "title": "X",
            "evidence": "1 of 2",
            "remedy": "do y",
            "trace_ids": ["ab"],
        }
    ]


def test_the_numbers_by_hand():
    """TTFT 1 and 3 s, gaps 0.5 and 0.25 s, the second started as the first one ended."""
    report = rendered(request(1.0, 0.5), request(3.0, 0.25, start_unix_ns=2 * 10**9))
    assert report["ttft_s"] == {
        "count": 2,
        "mean": 2.0,
        "std": 1.0,
        "min": 1.0,
        "p50": 2.0,
        "p90": pytest.approx(2.8),
        "p95": pytest.approx(2.9),
        "p99": pytest.approx(2.98),
        "max": 3.0,
    }
    assert (report["itl_s"]["count"], report["itl_s"]["mean"]) == (4, 0.375)
    assert report["tgs"]["system"] == pytest.approx(6 / 5.5)
    assert report["ttft_by_prompt_tokens"][0]["ttft_s"]["count"] == 2
    assert report["tgs"]["conditions"]["sampling"] == [
        {
            "strategy": "sample",
            "do_sample": True,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": None,
            "num_beams": None,
            "requests": 2,
        }
    ]
    assert report["tgs"]["conditions"]["gpu_memory_bytes"]["max"] == 2**30


def test_what_does_not_exist_is_null():
    """No requests, or failed ones alone: nulls, no zeros and no NaN."""
    for report in (rendered(), rendered(request(1.0, 0.5, error="builtins.ValueError"))):
        for name in ("ttft_s", "itl_s", "tpot_s", "e2e_s", "prefill_s", "host_bound_ratio"):
            assert report[name] is None
        assert report["tgs"]["system"] is None
        assert report["tgs"]["conditions"]["concurrency"] == {"mean": None, "max": None}
        assert {b["ttft_s"] for b in report["ttft_by_prompt_tokens"]} == {None}


def test_buckets_name_their_bounds():
    """Both bounds belong to the bucket; null is no bound; -10 to -1 are the last ten."""
    report = rendered(request(1.0, 0.5))
    bounds = [(b["from"], b["to"]) for b in report["ttft_by_prompt_tokens"]]
    assert bounds == [(1, 128), (129, 512), (513, 2048), (2049, None)]
    positions = [(b["from"], b["to"]) for b in report["itl_by_position"]]
    assert positions == [(1, 10), (11, 50), (51, 100), (-10, -1)]


def test_cold_requests_are_left_out_unless_asked_for():
    """The cold one's 9 s do not spoil the mean."""
    records = (request(9.0, 0.5, cold=True), request(1.0, 0.5))
    assert rendered(*records)["ttft_s"]["max"] == 1.0
    assert rendered(*records)["requests"]["cold"] == 1
    assert rendered(*records, include_cold=True)["ttft_s"]["max"] == 9.0


def test_only_cold_requests_are_nulls_and_a_finding():
    """A program finds the fact under its code, and no number to mistake for a warm one."""
    report = rendered(request(9.0, 0.5, cold=True, findings=()))
    assert report["ttft_s"] is None
    assert [finding["code"] for finding in report["findings"]] == ["only_cold_requests"]

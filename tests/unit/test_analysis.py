"""Numbers from records; every expected value is worked out here by hand."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.analysis import latency
from llmtrace.analysis.findings import merge_findings
from llmtrace.analysis.gaps import gaps_of, rows_of
from llmtrace.analysis.latency import pooled_itl, ttft_by_prompt_tokens
from llmtrace.analysis.phases import phases
from llmtrace.analysis.report import build_report
from llmtrace.analysis.summary import summarise
from llmtrace.analysis.throughput import load_of, throughput
from llmtrace.records import Finding, GenerationParameters, StepRecord, rows_per_gap
from tests.unit.requests import request


def itl_by_position(records):
    return latency.itl_by_position(records, gaps_of(records))


# Summaries


def test_summary_by_hand():
    """Percentiles of 1, 2, 3, 4, 5 interpolate: p90 = 4.6, p95 = 4.8, p99 = 4.96; std = sqrt 2."""
    s = summarise([5, 1, 4, 2, 3])
    assert s is not None
    assert (s.count, s.mean, s.min, s.p50, s.max) == (5, 3, 1, 3, 5)
    assert (s.p90, s.p95, s.p99) == pytest.approx((4.6, 4.8, 4.96))
    assert s.std == pytest.approx(math.sqrt(2))


def test_summary_of_nothing_is_none():
    """Neither an empty list nor one of absent values has a summary: never zeros."""
    assert summarise([]) is None
    assert summarise([None, None]) is None


def test_absent_values_are_not_zeros():
    """What does not exist is left out of count and mean."""
    s = summarise([None, 2.0, None, 4.0])
    assert s is not None
    assert (s.count, s.mean, s.min) == (2, 3, 2)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1))
def test_summary_is_ordered(values):
    """Percentiles ascend, lie within the bounds, and so does the mean."""
    s = summarise(values)
    assert s is not None
    ordered = [s.min, s.p50, s.p90, s.p95, s.p99, s.max]
    assert all(a <= b or math.isclose(a, b) for a, b in itertools.pairwise(ordered))
    assert s.min <= s.mean <= s.max
    assert s.std == pytest.approx(statistics.pstdev(values), rel=1e-6, abs=1e-6)


# Latency


def test_ttft_goes_by_the_longest_prompt_of_a_request():
    """A batch of 100 and 300 tokens counts at 300, not at 400 and not at 100."""
    batch = request(0.5, prompt=400, batch_size=2, input_tokens_per_row=(100, 300))
    buckets = ttft_by_prompt_tokens([request(0.1, prompt=128), request(0.2, prompt=129), batch])
    counts = {(b.first, b.last): b.summary and b.summary.count for b in buckets}
    assert counts == {(1, 128): 1, (129, 512): 2, (513, 2048): None, (2049, None): None}


def test_pooled_itl_weights_a_gap_by_its_rows():
    """Rows of 3 and 2 tokens: the first gap counts twice, the second once."""
    batch = request(0.1, 0.2, 0.5, batch_size=2, output_tokens=5, output_tokens_per_row=(3, 2))
    assert sorted(pooled_itl([batch])) == pytest.approx([0.1, 0.1, 0.3])


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 8))
def test_rows_of_gaps_are_those_of_the_metrics(rows, gaps):
    """Counted by search here, row by row there: the same."""
    batch = request(0.1, output_tokens_per_row=tuple(rows), itl_s=[0.1] * gaps)
    assert rows_of(batch).tolist() == rows_per_gap(batch)


def test_pooled_itl_counts_beams_once():
    """Four beams are one sequence in the making."""
    beams = request(
        0.1,
        0.2,
        0.5,
        output_tokens=6,
        output_tokens_per_row=(3, 3),
        parameters=GenerationParameters(num_beams=4),
    )
    assert list(pooled_itl([beams])) == pytest.approx([0.1, 0.3])


def test_itl_position_is_that_of_the_token_a_gap_ends_with():
    """Of 120 tokens with gap i before token i: 2-10, 11-50, 51-100, and the last ten 111-120."""
    times = list(itertools.accumulate(range(1, 121)))
    buckets = itl_by_position([request(*map(float, times))])
    found = [(b.first, b.last, b.summary.count, b.summary.min, b.summary.max) for b in buckets]
    assert found == [
        (1, 10, 9, 2, 10),
        (11, 50, 40, 11, 50),
        (51, 100, 50, 51, 100),
        (-10, -1, 10, 111, 120),
    ]


def test_last_tokens_are_each_rows_own():
    """Rows of 14 and 12 tokens, gap i before token i: 5..14 and 3..12."""
    times = [float(t) for t in itertools.accumulate(range(1, 15))]
    batch = request(*times, batch_size=2, output_tokens=26, output_tokens_per_row=(14, 12))
    last = itl_by_position([batch])[-1].summary
    assert last is not None
    assert (last.count, last.min, last.max) == (20, 3, 14)
    assert last.mean * 20 == pytest.approx(sum(range(5, 15)) + sum(range(3, 13)))


def test_last_tokens_of_a_truncated_request_are_not_known():
    """Only the first steps were recorded, so its last ones cannot be told."""
    cut = request(0.1, 0.2, 0.3, steps_truncated=True)
    assert itl_by_position([cut])[-1].summary is None
    assert itl_by_position([cut])[0].summary.count == 2


times_of_a_request = st.lists(st.floats(0.001, 10), min_size=1, max_size=40).map(
    lambda gaps: tuple(itertools.accumulate(gaps))
)


@given(times_of_a_request)
def test_identities_of_the_glossary(times):
    """E2E = TTFT + sum of ITL; mean ITL = TPOT; n - 1 gaps; TGS = n / E2E."""
    report = build_report([request(*times)])
    n = len(times)
    assert report.ttft_s.mean == pytest.approx(times[0])
    if n == 1:
        assert report.itl_s is None
        assert report.tpot_s is None
        assert report.tgs.decode is None
        assert report.e2e_s.mean == pytest.approx(times[0])
    else:
        assert report.itl_s.count == n - 1
        assert report.itl_s.mean == pytest.approx(report.tpot_s.mean)
        total = report.ttft_s.mean + report.itl_s.mean * report.itl_s.count
        assert report.e2e_s.mean == pytest.approx(total)
        assert report.tgs.decode.mean == pytest.approx(1 / report.tpot_s.mean)
    assert report.tgs.request.mean == pytest.approx(n / times[-1])


@given(st.lists(times_of_a_request, min_size=1, max_size=6))
def test_pooled_itl_is_the_token_weighted_mean_of_tpot(requests):
    """Pooling gaps weights each request by its gaps."""
    records = [request(*times) for times in requests]
    pooled = summarise(pooled_itl(records))
    weights = [len(r.itl_s) for r in records]
    if pooled is None:
        assert sum(weights) == 0
    else:
        weighted = sum(r.tpot_s * w for r, w in zip(records, weights, strict=True) if w)
        assert pooled.mean == pytest.approx(weighted / sum(weights))


# Throughput


def test_system_throughput_does_not_count_overlap_twice():
    """[0, 2] and [1, 4] s with 2 and 3 tokens: 5 tokens in 4 s; 5 s of requests: mean 1.25."""
    records = [request(1.0, 2.0), request(1.0, 2.0, 3.0, start=1.0)]
    found = throughput(records, records)
    assert found.system == pytest.approx(5 / 4)
    assert found.conditions.concurrency.mean == pytest.approx(1.25)
    assert found.conditions.concurrency.max == 2


def test_system_throughput_leaves_idle_time_out():
    """Two requests of 1 s and 2 tokens each, nine seconds apart: 4 tokens in 2 s."""
    records = [request(0.5, 1.0), request(0.5, 1.0, start=10.0)]
    found = throughput(records, records)
    assert found.system == pytest.approx(2.0)
    assert found.conditions.concurrency.max == 1


def test_back_to_back_requests_are_not_concurrent():
    """One starts in the very instant in which the other ends."""
    records = [request(1.0), request(1.0, start=1.0)]
    assert load_of(records, records).concurrency.max == 1


def test_request_alone_has_the_systems_throughput():
    """With one request, ended with its last token, TGS of request and system agree."""
    report = build_report([request(0.5, 0.7, 1.0)])
    assert report.tgs.system == pytest.approx(report.tgs.request.mean)


def test_a_batch_counts_the_tokens_of_all_rows():
    """Rows of 3 and 2 tokens in 2 s: 2.5 tokens a second."""
    batch = request(1.0, 1.5, 2.0, batch_size=2, output_tokens=5, output_tokens_per_row=(3, 2))
    assert throughput([batch], [batch]).system == pytest.approx(2.5)


def test_requests_left_out_are_still_load():
    """A failed request beside a good one makes two at a time, for half of the good one's time."""
    good, failed = request(1.0, 2.0), request(1.0, start=1.0, error="builtins.ValueError")
    found = build_report([good, failed]).tgs
    assert found.system == pytest.approx(1.0)
    assert found.conditions.concurrency.mean == pytest.approx(1.5)
    assert found.conditions.concurrency.max == 2


def test_no_tokens_is_no_throughput():
    """Of a request that gave no token there is no system figure: not 0."""
    report = build_report([request(duration=1.0)])
    assert report.tgs.system is None
    assert report.tgs.request is None


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=12))
def test_busy_time_is_the_union(spans):
    """Busy seconds are those in which some request ran; counted one by one, they agree."""
    records = [request(float(length), start=float(start)) for start, length in spans]
    load = load_of(records, records)
    seconds = [sum(s <= t < s + n for s, n in spans) for t in range(80)]
    busy = [at_once for at_once in seconds if at_once]
    assert load.busy_s == pytest.approx(len(busy))
    assert load.concurrency.max == max(busy)
    assert load.concurrency.mean == pytest.approx(sum(busy) / len(busy))


def test_the_four_conditions():
    """Prompts row by row, settings with their count, load, and memory held."""
    hot = GenerationParameters(do_sample=True, temperature=0.7, top_p=0.9)
    records = [
        request(1.0, prompt=30, input_tokens_per_row=(10, 20), batch_size=2),
        request(1.0, start=1, prompt=30, strategy="sample", parameters=hot),
        request(1.0, start=2, prompt=60, strategy="sample", parameters=hot),
    ]
    records[1] = replace(records[1], memory_allocated_bytes=5, memory_reserved_bytes=8)
    records[2] = replace(records[2], memory_peak_bytes=6)
    found = throughput(records, records).conditions
    assert found.prompt_tokens.count == 4
    assert found.prompt_tokens.mean == pytest.approx((10 + 20 + 30 + 60) / 4)
    assert [(s.strategy, s.temperature, s.requests) for s in found.sampling] == [
        ("sample", 0.7, 2),
        ("greedy", None, 1),
    ]
    assert (found.gpu_memory_bytes.min, found.gpu_memory_bytes.max) == (6, 8)
    assert found.batch_sizes == (1, 2)


# Phases


def decode_step(index, start, end, **durations):
    return StepRecord(index, "decode", start, end, 1, 1, **durations)


def test_phases_tile_the_time():
    """Queue 1, tokenize 1, prefill 2, forwards 3, 2 between, 1 to return: of 10 s in all."""
    record = request(
        3.0,
        5.0,
        7.0,
        duration=8.0,
        queue_s=1.0,
        tokenize_s=1.0,
        prefill_s=2.0,
        first_delivery_s=3.5,
        steps=[
            StepRecord(0, "prefill", 0.0, 3.0, 1, 1, host_duration_s=2.0),
            decode_step(1, 3.0, 5.0, host_duration_s=1.0),
            decode_step(2, 5.0, 7.0, host_duration_s=0.1, device_duration_s=2.0),
        ],
    )
    found = phases([record])
    assert found is not None
    assert {p.name: (p.mean_s, p.share) for p in found.parts} == {
        "queue": pytest.approx((1, 0.1)),
        "tokenize": pytest.approx((1, 0.1)),
        "prefill": pytest.approx((2, 0.2)),
        "sampling": pytest.approx((2, 0.2)),
        "decode": pytest.approx((3, 0.3)),
        "return": pytest.approx((1, 0.1)),
    }
    assert found.delivery.mean_s == pytest.approx(0.5)


def test_a_schedulers_queue_is_inside_the_request_and_counts_once():
    """Queue 1, prefill 2, forwards 1, 1 between: of 5 s, none of them twice."""
    record = request(
        3.5,
        5.0,
        queue_s=1.0,
        preemptions=0,
        prefill_s=2.0,
        steps=[
            StepRecord(0, "prefill", 0.0, 3.5, 1, 1, host_duration_s=2.0),
            decode_step(1, 3.5, 5.0, host_duration_s=1.0),
        ],
    )
    found = phases([record])
    assert found is not None
    assert {p.name: p.mean_s for p in found.parts} == {
        "queue": pytest.approx(1),
        "tokenize": None,
        "prefill": pytest.approx(2),
        "sampling": pytest.approx(1),
        "decode": pytest.approx(1),
        "return": pytest.approx(0),
    }


def test_phases_that_no_request_has_are_absent():
    """Without a server span there is no queue: None, not 0."""
    step = StepRecord(0, "prefill", 0.0, 1.0, 1, 1)
    found = phases([request(1.0, prefill_s=0.5, steps=[step])])
    assert found is not None
    assert (found.parts[0].name, found.parts[0].share) == ("queue", None)


@pytest.mark.parametrize(
    "unknown",
    [
        {"prefill_s": None},
        {"steps": []},
        {"steps_truncated": True},
        {"steps": [StepRecord(0, "prefill", 0.0, 1.0, 1, 1), decode_step(1, 1.0, 2.0)]},
    ],
)
def test_requests_with_an_unknown_part_have_no_phases(unknown):
    """A share of a whole that is not known is not guessed."""
    step = StepRecord(0, "prefill", 0.0, 1.0, 1, 1)
    known = {"prefill_s": 0.5, "steps": [step, decode_step(1, 1.0, 2.0, host_duration_s=0.5)]}
    assert phases([request(1.0, 2.0, **known)]) is not None
    assert phases([request(1.0, 2.0, **{**known, **unknown})]) is None


# Reports


def test_failed_and_cold_requests_are_counted_and_left_out():
    """One warm, one cold, one failed: total = ok + error, and the numbers are the warm one's."""
    records = [
        request(9.0, cold=True),
        request(1.0),
        request(7.0, error="builtins.RuntimeError"),
    ]
    report = build_report(records)
    counts = report.requests
    assert (counts.total, counts.ok, counts.error, counts.cold) == (3, 2, 1, 1)
    assert (report.ttft_s.count, report.ttft_s.max) == (1, 1.0)
    assert report.errors == (("builtins.RuntimeError", 1),)
    assert build_report(records, include_cold=True).ttft_s.max == 9.0


def test_only_cold_requests_is_a_finding():
    """With no warm request nothing is summarised, and the cold ones' numbers lie apart."""
    report = build_report([request(9.0, cold=True, trace_id="a", cold_reasons=("compilation",))])
    assert report.ttft_s is None
    finding = report.findings[0]
    assert (finding.code, finding.severity) == ("only_cold_requests", "warning")
    assert finding.trace_ids == ("a",)
    assert "compilation" in finding.evidence
    assert report.cold is not None
    assert report.cold.ttft_s.max == 9.0


def test_nothing_at_all():
    """An empty list of records has a report, of nothing."""
    report = build_report([])
    assert report.requests.total == 0
    assert (
        report.ttft_s is report.itl_s is report.tgs.system is report.phases is report.cold is None
    )
    assert report.findings == ()


# Findings


def test_equal_findings_are_one_with_all_their_traces():
    """Merged by code, severity and title; the worst come first."""
    note = Finding("a", "info", "A", "1 of 2", "do")
    bad = Finding("b", "error", "B", "x", "do")
    found = merge_findings(
        [
            request(1.0, trace_id="t1", findings=(note,)),
            request(1.0, trace_id="t2", findings=(replace(note, evidence="2 of 2"), bad)),
            request(1.0, trace_id="t2", findings=(note,)),
        ]
    )
    assert [(f.code, f.trace_ids) for f in found] == [("b", ("t2",)), ("a", ("t1", "t2"))]
    assert found[1].evidence == "1 of 2; other requests differ"


def test_a_finding_known_by_its_code_alone_gets_its_words_back():
    """A file holds codes; title and remedy of known ones are the same as in the process."""
    truncated, strange = merge_findings(
        [
            request(
                1.0,
                findings=(
                    Finding("steps_truncated", "info", "", "", ""),
                    Finding("never_heard_of", "info", "", "", ""),
                ),
            )
        ]
    )
    assert truncated.title == "Only the first steps were recorded singly"
    assert "max_step_spans" in truncated.remedy
    assert strange.title == "never heard of"

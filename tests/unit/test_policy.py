"""Policies: what they may hold, and what becomes of requests; worked out here by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.analysis.goodput import keeps
from llmtrace.analysis.policy import (
    ConditionsRule,
    GoodputRule,
    LatencyRule,
    PromptRateRule,
    Prompts,
    ThroughputRule,
    TokenRateRule,
)
from llmtrace.analysis.policy_toml import PRESETS, parse, preset
from llmtrace.analysis.report import build_report, counted_requests
from llmtrace.analysis.verdicts import check
from llmtrace.errors import PolicyError
from llmtrace.reports import check_json, check_text, junit
from tests.unit.requests import request, request_of_gaps


def checked(policy, records, **options):
    if isinstance(policy, str):
        policy = parse(policy, "p.toml")
    counted = counted_requests(records, **options)
    failed = [r for r in records if r.error is not None]
    return check(policy, counted, failed, build_report(records, **options))


def outcomes(policy, records):
    return [v.outcome for v in checked(policy, records).verdicts]


# What a policy holds


def test_the_documented_policy():
    """Each line of it becomes the rule that it says; buckets begin where those below end."""
    policy = parse(
        """
        [samples]
        min = 7
        [[ttft]]
        p95_ms = 800
        [[ttft]]
        max_prompt_tokens = 128
        p95_ms = 300
        p50_ms = 100
        [itl]
        p95_ms = 50
        [tgs]
        require_conditions = true
        min_system = 60.0
        """,
        "p.toml",
    )
    assert policy.min_samples == 7
    assert policy.rules == (
        LatencyRule("ttft", "p50", 0.1, Prompts(0, 128)),
        LatencyRule("ttft", "p95", 0.3, Prompts(0, 128)),
        LatencyRule("ttft", "p95", 0.8, Prompts(129, None)),
        LatencyRule("itl", "p95", 0.05),
        ConditionsRule(),
        ThroughputRule(60.0),
    )


def test_the_presets_are_what_they_are_named_after():
    """The three rules for going live; MLPerf's two rows; FastGen's two conditions."""
    assert preset("default").rules == (
        LatencyRule("ttft", "p95", 0.3, Prompts(0, 128)),
        LatencyRule("ttft", "p95", 0.45, Prompts(129, 512)),
        LatencyRule("ttft", "p95", 0.8, Prompts(513, None)),
        LatencyRule("itl", "p95", 0.05),
        ConditionsRule(),
    )
    for name, ttft, tpot in (("server", 2.0, 0.2), ("interactive", 0.45, 0.04)):
        assert preset(f"mlperf-llama2-70b-{name}").rules == (
            LatencyRule("ttft", "p99", ttft, from_request=True),
            LatencyRule("tpot", "p99", tpot),
        )
    assert preset("fastgen").rules == (
        PromptRateRule(512.0, 0.99),
        TokenRateRule(4.0, 16, 0.99),
    )
    assert set(PRESETS) >= {"default", "fastgen"}


def test_rules_of_goodput():
    """A share, a number per second, or both."""
    rules = parse("goodput = {min_share = 0.9, min_requests_per_s = 2}", "p").rules
    assert rules == (GoodputRule(0.9, per_second=False), GoodputRule(2.0, per_second=True))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[itl", "p.toml: not TOML: "),
        ("", "p.toml: holds no rule"),
        ("[samples]\nmin = 5", "p.toml: holds no rule"),
        ("[tgs]\nrequire_conditions = false", "p.toml: holds no rule"),
        ("[ITL]\np95_ms = 5", "p.toml: ITL: unknown key; known here: samples, ttft, itl"),
        ("[itl]\np96_ms = 5", "p.toml: [itl] p96_ms: unknown key; known here: mean_ms, p50_ms"),
        (
            "[[ttft]]\np95_ms = 1\n[[ttft]]\nmax_prompt_tokens = 1\nx = 1",
            "p.toml: [[ttft]] no. 2 x: unknown key",
        ),
        ("[itl]\np95_ms = 'fast'", "p.toml: [itl] p95_ms: must be a number above 0"),
        ("[itl]\np95_ms = true", "p.toml: [itl] p95_ms: must be a number"),
        ("[itl]\np95_ms = -1", "p.toml: [itl] p95_ms: must be a number above 0"),
        ("[itl]\np95_ms = nan", "p.toml: [itl] p95_ms: must be a number"),
        ("[itl]\np95_ms = inf", "p.toml: [itl] p95_ms: must be a number"),
        ("itl = 5", "p.toml: [itl]: must be a table, not 5"),
        ("ttft = 5", "p.toml: [ttft]: must be a table, not 5"),
        ("ttft = [5]", "p.toml: [[ttft]] no. 1: must be a table, not 5"),
        ("[[ttft]]\nmax_prompt_tokens = 5", "p.toml: [[ttft]] no. 1: has no limit"),
        ("[[ttft]]\nmax_prompt_tokens = 5.5\np50_ms=1", "max_prompt_tokens: must be a whole"),
        ("[[ttft]]\np50_ms=1\n[[ttft]]\np50_ms=2", "[[ttft]] no. 2 max_prompt_tokens: two buckets"),
        ("[[ttft]]\nfrom='x'\np50_ms=2", '[[ttft]] no. 1 from: must be "generate" or "request"'),
        ("[[ttft]]\nmin_share=0.5\np50_ms=2", "min_share: goes with prompt_tokens_per_s only"),
        ("[rate]\nema_span = 4", "p.toml: [rate] min_tokens_per_s: is missing"),
        ("[rate]\nmin_tokens_per_s=1\nmin_share=1.5", "[rate] min_share: must be a number"),
        ("[tgs]\nrequire_conditions = 1", "p.toml: [tgs] require_conditions: must be true or"),
        ("[goodput]", "p.toml: [goodput]: has no limit"),
        ('[itl]\n"a\\u001bb" = 1', "p.toml: [itl] a?b: unknown key"),
    ],
)
def test_what_is_no_policy_is_one_line_with_key_and_place(text, message):
    """Never a traceback; the message names the file, the table and the key."""
    with pytest.raises(PolicyError) as caught:
        parse(text, "p.toml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


TOML_KEYS = st.sampled_from(
    [
        "samples",
        "ttft",
        "itl",
        "tpot",
        "rate",
        "tgs",
        "goodput",
        "min",
        "p95_ms",
        "from",
        "min_share",
    ]
)
TOML_VALUES = st.recursive(
    st.integers(-3, 3) | st.floats() | st.booleans() | st.text("a\x1b", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TOML_KEYS, inner, max_size=3),
    max_leaves=8,
)


def as_toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {as_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value)
    return str(value).lower()


@given(st.dictionaries(TOML_KEYS, TOML_VALUES, max_size=5))
def test_any_toml_is_a_policy_or_one_line(document):
    """Whatever stands where."""
    text = "\n".join(f"{key} = {as_toml(value)}" for key, value in document.items())
    try:
        said = parse(text, "p").name
    except PolicyError as error:
        said = str(error)
    assert said.splitlines() == [said]
    assert said.startswith("p")


# What becomes of requests


def test_a_limit_is_kept_when_it_is_met():
    """p95 of 20 times 0.3 s is 0.3 s: 300 ms passes, 299 ms fails."""
    records = [request(0.3, start=i) for i in range(20)]
    assert outcomes("[[ttft]]\np95_ms = 300", records) == ["PASS"]
    assert outcomes("[[ttft]]\np95_ms = 299", records) == ["FAIL"]


def test_each_bucket_has_its_own_samples():
    """20 short prompts within their limit, 20 long ones beyond theirs, 3 in between."""
    records = [
        request(ttft, prompt=prompt, start=i)
        for prompt, ttft, n in ((128, 0.2, 20), (129, 9.0, 3), (600, 0.9, 20))
        for i in range(n)
    ]
    found = checked(preset("default"), records).verdicts[:3]
    assert [(v.outcome, v.value, v.samples) for v in found] == [
        ("PASS", pytest.approx(0.2), 20),
        ("UNDECIDED", pytest.approx(9.0), 3),
        ("FAIL", pytest.approx(0.9), 20),
    ]
    assert found[1].note == "fewer than 20 samples"


def test_prompts_in_no_bucket_are_told():
    """One longer than the longest bound, one of unknown length: neither is held to anything."""
    records = [request(0.1), request(9.0, prompt=600), request(9.0, input_tokens=None)]
    records[2] = replace(records[2], input_tokens_per_row=())
    policy = "samples.min = 1\n[[ttft]]\nmax_prompt_tokens = 512\nmax_ms = 500"
    found = checked(policy, records)
    assert (found.outcome, found.outside) == ("PASS", 2)
    assert "In no bucket of prompt lengths, so without a TTFT limit: 2 requests" in (
        check_text.render(found)
    )
    assert json.loads(check_json.render(found))["outside_prompt_buckets"] == 2
    assert checked("[[ttft]]\nmax_ms = 500", records).outside == 0
    assert checked("[itl]\nmax_ms = 500", records).outside == 0


def test_without_samples_nothing_passes():
    """No request at all, and requests of a single token where ITL is asked for."""
    for records in ([], [request(0.1)] * 30):
        assert outcomes("[itl]\np95_ms = 50", records) == ["UNDECIDED"]


def test_statistics_by_hand():
    """TTFT of 1 .. 5 s: mean 3, p50 3, p90 4.6, max 5."""
    records = [request(float(i), start=10 * i) for i in range(1, 6)]
    policy = (
        "samples.min = 5\n[[ttft]]\nmean_ms = 3000\np50_ms = 2999\np90_ms = 4600.1\nmax_ms = 4999"
    )
    assert outcomes(policy, records) == ["PASS", "FAIL", "PASS", "FAIL"]


def test_ttft_from_the_request():
    """Where the queue is known it counts; where not, generate() is all there is."""
    queued = request(0.1, ttft_from_request_s=5.0)
    policy = "samples.min = 1\n[[ttft]]\nfrom = 'request'\nmax_ms = 1000"
    assert outcomes(policy, [queued]) == ["FAIL"]
    assert outcomes(policy, [request(0.1)]) == ["PASS"]


def test_conditions():
    """On a CPU there is no GPU memory to know; on a GPU it must have been recorded."""
    policy = "[tgs]\nrequire_conditions = true"
    assert outcomes(policy, [request(1.0)]) == ["PASS"]
    (verdict,) = checked(policy, [request(1.0, device="cuda:0")]).verdicts
    assert (verdict.outcome, verdict.note) == ("FAIL", "not recorded: GPU memory")
    assert outcomes(policy, [request(1.0, device="cuda:0", memory_peak_bytes=1)]) == ["PASS"]
    assert outcomes(policy, []) == ["UNDECIDED"]


def test_system_throughput():
    """20 requests of 2 tokens and 1 s each, one after the other: 2 tokens a second."""
    records = [request(0.5, 1.0, start=i) for i in range(20)]
    assert outcomes("[tgs]\nmin_system = 2.0", records) == ["PASS"]
    assert outcomes("[tgs]\nmin_system = 2.1", records) == ["FAIL"]


def test_ttft_in_proportion_to_the_prompt():
    """512 tokens a second: 1 s for 512 tokens, a quarter for 128; three of four keep it."""
    records = [
        request(1.0, prompt=512),
        request(0.25, prompt=128),
        request(0.26, prompt=128),
        request(0.1, prompt=600),
    ]
    policy = "samples.min = 4\n[[ttft]]\nprompt_tokens_per_s = 512\nmin_share = {}"
    (verdict,) = checked(policy.format(0.75), records).verdicts
    assert (verdict.outcome, verdict.value, verdict.samples) == ("PASS", 0.75, 4)
    assert outcomes(policy.format(0.76), records) == ["FAIL"]


def test_what_has_no_ttft_or_no_prompt_length_breaks_no_prompt_rate():
    """An empty block, and a prompt nobody counted: no samples, as for other limits of TTFT."""
    records = [request(0.2, prompt=128), request(), request(0.2, prompt=None)]
    records[2] = replace(records[2], input_tokens_per_row=())
    policy = "samples.min = 1\n[[ttft]]\nprompt_tokens_per_s = 512"
    (verdict,) = checked(policy, records).verdicts
    assert (verdict.outcome, verdict.value, verdict.samples) == ("PASS", 1.0, 1)


def test_moving_average_of_the_gaps():
    """Span 3, so a = 1/2: after gaps of 1, 0 and 4 the averages are 1, 1/3 and 17/7.

    (0 + 1/2 * 1) / (1 + 1/2) = 1/3; (4 + 1/2 * 0 + 1/4 * 1) / (1 + 1/2 + 1/4) = 17/7.
    """
    record = request_of_gaps(0.1, [1.0, 0.0, 4.0])
    policy = "samples.min = 1\n[rate]\nema_span = 3\nmin_tokens_per_s = {}"
    assert outcomes(policy.format(7 / 17 - 1e-9), [record]) == ["PASS"]
    assert outcomes(policy.format(7 / 17 + 1e-9), [record]) == ["FAIL"]


def test_cold_and_failed_requests_do_not_count():
    """Unless asked for; and a failed one is no good output."""
    slow = request(9.0, cold=True)
    failed = request(9.0, error="builtins.RuntimeError", start=20)
    good = request(0.1, start=40)
    policy = "samples.min = 1\n[[ttft]]\nmax_ms = 1000"
    found = checked(policy, [slow, failed, good])
    assert found.outcome == "PASS"
    assert (found.goodput.good, found.goodput.requests) == (1, 2)
    assert checked(policy, [slow, failed, good], include_cold=True).outcome == "FAIL"


def test_goodput():
    """Of four requests of 1 s, one breaks TTFT, one ITL, one failed: one is good, in 4 s."""
    good = request(0.2, 0.3, 1.0)
    late = request(0.9, 1.0, start=1)
    stuttering = request(0.2, 1.0, start=2)
    failed = request(0.1, 1.0, start=3, error="E")
    policy = "samples.min = 1\n[[ttft]]\np50_ms = 100\np95_ms = 500\n[itl]\nmean_ms = 500"
    found = checked(policy, [good, late, stuttering, failed]).goodput
    assert (found.good, found.requests, found.share) == (1, 4, 0.25)
    assert found.requests_per_s == pytest.approx(0.25)
    assert found.tokens_per_s == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        ("[itl]\np50_ms = 200", True),
        ("[itl]\nmax_ms = 200", False),
        ("[tpot]\np99_ms = 300", False),
        ("[tpot]\np99_ms = 400", True),
        ("[e2e]\np99_ms = 800", True),
        ("[e2e]\np99_ms = 799", False),
        ("[[ttft]]\nmax_prompt_tokens = 9\np99_ms = 1", True),
        ("[rate]\nmin_tokens_per_s = 4\nmin_share = 0.1", False),
        ("[[ttft]]\nprompt_tokens_per_s = 100", True),
        ("[[ttft]]\nprompt_tokens_per_s = 101", False),
    ],
)
def test_whether_a_request_is_good(policy, kept):
    """Prompt of 10, TTFT 0.1 s, gaps 0.1 and 0.6 s: TPOT 0.35 s; a bucket of others is not its."""
    record = request_of_gaps(0.1, [0.1, 0.6], e2e_s=0.8)
    # Gaps of 0.1 and 0.6 have p50 0.35: beyond 0.2.
    if policy == "[itl]\np50_ms = 200":
        record = request_of_gaps(0.1, [0.1, 0.1, 0.6], e2e_s=0.8)
    assert keeps(parse(policy, "p"), record) is kept


def test_a_request_of_one_token_breaks_no_tpot():
    """It has none; but without a first token nothing is kept."""
    assert keeps(parse("[tpot]\np99_ms = 1", "p"), request(0.1))
    assert not keeps(parse("[[ttft]]\np99_ms = 1000", "p"), request(duration=1.0))


# Forms


def both():
    policy = "samples.min = 2\n[[ttft]]\nmax_ms = 50\n[itl]\nmax_ms = 200\n[tpot]\nmax_ms = 1"
    return checked(policy, [request(0.1, 0.2, start=i) for i in range(2)] + [request(0.1, start=9)])


def test_json_form():
    """Every rule with value, limit, samples and outcome; strict JSON."""
    found = json.loads(check_json.render(both()), parse_constant=pytest.fail)
    assert found["schema"] == "llmtrace.check/1"
    assert found["outcome"] == "FAIL"
    assert [(r["rule"], r["outcome"], r["samples"]) for r in found["rules"]] == [
        ("TTFT max", "FAIL", 3),
        ("ITL max", "PASS", 2),
        ("TPOT max", "FAIL", 2),
    ]
    assert found["rules"][0]["limit"] == 0.05
    assert found["goodput"]["good"] == 0
    assert found["conditions"]["prompt_tokens"]["count"] == 3


def test_junit_form():
    """A test case for each rule: failures fail, what is undecided is skipped."""
    records = [request(0.1, start=i) for i in range(3)]
    found = checked("samples.min = 2\n[[ttft]]\nmax_ms = 50\np50_ms=500\n[itl]\nmax_ms=1", records)
    suite = ET.fromstring(junit.render(found))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    cases = {case.get("name"): [child.tag for child in case] for case in suite}
    assert cases == {"TTFT p50": ["system-out"], "TTFT max": ["failure"], "ITL max": ["skipped"]}
    (failure,) = suite.iter("failure")
    assert failure.get("message") == "FAIL: 100.00, limit <= 50.00 ms, 3 samples"


def test_text_form():
    """A line for each rule, with value, limit and samples; formulas and conditions beneath."""
    said = check_text.render(both())
    assert said.startswith("FAIL  policy p.toml")
    (line,) = [text for text in said.splitlines() if "TTFT max" in text]
    assert line.split() == ["FAIL", "TTFT", "max", "100.00", "<=", "50.00", "ms", "3"]
    for word in ("goodput", "concurrency", "Percentiles", "Clock: host"):
        assert word in said


def test_text_form_where_all_were_cold():
    """It says why everything is undecided."""
    found = checked("[[ttft]]\nmax_ms = 50", [request(1.0, cold=True)])
    assert found.outcome == "UNDECIDED"
    assert "Every request was cold" in check_text.render(found)

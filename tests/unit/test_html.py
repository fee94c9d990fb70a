"""The page's data: exact, bounded in size, and unable to break out of its place."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import unescape
from pathlib import Path

import pytest

from llmtrace.analysis.report import build_report
from llmtrace.analysis.timeline import timeline
from llmtrace.records import Finding, RequestRecord, StepRecord
from llmtrace.reports import html
from llmtrace.reports.html.curves import histogram
from llmtrace.reports.html.page import SCRIPTS
from llmtrace.reports.html.payload import payload
from llmtrace.reports.html.steps import choose, encoded_steps
from llmtrace.reports.html.timeline import binned
from llmtrace.sources.recording import Problems
from tests.synthetic import invented

SECOND = 1_000_000_000


def request(ttft=0.25, gaps=(0.125, 0.25), start=0.0, **more):
    """One row; a step for each gap, its forward 3/4 of it, launched 1 ms before it was done."""
    ends = [ttft]
    for gap in gaps:
        ends.append(ends[-1] + gap)
    steps = [
        StepRecord(
            i,
            "decode" if i else "prefill",
            ends[i - 1] if i else 0.0,
            end,
            1,
            1,
            host_duration_s=0.05,
            device_duration_s=0.1,
            launch_lead_s=0.001,
        )
        for i, end in enumerate(ends)
    ]
    values = {
        "model": "m",
        "strategy": "greedy",
        "device": "cuda:0",
        "clock": "cuda",
        "start_unix_ns": round(start * SECOND),
        "duration_s": ends[-1],
        "input_tokens": 10,
        "output_tokens": len(ends),
        "output_tokens_per_row": (len(ends),),
        "ttft_s": ttft,
        "itl_s": list(gaps),
        "e2e_s": ends[-1],
        "steps": steps,
        "trace_id": f"{round(start * 1000):032x}",
    }
    return RequestRecord(**{**values, **more})


def page(*records, **options):
    return html.render(build_report(records, **options), records, **options)


def data_of(text):
    """The page's data, as its script reads it."""
    (found,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL
    )

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(found, parse_constant=refuse)


# What is in it


def test_durations_are_whole_microseconds():
    """250 ms to the first token, gaps of 125 and 250 ms, in columns."""
    data = data_of(page(request(), request(start=1.5)))
    table = data["requests"]
    assert table["count"] == 2
    assert table["start"] == [0, 1_500_000]
    assert table["ttft"] == [250_000] * 2
    assert table["itl_max"] == [250_000] * 2
    assert table["e2e"] == [625_000] * 2
    assert data["steps"]["of"]["1"] == {
        "length": [250_000, 125_000, 250_000],
        "host": [50_000] * 3,
        "device": [100_000] * 3,
        "lead": [1000] * 3,
    }


def test_what_does_not_exist_has_no_column_and_no_zero():
    """No queue was recorded of any request, and no TTFT of the second."""
    table = data_of(page(request(), request(ttft_s=None, start=1)))["requests"]
    assert "queue" not in table
    assert table["ttft"] == [250_000, None]


def test_words_stand_once():
    """The model's name is written once for all requests; a good one has no error."""
    table = data_of(page(request(), request(start=1, error="a.B")))["requests"]
    assert table["model"] == {"words": ["m"], "at": [0, 0]}
    assert table["error"] == {"words": ["a.B"], "at": [None, 0]}


def test_the_numbers_are_the_json_reports():
    """Headline and tables of the page come from the same object as ``--format json``."""
    from llmtrace.reports import json_report

    records = [request(), request(0.5, start=2)]
    said = data_of(page(*records))["report"]
    theirs = json.loads(json_report.render(build_report(records)))
    assert {**said, "findings": []} == {**theirs, "findings": []}


def test_counted_requests_are_marked():
    """Cold and failed requests are in the table and out of the charts, unless asked for."""
    records = [request(cold=True), request(start=1), request(start=2, error="E")]
    assert data_of(page(*records))["requests"]["counted"] == [0, 1, 0]
    assert data_of(page(*records, include_cold=True))["requests"]["counted"] == [1, 1, 0]
    only_cold = data_of(page(records[0]))
    assert only_cold["requests"]["counted"] == [1]
    assert only_cold["all_cold"]


def test_a_finding_leads_to_its_requests():
    """Trace ids become rows of the table."""
    found = Finding("code", "warning", "Title", "1 of 2", "Do it.")
    records = [request(), request(start=1, findings=(found,)), request(start=2, findings=(found,))]
    (told,) = data_of(page(*records))["report"]["findings"]
    assert (told["rows"], told["requests"]) == ([1, 2], 2)
    assert "trace_ids" not in told


def test_a_page_of_nothing():
    """No request that succeeded: no curve, no histogram, and still a page."""
    data = data_of(page(request(error="E", ttft_s=None, itl_s=[], steps=[])))
    assert data["itl_curve"] is None
    assert data["ttft_histogram"] is None
    assert data["itl_histogram"] is None
    assert data["counted"] == 0


# Curves


def test_itl_curve_by_hand():
    """Position 2: 10, 20, 30 ms; position 3: 40 ms. P5 of three is 10 % up from the first."""
    records = [request(gaps=(0.01,)), request(gaps=(0.02, 0.04)), request(gaps=(0.03,))]
    curve = payload(build_report(records), records, include_cold=False)["itl_curve"]
    assert curve["first"] == 2
    assert list(curve["count"]) == [3, 1]
    assert curve["p50"] == [20_000, 40_000]
    assert curve["p5"] == [11_000, 40_000]
    assert curve["p95"] == [29_000, 40_000]


def test_histogram_counts_everything():
    """Of 1,000 values 990 lie in the bins; the largest hundredth is counted apart."""
    found = histogram([0.01 + i * 1e-5 for i in range(990)] + [5.0] * 10)
    assert found is not None
    assert sum(found["counts"]) + found["over"] == 1000
    assert found["over"] == 10
    assert found["max"] == 5e6
    assert found["from"] + found["width"] * len(found["counts"]) < 5e6


@pytest.mark.parametrize("value", [0.0, 0.25])
def test_histogram_of_equal_values_is_one_bar(value):
    """A single bar, around the value."""
    found = histogram([value] * 3)
    assert found is not None
    assert found["counts"] == [3]
    assert found["from"] <= value * 1e6 <= found["from"] + found["width"]


def test_timeline_by_hand():
    """Two requests, the second from the middle of the first: 1, then 2, then 1 running."""
    records = [request(1.0, [1.0], duration_s=2.0), request(1.0, [1.0], start=1, duration_s=2.0)]
    found = binned(timeline(records, records))
    assert found is not None
    assert found["width_ms"] == pytest.approx(250)
    (stretch,) = found["stretches"]
    assert stretch["running"] == [1] * 4 + [2] * 4 + [1] * 4
    # Tokens at 1, 2, 2 and 3 s; the last bin has its end.
    assert sum(stretch["tgs"]) * 0.25 == pytest.approx(4)
    assert stretch["tgs"][8] == pytest.approx(2 / 0.25)


def test_idle_time_is_cut_out():
    """Two requests an hour apart: two stretches, and bins no wider than for the two alone."""
    records = [request(), request(start=3600)]
    found = binned(timeline(records, records))
    assert found is not None
    assert [s["from_ms"] for s in found["stretches"]] == [0, 3_600_000]
    assert found["width_ms"] == pytest.approx(2 * 625 / 12)


# Size


def test_all_steps_are_there_as_long_as_they_fit():
    """200 requests of up to 60 tokens: nothing is left out."""
    records = invented(200, tokens=60)
    assert choose(records) == list(range(200))


def test_whose_steps_are_kept():
    """What does not fit is left out: last the failed, those with findings, and the slowest."""
    records = [request(start=i) for i in range(100)]
    records[70] = request(start=70, error="E")
    records[30] = request(start=30, findings=(Finding("f", "info", "", "", ""),))
    records[55] = request(9.0, start=55)
    records[56] = request(0.25, [7.0, 0.1], start=56)
    each = 3 * 4
    assert set(choose(records, most=4 * each)) == {30, 55, 56, 70}
    chosen = choose(records, most=60 * each)
    assert len(chosen) == 60
    told = encoded_steps(records, chosen)
    assert (told["chosen"], told["all"]) == (60, 100)


def test_the_rest_is_taken_evenly():
    """With no request slower than another, those kept lie in every tenth of the time."""
    records = [request(start=i) for i in range(1000)]
    chosen = choose(records, most=300 * 12)
    assert len(chosen) == 300
    assert {place // 100 for place in chosen} == set(range(10))


def test_ten_thousand_requests_make_a_page_of_bounded_size():
    """10,000 requests of 150 to 300 tokens, 2.2 million gaps: less than 6 MB."""
    records = invented(10_000)
    report = build_report(records)
    text = html.render(report, records)
    assert len(text) < 6e6
    data = data_of(text)
    assert data["requests"]["count"] == 10_000
    assert 0 < data["steps"]["chosen"] < data["steps"]["all"] == 10_000


# Safety

EVIL = "</script><img src=x onerror=alert(1)><!-- $data &amp; \u2028 \ud800"


def test_text_of_a_trace_stays_text():
    """A model's name that tries to end the script does not; it arrives as it was."""
    named = request(model=EVIL, findings=(Finding("c", "info", EVIL, EVIL, EVIL),))
    text = page(named)
    assert text.count("</script>") == 2
    assert "<img" not in text
    assert data_of(text)["requests"]["model"]["words"] == [EVIL]
    title = re.search(r"<title>(.*?)</title>", text, re.DOTALL)
    assert title is not None
    assert "<" not in title[1]


def test_nothing_may_be_fetched_and_only_our_script_runs():
    """The policy forbids everything but the style and the script of the page, by their hashes."""
    text = page(request())
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert found is not None
    policy = dict(part.split(" ", 1) for part in unescape(found[1]).split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["img-src"] == "data:"
    for kind, start in (("script-src", "<script>"), ("style-src", "<style>")):
        inside = text.rpartition(start)[2].partition(f"</{start[1:]}")[0]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert policy[kind] == f"'sha256-{digest}'"
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text


def test_partial_input_is_marked():
    """What could not be read, and that it is not all."""
    problems = Problems()
    problems.add("t.jsonl:3", "not JSON")
    records = [request()]
    data = data_of(html.render(build_report(records), records, problems=problems))
    assert data["partial"].startswith("PARTIAL: 1 problem in the input")
    assert data["problems"] == ["t.jsonl:3: not JSON"]
    assert data_of(page(request()))["partial"] == ""


def test_every_script_is_joined():
    """None in the folder is forgotten."""
    assets = Path(html.__file__).parent / "assets"
    assert sorted(SCRIPTS) == sorted(file.name for file in assets.glob("*.js"))

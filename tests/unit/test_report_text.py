"""The text report: everything at one look, within the terminal's width, honest about gaps."""

from __future__ import annotations

import io
import re

import pytest

from llmtrace.analysis.report import build_report
from llmtrace.records import Finding, GenerationParameters, RequestRecord, StepRecord
from llmtrace.reports import text
from llmtrace.reports.summary import summary_text


def request(ttft=0.25, gap=0.02, n=20, **more):
    """*n* tokens: the first after *ttft* seconds, then one every *gap*."""
    last = ttft + (n - 1) * gap
    steps = [StepRecord(0, "prefill", 0.0, ttft, 1, 1, host_duration_s=ttft / 2)]
    steps += [
        StepRecord(
            i,
            "decode",
            ttft + (i - 1) * gap,
            ttft + i * gap,
            1,
            1,
            host_duration_s=gap / 2,
        )
        for i in range(1, n)
    ]
    values = {
        "model": "llama",
        "strategy": "greedy",
        "device": "cpu",
        "clock": "host",
        "start_unix_ns": 0,
        "duration_s": last,
        "batch_size": 1,
        "input_tokens": 100,
        "input_tokens_per_row": (100,),
        "output_tokens": n,
        "output_tokens_per_row": (n,),
        "ttft_s": ttft,
        "itl_s": [gap] * (n - 1),
        "tpot_s": gap if n > 1 else None,
        "e2e_s": last,
        "tgs": n / last,
        "decode_tgs": 1 / gap if n > 1 else None,
        "prefill_s": ttft / 2,
        "steps": steps,
    }
    return RequestRecord(**{**values, **more})


def rendered(*records, width=80, color=False, **options):
    return text.render(build_report(records, **options), width=width, color=color)


def row(report, name):
    """The cells of the row that begins with *name*."""
    (found,) = [
        line for line in report.splitlines() if re.match(rf"{name}\s+(ms|tok/s|%)\s+\d", line)
    ]
    return found[len(name) :].split()


def test_headline_holds_the_numbers_in_ms():
    """TTFT 250 and 350 ms; gaps of 20 ms: 38 of them; 20 tokens in 0.63 s and 0.73 s."""
    report = rendered(request(), request(0.35))
    assert row(report, "TTFT") == ["ms", "2", "300.00", "300.00", "345.00", "349.00", "350.00"]
    assert row(report, "ITL") == ["ms", "38", *["20.00"] * 5]
    assert row(report, "TPOT") == ["ms", "2", *["20.00"] * 5]
    assert row(report, "TGS request")[:3] == ["tok/s", "2", f"{(20 / 0.63 + 20 / 0.73) / 2:.2f}"]


def test_the_headline_comes_first_and_fits_one_look():
    """TTFT, ITL, TPOT and TGS stand in one table among the first fifteen lines."""
    head = "\n".join(rendered(request()).splitlines()[:15])
    for name in ("TTFT", "ITL", "TPOT", "TGS request", "TGS system", "p50", "p95", "p99"):
        assert name in head


def test_system_throughput_has_its_conditions_directly_below():
    """The four lines after it, in this order, and nothing between."""
    lines = rendered(
        request(parameters=GenerationParameters(do_sample=True, temperature=0.7, top_p=0.9))
    ).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("TGS system"))
    names = [line.strip().split("  ")[0] for line in lines[at + 1 : at + 5]]
    assert names == ["prompt tokens", "sampling", "concurrency", "GPU memory"]
    assert "100 each" in lines[at + 1]
    assert "greedy, temperature 0.7, top_p 0.9 (1 request)" in lines[at + 2]
    assert "mean 1.00, max 1" in lines[at + 3]
    assert "none: no GPU" in lines[at + 4]


@pytest.mark.parametrize(("sampled", "said"), [(False, "greedy"), (True, "sample")])
def test_how_a_continuous_batch_samples_is_said(sampled, said):
    """Its strategy is the batch; the condition is how tokens are chosen in it."""
    asked = GenerationParameters(do_sample=sampled, temperature=0.7)
    report = rendered(request(strategy="continuous", parameters=asked))
    temperature = ", temperature 0.7" if sampled else ""
    assert f"{said}, continuous batching{temperature} (1 request)" in report


def test_gpu_memory_is_never_guessed():
    """Known, unknown on a GPU, and none on a CPU are three different things."""
    assert "2.00 GiB held by torch" in rendered(request(memory_reserved_bytes=2**31))
    assert "not recorded" in rendered(request(device="cuda:0"))


@pytest.mark.parametrize("width", [40, 76, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(width):
    """Down to 76 columns; narrower terminals get 76. No cell is cut."""
    found = Finding("code", "warning", "A title " * 12, "evidence " * 20, "remedy " * 20)
    report = rendered(request(12.5), request(0.1, findings=(found,), trace_id="t"), width=width)
    assert max(map(len, report.splitlines())) <= max(width, 76)
    assert "…" not in report


def test_every_table_says_what_it_rests_on():
    """Formula, weighting, percentile method and clock stand under the tables."""
    report = " ".join(rendered(request(clock="cuda")).split())
    assert "t[i+1] - t[i]" in report
    assert "(tn - t1) / (n - 1)" in report
    assert "requests pooled, so weighted by tokens" in report
    assert report.count("linear interpolation") == 3
    assert report.count("Clock: cuda.") == 4


def test_phases_are_shares_of_the_whole():
    """125 of 630 ms are prefill; forwards take half of 380 ms of gaps: 30.2 %."""
    report = rendered(request())
    (prefill,) = [x for x in report.splitlines() if x.startswith("prefill") and "%" in x]
    (decode,) = [x for x in report.splitlines() if x.startswith("decode") and "%" in x]
    assert prefill.split()[1:3] == ["125.00", "19.8%"]
    assert decode.split()[1:3] == ["190.00", "30.2%"]


def test_host_bound_share_stands_in_the_headline_where_it_is_known():
    """90 % with a device clock; no row without one."""
    assert row(rendered(request(host_bound_ratio=0.9)), "host-bound")[:3] == ["%", "1", "90.00"]
    assert not [x for x in rendered(request()).splitlines() if x.startswith("host-bound")]


def test_one_token_has_no_gaps():
    """Absent is a dash, and tables with nothing in them are left out."""
    report = rendered(request(n=1))
    assert row(report, "ITL") == ["ms", "0", "-", "-", "-", "-", "-"]
    assert "ITL ms, by token" not in report
    assert "nan" not in report.lower()


def test_findings_with_their_remedy():
    """Severity, title, code, evidence and what to do."""
    found = Finding("eos_mismatch", "error", "Ids differ", "2 against 32000", "Set eos_token_id.")
    report = rendered(request(findings=(found,), trace_id="feed"))
    assert "error  Ids differ [eos_mismatch]" in report
    assert "2 against 32000; traces: feed" in report
    assert "-> Set eos_token_id." in report
    assert "Findings: none" in rendered(request())


def test_failed_and_cold_requests_are_counted():
    """The first lines say how many there were, and which are left out."""
    report = rendered(request(), request(9.0, cold=True), request(8.0, error="builtins.ValueError"))
    first = report.splitlines()[:3]
    assert first[0] == "3 requests, 2 ok, 1 failed (builtins.ValueError), 1 cold"
    assert first[2].endswith("of 1 request; left out: 1 failed and 1 cold.")
    assert row(report, "TTFT")[1:3] == ["1", "250.00"]


def test_only_cold_requests_are_shown_as_such():
    """Their numbers are there, and nobody can take them for warm ones."""
    report = rendered(request(9.0, cold=True))
    assert "EVERY REQUEST WAS COLD" in report
    assert row(report, "TTFT")[1:3] == ["1", "9,000.00"]
    assert "[only_cold_requests]" in report


def test_failed_requests_alone():
    """There is nothing to summarise, and that is said."""
    report = rendered(request(error="builtins.ValueError"))
    assert "No request succeeded" in report
    assert "TTFT" not in report


def test_colour_changes_nothing_but_colour():
    """Without its escape codes the coloured report is the plain one."""
    records = [request(findings=(Finding("c", "error", "T", "e", "r"),)), request()]
    coloured = rendered(*records, color=True)
    assert "\x1b[" in coloured
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [x.rstrip() for x in stripped.splitlines()] == rendered(*records).splitlines()


def test_plain_text_is_ascii_and_safe():
    """Any terminal can show it; names in a trace cannot control one."""
    assert rendered(request()).isascii()
    report = rendered(request(model="evil\x1b[2J [bold]m[/bold] :smile:"))
    assert "\x1b" not in report
    assert "[bold]m[/bold] :smile:" in report


def test_summary_names_the_trace_file(tmp_path):
    """What a traced program prints at its end; a file that could not be written is not offered."""
    path = tmp_path / "t.jsonl"
    said = summary_text([request()], str(path), io.StringIO())
    assert said.endswith(f"No trace file could be written at {path}.")
    path.touch()
    said = summary_text([request()], str(path), io.StringIO())
    assert "TTFT" in said
    assert f"\nThe whole report: llmtrace report {path}\n" in said
    assert said.endswith(f"llmtrace report {path} --format html -o report.html")
    assert summary_text([request()], str(path), io.StringIO(), "p.html").endswith(": p.html")
    assert "Trace file" not in summary_text([request()], None, io.StringIO())

"""Before and after; every expected value is worked out here by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from llmtrace.analysis.comparison import Line, compare
from llmtrace.analysis.differences import differences
from llmtrace.analysis.intervals import Interval
from llmtrace.analysis.report import build_report
from llmtrace.analysis.timeline import block_rates, timeline
from llmtrace.cli import main
from llmtrace.records import GenerationParameters
from llmtrace.reports import compare_json, compare_text
from tests.unit.requests import request, request_of_gaps
from tests.unit.test_cli_report import line as trace_line


def side(ttft, gap, *, n=100, seed=0, spread=0.02, **more):
    """*n* requests of 20 tokens, one after the other, times scattered by *spread*."""
    random = np.random.default_rng(seed)
    made = []
    for i in range(n):
        gaps = (gap * random.uniform(1 - spread, 1 + spread, 19)).tolist()
        first = ttft * random.uniform(1 - spread, 1 + spread)
        made.append(request_of_gaps(first, gaps, start=100.0 * i, **more))
    return made


def line_of(found, name):
    (line,) = [line for line in found.lines if line.name == name]
    return line


def made_line(change, interval, *, more_is_better=False, exact=False):
    bounds = None if interval is None else Interval(*interval)
    return Line("x", "s", 1.0, 1.0 + change, change, bounds, (9, 9), more_is_better, exact)


def test_the_fields_table():
    """TTFT from 400 to 300 ms, ITL from 30 to 33 ms: -25 %, +10 %, both larger than noise."""
    found = compare(side(0.4, 0.030), side(0.3, 0.033, seed=1))
    ttft = line_of(found, "TTFT p50")
    assert ttft.change == pytest.approx(-0.25, abs=0.01)
    assert ttft.interval.low < -0.25 < ttft.interval.high < -0.24
    assert ttft.outcome == "better"
    assert compare_text.sentence(ttft).startswith("TTFT p50 -2")
    assert compare_text.sentence(ttft).endswith(" %, larger than noise: better")
    itl = line_of(found, "ITL p95")
    assert itl.change == pytest.approx(0.10, abs=0.01)
    assert itl.outcome == "worse"
    # 20 tokens in 0.4 + 19 * 0.03 = 0.97 s and 0.3 + 19 * 0.033 = 0.927 s.
    tgs = line_of(found, "TGS system")
    assert tgs.before == pytest.approx(20 / 0.97, rel=0.01)
    assert tgs.change == pytest.approx(0.97 / 0.927 - 1, abs=0.01)
    assert tgs.outcome == "better"


def test_the_same_again_is_within_noise():
    """Of twenty pairs of recordings of the same thing, hardly a line is called a change.

    At 95 % one line in twenty is wrong by right; lines of one pair go together.
    """
    called = total = 0
    for seed in range(20):
        found = compare(
            side(0.4, 0.03, n=40, seed=seed, spread=0.2),
            side(0.4, 0.03, n=40, seed=100 + seed, spread=0.2),
        )
        total += len(found.lines)
        called += sum(line.outcome in {"better", "worse"} for line in found.lines)
    assert called / total < 0.12


def test_identical_recordings_differ_in_nothing():
    """Without scatter the intervals are points: rounding is no change."""
    records = side(0.4, 0.03, spread=0.0)
    found = compare(records, records)
    assert {line.outcome for line in found.lines} == {"within noise"}
    assert found.verdict(0.0) == "PASS"


def test_few_requests_are_undecided():
    """Seven on one side: no interval, whatever the change."""
    found = compare(side(0.4, 0.03), side(4.0, 0.3, n=7, seed=1))
    assert {line.outcome for line in found.lines} == {"undecided"}
    assert found.verdict(None) == "UNDECIDED"
    said = compare_text.sentence(line_of(found, "TTFT p50"))
    assert said.endswith("but 7 requests on one side cannot tell it from noise")


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        (made_line(0.1, (0.05, 0.15)), "worse"),
        (made_line(0.1, (0.05, 0.15), more_is_better=True), "better"),
        (made_line(-0.1, (-0.15, -0.05)), "better"),
        (made_line(-0.1, (-0.15, -0.05), more_is_better=True), "worse"),
        (made_line(0.1, (-0.05, 0.25)), "within noise"),
        (made_line(0.1, None), "undecided"),
        (made_line(0.1, None, exact=True), "worse"),
        (made_line(0.0, None, exact=True), "within noise"),
    ],
)
def test_outcome_of_a_line(line, outcome):
    """By its interval; a maximum has none."""
    assert line.outcome == outcome


@pytest.mark.parametrize(
    ("after", "percent", "verdict"),
    [
        ((0.4, 0.030), 5, "PASS"),
        ((0.44, 0.030), 5, "FAIL"),
        ((0.44, 0.030), 15, "PASS"),
        ((0.3, 0.020), 5, "PASS"),
        ((0.44, 0.030), None, "PASS"),
        ((0.44, 0.030), 0, "FAIL"),
        ((0.4, 0.030), 0, "PASS"),
    ],
)
def test_regression(after, percent, verdict):
    """TTFT worse by 10 %: too much at 5, not at 15; better is never a regression."""
    assert compare(side(0.4, 0.03), side(*after, seed=1)).verdict(percent) == verdict


def test_a_regression_that_may_be_chance_is_undecided():
    """Two sides of ten that scatter by a fifth: a change of a tenth that noise may have made."""
    before, after = (side(ttft, 0.03, n=10, spread=0.2) for ttft in (0.4, 0.44))
    found = compare(before, after)
    assert line_of(found, "TTFT p50").worsening > 0.05
    assert line_of(found, "TTFT p50").outcome == "within noise"
    assert found.verdict(5) == "UNDECIDED"


def test_ttft_by_prompt_length():
    """Other prompts on either side: all together it looks worse, each length is the same."""
    short = {"prompt": 100, "spread": 0.01}
    long = {"prompt": 1000, "spread": 0.01}
    before = [*side(0.1, 0.03, n=60, seed=1, **short), *side(0.9, 0.03, n=20, seed=2, **long)]
    after = [*side(0.1, 0.03, n=20, seed=3, **short), *side(0.9, 0.03, n=60, seed=4, **long)]
    found = compare(before, after)
    assert line_of(found, "TTFT p50").outcome == "worse"
    for name in ("TTFT, prompts 1-128 p50", "TTFT, prompts 513-2048 p50"):
        assert abs(line_of(found, name).change) < 0.02


def test_memory_is_a_maximum():
    """10 bytes, then 12: 20 % more, with no interval."""
    found = compare(side(0.4, 0.03, memory_peak_bytes=10), side(0.4, 0.03, memory_peak_bytes=12))
    line = line_of(found, "peak memory")
    assert (line.before, line.after, line.outcome) == (10, 12, "worse")
    assert line.change == pytest.approx(0.2)
    assert "peak memory +20.0 %" in compare_text.sentence(line)
    assert found.verdict(10) == "FAIL"


def test_cold_and_failed_requests_are_left_out():
    """As in a report."""
    found = compare(
        [*side(0.4, 0.03), request(99.0, cold=True)],
        [*side(0.4, 0.03), request(99.0, error="E")],
    )
    assert found.verdict(1) == "PASS"
    assert (found.before.counted, found.after.counted) == (100, 100)


def test_equal_parts_of_the_time():
    """Tokens at 1, 2, 3, 4 s, alone until 2 s: four parts of 1 s with one token each."""
    lone, later = request(1.0, 2.0, 3.0, 4.0), request(duration=2.0, start=2.0, output_tokens=0)
    found = timeline([lone], [lone, later])
    assert block_rates(found, None, 4).tolist() == [1, 1, 1, 1]
    assert block_rates(found, 1, 2).tolist() == [1, 1]
    # While two ran, from 2 to 4 s: one token in each half.
    assert block_rates(found, 2, 2).tolist() == [1, 1]


def test_what_else_differs():
    """Settings, prompts and versions; what belongs to a run alone is left out."""
    hot = GenerationParameters(do_sample=True, temperature=0.7)
    before = build_report([request(1.0, prompt=10, dtype="float16")])
    after = build_report(
        [request(1.0, prompt=20, dtype="bfloat16", strategy="sample", parameters=hot)]
    )
    found = differences(
        before,
        after,
        [{"process.pid": 1, "service.version": "1", "host.name": "a"}],
        [{"process.pid": 2, "service.version": "2", "host.name": "a"}],
    )
    assert [(d.name, d.before, d.after) for d in found] == [
        ("dtype", "float16", "bfloat16"),
        ("sampling", "greedy", "sample, temperature 0.7"),
        ("prompt tokens", "10 to 10, p50 10", "20 to 20, p50 20"),
        ("service.version", "1", "2"),
    ]
    assert differences(before, before) == ()


def test_text_and_json_say_the_same():
    """A row and a sentence for each line; what differs, and what that means."""
    before, after = side(0.4, 0.03), side(0.3, 0.03, seed=1, prompt=20)
    found = compare(before, after)
    changed = differences(found.before, found.after)
    text = compare_text.render(found, changed)
    for line in found.lines:
        assert f"{compare_text.sentence(line)}." in text
    assert "before  100 requests of 100" in text
    assert "prompt tokens  10 to 10, p50 10 -> 20 to 20, p50 20" in text
    assert "Prompt lengths differ" in text
    told = json.loads(compare_json.render(found, changed, "PASS"), parse_constant=pytest.fail)
    assert told["schema"] == "llmtrace.compare/1"
    assert [entry["name"] for entry in told["lines"]] == [line.name for line in found.lines]
    assert told["lines"][0]["sentence"] == compare_text.sentence(found.lines[0])
    assert told["caveats"]


# The command


def traces(path, n, ttft):
    """A file of *n* equal requests whose TTFT is *ttft* seconds."""
    made = "".join(trace_line(f"{i:04x}") for i in range(n)).replace("0.25", str(ttft), 0)
    text = made.replace(
        '"llmtrace.ttft", "value": {"doubleValue": 0.25}',
        f'"llmtrace.ttft", "value": {{"doubleValue": {ttft}}}',
    )
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("n", "ttft", "options", "code"),
    [
        (20, 0.5, [], 0),
        (20, 0.5, ["--fail-on-regression", "5"], 1),
        (20, 0.25, ["--fail-on-regression", "5%"], 0),
        (5, 0.5, ["--fail-on-regression", "5"], 3),
        (5, 0.5, [], 3),
    ],
)
def test_exit_codes(tmp_path, capsys, n, ttft, options, code):
    """0 compared, 1 a regression, 3 too few requests to tell."""
    before = traces(tmp_path / "a.jsonl", 20, 0.25)
    after = traces(tmp_path / "b.jsonl", n, ttft)
    assert main(["compare", before, after, *options]) == code
    out, err = capsys.readouterr()
    assert "TTFT p50" in out
    assert err == ""
    assert main(["compare", before, after, "--json", *options]) == code
    assert json.loads(capsys.readouterr().out)["lines"][0]["change"] == pytest.approx(
        ttft / 0.25 - 1
    )


def test_unreadable_input(tmp_path, capsys):
    """One line, exit code 2."""
    good = traces(tmp_path / "a.jsonl", 3, 0.25)
    assert main(["compare", good, str(tmp_path / "none.jsonl")]) == 2
    assert capsys.readouterr().err.endswith("none.jsonl: no such file\n")


@pytest.mark.parametrize("percent", ["-1", "nan", "many", ""])
def test_a_bad_percentage_is_bad_usage(percent, capsys):
    """argparse says so."""
    with pytest.raises(SystemExit) as caught:
        main(["compare", "a", "b", f"--fail-on-regression={percent}"])
    assert caught.value.code == 2
    assert "is no number of percent" in capsys.readouterr().err


@pytest.mark.parametrize("least", [5e-324, 1e-300])
def test_nothing_is_relative_to_next_to_nothing(tmp_path, capsys, least):
    """A change from a number that nobody measured would be infinite: there is none."""
    before = traces(tmp_path / "a.jsonl", 20, least)
    after = traces(tmp_path / "b.jsonl", 20, 0.25)
    assert main(["compare", before, after, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["lines"][0]
    assert (said["change"], said["interval"], said["outcome"]) == (None, None, "undecided")


def test_verdicts_are_whole_in_a_terminal_of_80_columns():
    """Names take another line before figures or verdicts are cut."""
    records = [replace(r, input_tokens_per_row=(n,)) for n in (64, 256) for r in side(0.2, 0.03)]
    found = compare(records, records)
    text = compare_text.render(found, (), width=80)
    table = text.split("\n\n")[1]
    assert table.count("within noise") == len(found.lines)
    assert "\u2026" not in text

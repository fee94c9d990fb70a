"""Levers on requests whose times a test decides; no torch."""

import json

import numpy as np
import pytest

from llmtrace.analysis.intervals import draw_std
from llmtrace.bench import outputs
from llmtrace.bench.compare_settings import evaluation, output
from llmtrace.bench.compare_settings.levers import LEVERS, Lever, Unavailable, Variant
from llmtrace.bench.compare_settings.sides import Side, Tried
from llmtrace.bench.settings import Generation, ModelChoice, PromptChoice
from llmtrace.bench.texts import compare_settings as text
from llmtrace.bench.trials import Trials
from llmtrace.cli import main
from tests.unit.requests import request_of_gaps

VARIANT = Variant(ModelChoice("m"), Generation(4), PromptChoice(lengths=(10,)))
HEADER = {
    "model": {"name": "m", "random_weights": None, "device": "cpu", "quantization": "none"},
    "generation": {"cache": "dynamic"},
    "environment": {"gpus": [], "cpu": {"model": "c"}, "versions": {}},
}


def requests(ttft, gap, count=33, jitter=0.0, **more):
    """Requests one after the other, each a little different from the one before."""
    return [
        request_of_gaps(ttft + i * 1e-5, [gap - jitter, gap + jitter, gap], start=float(i), **more)
        for i in range(count)
    ]


def tried(before, after, memory=(None, None), **more):
    """A lever whose requests are these."""
    lever = Lever("a-lever", "turn it", VARIANT, VARIANT)
    sides = [
        Side(name, VARIANT, Trials(records=records), peak_memory_bytes=held)
        for name, records, held in zip(("before", "after"), (before, after), memory, strict=True)
    ]
    return Tried(lever, *sides, **more)


def lines(*args, rows=None, **more):
    """The lines of one lever, by their names."""
    (outcome,) = evaluation.evaluate([tried(*args, **more)], [], rows).outcomes
    return {line.name: line for line in outcome.lines}


class TestVerdicts:
    def test_better_and_worse(self):
        """TTFT that halves is better, gaps that double are worse, and so is the rate."""
        found = lines(requests(0.2, 0.01), requests(0.1, 0.02))
        verdicts = {name: evaluation.verdict(line) for name, line in found.items()}
        assert verdicts["TTFT p50"] == "better"
        assert verdicts["ITL p95"] == "worse"
        assert found["TTFT p50"].change == pytest.approx(-0.5, abs=0.01)
        assert found["ITL p95"].change == pytest.approx(1.0)
        assert found["TGS request mean"].change == pytest.approx(0.23 / 0.16 - 1, abs=0.01)

    def test_the_same_twice(self):
        """Two sides that are alike cannot be told apart."""
        found = lines(*[requests(0.2, 0.01, jitter=0.001)] * 2)
        assert {evaluation.verdict(line) for line in found.values()} == {"no difference to be seen"}

    def test_too_few(self):
        """Of three requests nothing is said."""
        found = lines(requests(0.2, 0.01, 3), requests(0.1, 0.01, 3))
        assert evaluation.verdict(found["TTFT p50"]) == "too few requests to tell"
        assert found["TTFT p50"].interval is None

    def test_spread_of_gaps(self):
        """Gaps of the same mean that vary less are better in their deviation alone."""
        found = lines(requests(0.2, 0.02, jitter=0.01), requests(0.2, 0.02, jitter=0.001))
        assert found["ITL std"].change == pytest.approx(-0.9)
        assert evaluation.verdict(found["ITL std"]) == "better"
        assert evaluation.verdict(found["TTFT p50"]) == "no difference to be seen"

    def test_memory(self):
        """A peak has no chance in it, but half a percent is no difference."""
        same = [requests(0.2, 0.01)] * 2
        for held, said in (
            ((1000, 800), "better"),
            ((1000, 1200), "worse"),
            ((1000, 1004), "no difference to be seen"),
        ):
            assert evaluation.verdict(lines(*same, memory=held)["peak memory"]) == said
        assert "peak memory" not in lines(*same, memory=(1000, None))

    def test_cold_requests_do_not_count(self):
        """They are left out, and that is said of the side that they are of."""
        cold = requests(9.0, 0.01, 2, cold=True, cold_reasons=("compilation",))
        one = tried(requests(0.2, 0.01), [*cold, *requests(0.2, 0.01)])
        found = evaluation.evaluate([one], [], None)
        assert found.outcomes[0].lines[0].samples == (33, 33)
        assert [c.code for c in found.cautions] == ["cold"]
        assert found.cautions[0].text.startswith("a-lever, after: 2 requests")

    def test_batches(self):
        """Their rate is that of all rows, under a name of its own."""
        one = tried(requests(0.2, 0.01), requests(0.2, 0.01))
        for side, rate in zip(one.sides, (40.0, 60.0), strict=True):
            side.batches.records = requests(0.2, 0.01, tgs=rate, batch_size=4)
        (outcome,) = evaluation.evaluate([one], [], 4).outcomes
        (line,) = (x for x in outcome.lines if x.name == "TGS at 4 concurrent")
        assert (line.before, line.after, line.change) == (40, 60, pytest.approx(0.5))


class TestStandardDeviation:
    def test_is_that_of_all_gaps(self):
        """Requests that are alike give it in every draw; a row counts as often as it has rows."""
        values = np.tile([1.0, 3.0, 3.0], 10)
        request = np.repeat(np.arange(10), 3)
        rows = np.ones(30, dtype=np.int64)
        drawn = draw_std(values, request, rows).figures["std"]
        assert drawn == pytest.approx(np.std([1.0, 3.0, 3.0]))
        rows[::3] = 2
        drawn = draw_std(values, request, rows).figures["std"]
        assert drawn == pytest.approx(np.std([1.0, 1.0, 3.0, 3.0]))

    def test_interval_holds_it(self):
        """With requests that differ, its draws lie around it."""
        random = np.random.default_rng(1)
        values = random.normal(5.0, 0.7, 400)
        drawn = draw_std(values, np.repeat(np.arange(40), 10), np.ones(400, dtype=np.int64))
        low, high = np.percentile(drawn.figures["std"], (2.5, 97.5))
        assert low < values.std() < high
        assert high - low < 0.2

    def test_few_requests(self):
        """Nothing is said of fewer than eight, or of none."""
        for count in (0, 7):
            values = np.arange(count, dtype=np.float64)
            index = np.arange(count)
            assert draw_std(values, index, index).figures == {}


class TestOutputs:
    def test_json_is_strict_and_has_the_conditions(self):
        """Settings, lines and reports of both sides; what could not be tried, with its reason."""
        found = evaluation.evaluate(
            [tried(requests(0.2, 0.01), requests(0.1, 0.01), memory=(0, 10))],
            [Unavailable("another", "there is no such device")],
            None,
        )
        made = json.loads(outputs.to_json(output.as_object(found, {"schema": "s"})))
        (lever,) = made["levers"]
        assert made["unavailable"] == [{"lever": "another", "reason": "there is no such device"}]
        assert [line["name"] for line in lever["lines"]] == [
            "TTFT p50",
            "ITL p95",
            "ITL std",
            "TGS request mean",
            "peak memory",
        ]
        assert lever["lines"][-1]["change"] is None
        for side in ("before", "after"):
            assert lever[side]["report"]["tgs"]["conditions"]["prompt_tokens"]["max"] == 10
        assert lever["after"]["trace"] == "compare-settings-a-lever-after.jsonl"

    def test_text(self):
        """The measure, both values, the verdict; what could not be tried; how it was done."""
        found = evaluation.evaluate(
            [tried(requests(0.2, 0.01), requests(0.1, 0.01), interleaved=False)],
            [Unavailable("another", "there is no such device")],
            None,
        )
        said = text.render(found, HEADER)
        assert "a-lever: turn it" in said
        assert "all before, then all after" in said
        assert "there is no such device" in said
        row = next(line for line in said.splitlines() if line.startswith("TTFT p50 ms"))
        assert row.split()[3:5] == ["200.16", "100.16"]
        assert row.endswith("better")

    def test_nothing_measured(self):
        """All three outputs say so."""
        found = evaluation.evaluate([], [Unavailable("a", "b")], None, interrupted=True)
        assert output.rows(found) == []
        assert output.as_object(found, {})["levers"] == []
        assert "Not measured" in text.render(found, HEADER)

    def test_rows(self):
        """A line of CSV for each request, with the columns that the file has."""
        found = evaluation.evaluate(
            [tried(requests(0.2, 0.01, 2), requests(0.1, 0.01, 3))], [], None
        )
        rows = output.rows(found)
        assert [(r["side"], r["trial"]) for r in rows] == [
            ("before", 0),
            ("before", 1),
            ("after", 0),
            ("after", 1),
            ("after", 2),
        ]
        assert all(set(row) == set(output.COLUMNS) for row in rows)


def test_help_names_every_lever(capsys):
    """None can be had without being told of."""
    with pytest.raises(SystemExit):
        main(["bench", "compare-settings", "--help"])
    said = "".join(capsys.readouterr().out.split())
    assert all(name in said for name in LEVERS)

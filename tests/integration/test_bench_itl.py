"""``llmtrace bench itl`` on a tiny model: its files, an independent clock, and injected faults."""

import csv
import gc
import json
import statistics
import time
from itertools import pairwise

import pytest
import torch
from transformers import LogitsProcessor, StoppingCriteria

from llmtrace.bench import floor, generation, models, trials
from llmtrace.bench.prompts import Prompts
from llmtrace.bench.settings import Generation, ModelChoice, PromptChoice
from llmtrace.cli import main
from tests.tiny_shape import SHAPE

SHAPE = {**SHAPE, "num_attention_heads": 4}
PROMPT = 6
HALT_S = 0.05


@pytest.fixture
def config(tmp_path):
    """A model's config.json."""
    file = tmp_path / "tiny.json"
    file.write_text(json.dumps(SHAPE))
    return str(file)


@pytest.fixture
def bench(config, tmp_path, capsys):
    """Run the tool; return exit code, JSON and rows of CSV."""

    def run(*more, tokens=80, count=6):
        out = tmp_path / "out"
        code = main(
            [
                *("bench", "itl", "--random-weights", config, "--out", str(out)),
                *("--device", "cpu", "--trials", str(count), "--max-new-tokens", str(tokens)),
                *("--prompt-tokens", str(PROMPT), *map(str, more)),
            ]
        )
        run.said = capsys.readouterr()
        found = json.loads((out / "itl.json").read_text())
        return code, found, list(csv.DictReader((out / "itl.csv").read_text().splitlines()))

    return run


@pytest.fixture
def passed(monkeypatch):
    """Have every request of the tool get more arguments."""

    def passed(**more):
        given = generation.arguments
        monkeypatch.setattr(
            generation, "arguments", lambda subject, plan: given(subject, plan) | more
        )

    return passed


class At(LogitsProcessor):
    """Does something at the call that leads to one token, in all requests or in one."""

    def __init__(self, position, action, request=None):
        self.position, self.action, self.request = position, action, request
        self.requests = 0

    def __call__(self, input_ids, scores):
        token = input_ids.shape[1] - PROMPT + 1
        self.requests += token == 1
        if token == self.position and self.request in {None, self.requests}:
            self.action()
        return scores


class Consumer:
    """A streamer, as an app's own may be: whoever takes the tokens blocks at one of them."""

    def __init__(self, position):
        self.position, self.calls = position, 0

    def put(self, value):
        if self.calls == self.position:  # the first call is the prompt's
            halt()
        self.calls += 1

    def end(self):
        self.calls = 0


def halt():
    """The fault itself: nothing waits for it."""
    time.sleep(HALT_S)


class TestFiles:
    def test_all_are_written(self, bench, tmp_path):
        """A line for each request and gap; the curve; the report of the trace agrees."""
        code, found, rows = bench(tokens=40, count=5)
        out = tmp_path / "out"
        assert code == 0
        assert {file.name for file in out.iterdir()} == {
            "itl.json",
            "itl.csv",
            "itl.png",
            "trace.jsonl",
            "trace-warmup.jsonl",
        }
        assert (out / "itl.png").read_bytes().startswith(b"\x89PNG")
        assert [(int(r["trial"]), int(r["position"])) for r in rows] == [
            (trial, position) for trial in range(5) for position in range(2, 41)
        ]
        assert {int(r["context"]) - int(r["position"]) for r in rows} == {PROMPT - 1}
        assert {r["clock"] for r in rows} == {"host"}
        assert all(float(r["host_gap_s"]) == pytest.approx(float(r["itl_s"])) for r in rows)
        gaps = [float(r["itl_s"]) for r in rows]
        assert found["itl_s"]["count"] == 5 * 39
        assert found["itl_s"]["p50"] == pytest.approx(statistics.median(gaps))
        assert found["collector"] == "frozen"
        assert len(found["warmup"]["itl_s"]) == found["warmup"]["requests"] == 3
        assert bench.said.out.rstrip().splitlines()[-1].startswith("ITL_p50=")
        assert main(["report", str(out / "trace.jsonl"), "--format", "json"]) == 0
        assert found["report"]["itl_s"]["p95"] == pytest.approx(found["itl_s"]["p95"])

    def test_json_is_all_that_is_printed(self, bench):
        """With --json standard output is the result."""
        _, found, _ = bench("--json", tokens=4, count=2)
        assert json.loads(bench.said.out) == found
        assert found["schema"] == "llmtrace.bench.itl/1"

    def test_one_token_has_no_gap(self, config, tmp_path, capsys):
        """It is refused before anything is loaded."""
        command = ["bench", "itl", "--random-weights", config, "--out", str(tmp_path / "out")]
        assert main([*command, "--max-new-tokens", "1"]) == 2
        assert "no gap" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()

    def test_ctrl_c_keeps_what_was_measured(self, bench, monkeypatch):
        """Exit code 130, and the gaps of the requests that had run."""
        ask, asked = trials.ask, []

        def interrupted(*args, **kwargs):
            asked.append(1)
            if len(asked) == 6:
                raise KeyboardInterrupt
            return ask(*args, **kwargs)

        monkeypatch.setattr(trials, "ask", interrupted)
        code, found, rows = bench(tokens=12)
        assert (code, found["interrupted"], len(rows)) == (130, True, 2 * 11)

    def test_all_cold_is_undecided(self, bench):
        """With no warm request there is nothing to tell: exit code 3."""
        code, found, rows = bench("--warmup", 0, count=1, tokens=4)
        assert (code, found["itl_s"]) == (3, None)
        assert [row["counted"] for row in rows] == ["0"] * 3


def test_gaps_are_those_of_a_stopwatch(bench, passed):
    """A clock of its own in the same calls says the same within 2 %."""
    stamps = []

    class Clock(StoppingCriteria):
        def __call__(self, input_ids, scores, **_):
            stamps[-1].append(time.perf_counter())
            return torch.zeros(len(input_ids), dtype=torch.bool)

    passed(
        stopping_criteria=[Clock()],
        logits_processor=[At(1, lambda: stamps.append([]))],
    )
    _, found, rows = bench(count=10)
    counted = stamps[-10:]
    assert [len(times) for times in counted] == [80] * 10
    gaps = [b - a for times in counted for a, b in pairwise(times)]
    assert found["itl_s"]["p50"] == pytest.approx(statistics.median(gaps), rel=0.02)
    told = [float(row["itl_s"]) for row in rows]
    assert sum(told) == pytest.approx(sum(gaps), rel=0.02)
    apart = [abs(a - b) / b for a, b in zip(told, gaps, strict=True)]
    assert statistics.median(apart) < 0.02


class TestInjectedFaults:
    def test_a_processor_that_sleeps_at_token_65(self, bench, passed):
        """It is one position in all requests, and the time is the host's between forwards."""
        passed(logits_processor=[At(65, halt)])
        _, found, rows = bench()
        spike = max(found["steps_found"], key=lambda s: s["after_s"] or 0)
        assert (spike["kind"], spike["position"]) == ("spike", 65)
        assert spike["cause"] == "between_forwards"
        assert spike["trials"] == list(range(6))
        assert spike["after_s"] >= HALT_S
        assert "spike at token 65, in 6 of 6 requests" in bench.said.out
        assert "not the model" in bench.said.out
        at_65 = [row for row in rows if row["position"] == "65"]
        assert all(row["stands_out"] == "in most" for row in at_65)
        assert all(float(row["between_s"]) >= HALT_S for row in at_65)
        assert all(float(row["host_forward_s"]) < HALT_S for row in at_65)

    def test_a_consumer_that_blocks(self, bench, passed):
        """A streamer that holds the loop up is none of the model's time: between the forwards."""
        passed(streamer=Consumer(20))
        _, found, rows = bench()
        # The 20th token has been selected when it is put: it is the next one that is late.
        (step,) = [s for s in found["steps_found"] if s["position"] == 21]
        assert (step["kind"], step["cause"]) == ("spike", "between_forwards")
        assert step["trials"] == list(range(6))
        held_up = [row for row in rows if row["position"] == "21"]
        assert all(float(row["between_s"]) >= HALT_S for row in held_up)
        assert all(float(row["host_forward_s"]) < HALT_S for row in held_up)
        assert "not the model" in bench.said.out

    def test_one_that_sleeps_in_one_request(self, bench, passed):
        """It is told apart from what is in all of them."""
        passed(logits_processor=[At(65, halt, request=3 + 4)])
        _, found, _ = bench()
        assert not [s for s in found["steps_found"] if s["position"] == 65]
        longest = [s for s in found["single_gaps"]["longest"] if s["position"] == 65]
        assert [(s["trials"], s["cause"]) for s in longest] == [([3], "between_forwards")]
        assert "longer in single requests only" in bench.said.out

    @pytest.mark.parametrize("options", [["--keep-gc"], []])
    def test_a_garbage_collection(self, bench, passed, options):
        """It is named, whether the collector is left on or called by the program."""

        held = []

        def fill():
            for _ in range(60_000):
                held.append([])
                held[-1].append(held[-1])

        def collect():
            held.clear()
            gc.collect()

        passed(logits_processor=[At(20, fill), At(40, collect)])
        _, found, rows = bench(*options)
        at_40 = [s for s in found["steps_found"] if s["position"] == 40]
        assert [(s["kind"], s["cause"]) for s in at_40] == [("spike", "garbage_collection")]
        assert found["collector"] == ("on" if options else "frozen")
        assert found["pauses_in_gaps"]["garbage_collection"]["gaps"] >= 6
        for row in rows:
            if row["position"] == "40":
                assert 0 < float(row["garbage_collection_s"]) <= float(row["host_gap_s"])

    def test_the_collector_is_left_on(self, bench, passed):
        """With --keep-gc only; the other requests run without one."""
        seen = []
        passed(logits_processor=[At(2, lambda: seen.append(gc.isenabled()))])
        bench("--keep-gc", tokens=4, count=2)
        assert seen[-2:] == [True, True]
        bench("--overwrite", tokens=4, count=2)
        assert seen[-2:] == [False, False]

    def test_a_compilation(self, bench, passed):
        """It is found in the request that paid for it, at its token."""
        import torch._dynamo

        def compile_anew():
            torch.compile(lambda x: x + 1, backend="eager")(torch.ones(3))

        passed(logits_processor=[At(30, compile_anew, request=3 + 3)])
        _, found, rows = bench()
        assert [(s["kind"], s["position"], s["trials"]) for s in found["steps_found"]][-1] == (
            "compilation",
            30,
            [2],
        )
        assert found["requests"] == {"run": 6, "counted": 5, "cold": 1}
        compiled = [row for row in rows if float(row["compilation_s"])]
        assert [(row["trial"], row["position"]) for row in compiled] == [("2", "30")]
        assert {row["cold_reasons"] for row in compiled} == {"compilation"}
        assert "request 2, before token 30" in bench.said.out


class TestFloor:
    @pytest.mark.parametrize("cache", ["dynamic", "static"])
    def test_is_what_the_requests_count(self, bench, monkeypatch, cache):
        """The mean of the bytes behind it is the ``decode_bytes`` of each record."""
        monkeypatch.setenv("LLMTRACE_PEAKS", "1e9")
        read, ask = [], trials.ask

        def noted(*args, **kwargs):
            record = ask(*args, **kwargs)
            read.append(record.decode_bytes)
            return record

        monkeypatch.setattr(trials, "ask", noted)
        _, found, rows = bench("--cache", cache, count=2, tokens=12)
        floors = [float(row["floor_s"]) for row in rows if row["trial"] == "0"]
        assert statistics.mean(floors) * 1e9 == pytest.approx(read[-1])
        told = found["floor"]
        assert told["kv_bytes_per_token"] == 2 * 2 * 2 * 4 * 4
        assert told["median_gap_over_floor"] > 1

    def test_unknown_where_nothing_is_cached(self, config):
        """A step without a cache computes all tokens anew: that floor would not be one."""
        subject = models.load(ModelChoice(random_weights=config, device="cpu"))
        assert floor.floor_of(subject, Generation(4, use_cache=False)) is None
        assert floor.floor_of(subject, Generation(4, cache="quantized")) is None
        assert floor.floor_of(subject, Generation(4)).bandwidth is None

    def test_is_not_worth_a_run(self, bench, monkeypatch):
        """Where the model refuses to be asked once more, what was measured is written."""
        measure = trials.run_trials

        def then_refusing(subject, *args, **kwargs):
            found = measure(subject, *args, **kwargs)
            monkeypatch.setattr(subject.model, "forward", None)
            return found

        monkeypatch.setattr(trials, "run_trials", then_refusing)
        code, found, _ = bench(tokens=4, count=2)
        assert (code, found["floor"], found["itl_s"]["count"]) == (0, None, 2 * 3)


def test_tokens_are_the_same_with_the_tool(config):
    """Measuring changes nothing of what is generated."""
    subject = models.load(ModelChoice(random_weights=config, device="cpu"))
    plan = Generation(20)
    generation.prepare(subject, plan)
    prompt = Prompts(subject, PromptChoice(lengths=(PROMPT,)), 0).prompt(0)
    given = generation.inputs(subject, prompt) | generation.arguments(subject, plan)
    before = subject.model.generate(**given)
    floor.floor_of(subject, plan)
    generation.ask(subject, prompt, plan)
    assert torch.equal(subject.model.generate(**given), before)

"""``llmtrace bench tgs`` on a tiny model."""

import csv
import functools
import json
import queue
import threading
import time

import pytest
from transformers import LlamaForCausalLM
from transformers.generation.continuous_batching import continuous_api

from llmtrace.bench import generation, models, prompts
from llmtrace.bench.settings import Generation, ModelChoice, PromptChoice
from llmtrace.bench.tgs import evaluation, load, mechanisms, running
from llmtrace.bench.tgs.load import Level
from llmtrace.bench.tracing import traced
from llmtrace.cli import main
from tests.tiny_shape import SHAPE


@pytest.fixture
def config(tmp_path):
    """A model's config.json."""
    file = tmp_path / "tiny.json"
    file.write_text(json.dumps(SHAPE))
    return str(file)


def bench(config, out, *more):
    """Run the tool and return its exit code."""
    given = ["--random-weights", config, "--prompt-tokens", "4,9", "--max-new-tokens", "6"]
    return main(["bench", "tgs", *given, "--out", str(out), *map(str, more)])


def result(out):
    return json.loads((out / "tgs.json").read_text())


@pytest.mark.parametrize("mechanism", ["threads", "batch", "continuous"])
def test_every_mechanism(config, tmp_path, capsys, mechanism):
    """All requests of all levels are there, with their tokens, and say how they were run."""
    out = tmp_path / "out"
    more = ["--attn", "sdpa"] if mechanism == "continuous" else []
    code = bench(
        config, out, "--mechanism", mechanism, "--concurrency", "1,3", "--requests", 6, *more
    )
    assert code == 0
    levels = result(out)["levels"]
    assert [(lv["mechanism"], lv["concurrency"], lv["counted"]) for lv in levels] == [
        (mechanism, 1, 6),
        (mechanism, 3, 6),
    ]
    rows = list(csv.DictReader((out / "tgs.csv").read_text().splitlines()))
    assert [row["output_tokens"] for row in rows] == ["6"] * 12
    assert sorted(row["prompt_tokens"] for row in rows) == ["4"] * 6 + ["9"] * 6
    assert {row["sampling"] for row in rows} == {"greedy"}
    for level in levels:
        conditions = level["report"]["tgs"]["conditions"]
        assert conditions["prompt_tokens"]["max"] == 9
        assert level["tgs_system"] > 0
    if mechanism == "batch":
        assert levels[1]["padding"] == pytest.approx(1 - 39 / 54)
    assert {"tgs.png", "trace.jsonl", "tgs-resources.jsonl"} <= {f.name for f in out.iterdir()}
    said = capsys.readouterr().out
    assert f"at 3, by {mechanism}" in said


def test_open_loop(config, tmp_path):
    """Requests that come faster than they are done wait, and that is counted."""
    out = tmp_path / "out"
    assert bench(config, out, "--rate", "400", "--concurrency", 1, "--requests", 30) == 0
    (level,) = result(out)["levels"]
    assert (level["name"], level["counted"]) == ("400/s", 30)
    assert level["queue_s"]["max"] > 0.005
    assert level["ttft_s"]["p95"] > level["report"]["ttft_s"]["p95"]
    assert level["steady"] is None


@pytest.mark.parametrize("mechanism", ["threads", "batch", "continuous"])
def test_what_comes_before_generate_counts(config, tmp_path, monkeypatch, mechanism):
    """A prompt that takes long to be tokenized makes the first token late, and says where."""
    inputs = generation.inputs

    def slowly(subject, prompt):
        time.sleep(0.03)
        return inputs(subject, prompt)

    monkeypatch.setattr(generation, "inputs", slowly)
    out = tmp_path / "out"
    how = ("--mechanism", mechanism, "--attn", "sdpa", "--concurrency", 1, "--requests", 2)
    assert bench(config, out, *how) == 0
    for row in csv.DictReader((out / "tgs.csv").read_text().splitlines()):
        assert 0.03 <= float(row["queue_s"]) < float(row["ttft_s"]) < float(row["e2e_s"])


def test_an_arrival_in_a_thousand_years():
    """It is waited for in parts; stopping does not wait for it."""
    jobs = [load.Job(0, None, due_ns=10**20)]
    arrivals = mechanisms._Arrivals(Level(1, "threads", 1, rate=1e-11), jobs)
    with arrivals.arriving(), pytest.raises(queue.Empty):
        arrivals.next(0.05)
    assert arrivals.next(5) is None


@pytest.fixture
def slow(config, monkeypatch):
    """A model whose every forward takes 100 ms more, which does not hold Python's lock."""
    forward = LlamaForCausalLM.forward

    def sleeping(self, *args, **kwargs):
        time.sleep(0.1)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(LlamaForCausalLM, "forward", sleeping)
    return models.load(ModelChoice(random_weights=config, device="cpu", attn="sdpa"))


def run(subject, folder, level):
    subject.model.generation_config.eos_token_id = None
    plan = Generation(6)
    kinds = prompts.Prompts(subject, PromptChoice(lengths=(4,)), 0)
    with traced(folder) as trace:
        return running.run_levels(
            mechanisms.mechanism_for(level.mechanism, subject, plan),
            kinds,
            [level],
            seed=0,
            progress=lambda *_: None,
            trace=trace,
        )


@pytest.mark.parametrize("mechanism", ["threads", "batch", "continuous"])
def test_rates_are_those_of_a_stopwatch(slow, tmp_path, mechanism):
    """Tokens over time, by clocks outside of llmtrace in the same requests: within 2 %."""
    level = Level(3, mechanism, 6)
    measured = run(slow, tmp_path, level)
    (found,) = evaluation.evaluate(measured, [])
    jobs = measured[0].run.jobs
    took = (max(j.ended_ns for j in jobs) - min(j.begun_ns for j in jobs)) / 1e9
    by_hand = sum(j.output_tokens for j in jobs) / took
    assert found.system == pytest.approx(by_hand, rel=0.02)
    each = sum(j.output_tokens / (j.ended_ns - j.begun_ns) * 1e9 for j in jobs) / len(jobs)
    assert found.tgs.mean == pytest.approx(each, rel=0.02)
    assert found.steady.share > 0.9
    assert sum(r.output_tokens for r in found.requests) == 36


def test_sleeping_requests_overlap(slow, tmp_path):
    """Three at a time lose next to nothing where nothing but time passes."""
    one = run(slow, tmp_path, Level(1, "threads", 4))
    three = run(slow, tmp_path, Level(3, "threads", 6))
    alone, found = evaluation.evaluate([*one, *three], [])
    assert alone.loss is None
    assert found.rate > 2 * alone.rate
    assert sum(found.loss.parts.values()) == pytest.approx(found.loss.total)


class TestStopping:
    @pytest.mark.parametrize("mechanism", ["threads", "batch"])
    def test_a_request_that_fails(self, config, tmp_path, monkeypatch, capsys, mechanism):
        """Exit code 2 with one line, and what was measured before is there."""
        generate, calls = LlamaForCausalLM.generate, []

        def failing(self, *args, **kwargs):
            calls.append(1)
            if len(calls) == 7:
                raise RuntimeError("out of\nmemory")
            return generate(self, *args, **kwargs)

        monkeypatch.setattr(LlamaForCausalLM, "generate", failing)
        out = tmp_path / "out"
        how = ("--mechanism", mechanism, "--concurrency", 1, "--requests", 9)
        assert bench(config, out, *how) == 2
        found = result(out)
        assert found["levels"][0]["counted"] == 4
        assert "failed" in [c["code"] for c in found["cautions"]]
        assert "out of memory" in capsys.readouterr().err

    def test_what_fails_before_generate(self, config, tmp_path, monkeypatch, capsys):
        """No thread ends unheard: exit code 2 with one line, and nothing is left to wait for."""
        inputs, calls = generation.inputs, []

        def failing(subject, prompt):
            calls.append(1)
            if len(calls) == 7:
                raise ValueError("no such\nid")
            return inputs(subject, prompt)

        monkeypatch.setattr(generation, "inputs", failing)
        out = tmp_path / "out"
        assert bench(config, out, "--concurrency", 1, "--requests", 9) == 2
        assert result(out)["levels"][0]["counted"] == 4
        assert "ValueError: no such id" in capsys.readouterr().err

    def test_ctrl_c_in_continuous_batching(self, config, tmp_path, monkeypatch):
        """The scheduler is not waited for until it has run all that it was given."""
        serve, collect = mechanisms.Continuous._serve_open, mechanisms.Continuous._collect

        def serving(self, manager, arrivals, level, ended):
            monkeypatch.setattr(mechanisms.Continuous, "_collect", interrupting)
            serve(self, manager, arrivals, level, ended)

        def interrupting(self, manager, running, ended):
            if running:
                raise KeyboardInterrupt
            collect(self, manager, running, ended)

        manager = continuous_api.ContinuousBatchingManager
        stop, stopped = manager.stop, []

        @functools.wraps(stop)
        def stopping(self, **how):
            stopped.append(how)
            stop(self, **how)

        monkeypatch.setattr(manager, "stop", stopping)
        monkeypatch.setattr(mechanisms.Continuous, "_serve_open", serving)
        out = tmp_path / "out"
        how = ("--mechanism", "continuous", "--attn", "sdpa", "--max-new-tokens", 240)
        assert bench(config, out, *how, "--rate", 1e5, "--concurrency", 2, "--requests", 40) == 130
        mine = ("submit", "_dispatch", "_run_generation_loop")
        assert not [t for t in threading.enumerate() if any(name in t.name for name in mine)]
        assert stopped == [{"block": True}, {"block": True, "hard_stop": True}]
        assert "interrupted" in [c["code"] for c in result(out)["cautions"]]

    def test_ctrl_c(self, config, tmp_path, monkeypatch):
        """Exit code 130, the threads have ended, and what was measured is there."""
        generate, calls = mechanisms.run_alone, []

        def interrupting(subject, plan, job):
            generate(subject, plan, job)
            calls.append(job)

        def join(self, timeout=None):
            if len(calls) >= 6:
                monkeypatch.undo()
                raise KeyboardInterrupt
            return joined(self, timeout)

        joined = mechanisms.threading.Thread.join
        monkeypatch.setattr(mechanisms, "run_alone", interrupting)
        monkeypatch.setattr(mechanisms.threading.Thread, "join", join)
        monkeypatch.setattr(mechanisms, "POLL_S", 0.001)
        out = tmp_path / "out"
        assert bench(config, out, "--concurrency", 2, "--requests", 5000) == 130
        found = result(out)
        assert 0 < found["levels"][0]["counted"] < 5000
        assert "interrupted" in [c["code"] for c in found["cautions"]]


class TestOptions:
    def test_continuous_batching_of_an_old_release(self, config, tmp_path, monkeypatch, capsys):
        """On a CPU it would fail inside of transformers, with a traceback of its own."""
        monkeypatch.setattr(mechanisms, "transformers_release", lambda: (5, 0))
        assert bench(config, tmp_path / "out", "--mechanism", "continuous", "--attn", "sdpa") == 2
        assert "5.1 on a CPU" in capsys.readouterr().err

    def test_presets(self, config, tmp_path):
        """A preset sets what the command line does not."""
        out = tmp_path / "out"
        given = ["bench", "tgs", "--random-weights", config, "--preset", "steady"]
        more = ["--prompt-tokens", "8", "--max-new-tokens", "4", "--requests", "2"]
        assert main([*given, *more, "--out", str(out)]) == 0
        found = result(out)
        assert found["generation"]["temperature"] == 0.7
        assert found["generation"]["top_p"] == 0.9
        (level,) = found["levels"]
        assert level["report"]["tgs"]["conditions"]["prompt_tokens"]["max"] == 8
        assert level["report"]["tgs"]["conditions"]["sampling"][0]["strategy"] == "sample"

    @pytest.mark.parametrize(
        ("more", "says"),
        [
            (["--rate", "1", "--concurrency", "1,2"], "one --concurrency"),
            (["--mechanism", "continuous", "--cache", "static"], "a cache of its own"),
        ],
    )
    def test_one_line(self, config, tmp_path, capsys, more, says):
        """Exit code 2, and no traceback."""
        assert bench(config, tmp_path / "out", *more) == 2
        error = capsys.readouterr().err.strip().splitlines()
        assert len(error) == 1
        assert says in error[0]

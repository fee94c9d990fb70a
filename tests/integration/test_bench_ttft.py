"""``llmtrace bench ttft`` on a tiny model, and what all tools share of loading and refusing."""

import csv
import json
import time

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM

from llmtrace.bench import generation, models, outputs, prompts, trials
from llmtrace.bench.settings import Generation, ModelChoice, PromptChoice
from llmtrace.cli import main
from tests.tiny_shape import SHAPE


@pytest.fixture
def config(tmp_path):
    """A model's config.json."""
    file = tmp_path / "tiny.json"
    file.write_text(json.dumps(SHAPE))
    return str(file)


@pytest.fixture
def subject(config):
    """A model of random weights."""
    return models.load(ModelChoice(random_weights=config, device="cpu"))


def bench(config, out, *more):
    """Run the tool and return its exit code."""
    return main(["bench", "ttft", "--random-weights", config, "--out", str(out), *map(str, more)])


class TestFiles:
    def test_all_are_written(self, config, tmp_path, capsys):
        """JSON, CSV, PNG and the traces of requests that count and that do not."""
        out = tmp_path / "out"
        assert bench(config, out, "--trials", 24, "--prompt-tokens", "4,9") == 0
        names = {file.name for file in out.iterdir()}
        assert names == {
            "ttft.json",
            "ttft.csv",
            "ttft.png",
            "trace.jsonl",
            "trace-warmup.jsonl",
        }
        found = json.loads((out / "ttft.json").read_text())
        rows = list(csv.DictReader((out / "ttft.csv").read_text().splitlines()))
        assert [row["prompt_tokens"] for row in rows] == ["4", "9"] * 12
        assert found["requests"]["run"] == 24
        assert found["ttft_s"]["count"] == found["requests"]["counted"] == 24
        assert [(b["from"], b["ttft_s"]["count"]) for b in found["by_prompt_tokens"]] == [
            (4, 12),
            (9, 12),
        ]
        mean = sum(float(row["ttft_s"]) for row in rows) / 24
        assert found["ttft_s"]["mean"] == pytest.approx(mean)
        assert found["warmup"]["requests"] == 3
        assert found["warmup"]["cold_reasons"] == ["first_request"]
        conditions = found["report"]["tgs"]["conditions"]
        assert conditions["prompt_tokens"]["max"] == 9
        assert (out / "ttft.png").read_bytes().startswith(b"\x89PNG")
        said = capsys.readouterr().out
        assert said.rstrip().splitlines()[-1].startswith("TTFT_mean=")

    def test_the_picture_says_its_conditions(self, config, tmp_path, monkeypatch):
        """All four, at its foot, as the other tools' do."""
        drawn = []
        monkeypatch.setattr(
            outputs.OutputFolder, "write_figure", lambda _folder, made: drawn.append(made)
        )
        assert bench(config, tmp_path / "out", "--trials", 2, "--prompt-tokens", "4,9") == 0
        foot = drawn[0].get_supxlabel()
        for said in ("prompt tokens: 4 to 9", "greedy", "concurrency: mean 1.00", "GPU memory"):
            assert said in foot

    def test_the_report_of_its_trace_agrees(self, config, tmp_path, capsys):
        """The trace file holds the requests that count, and no other."""
        out = tmp_path / "out"
        bench(config, out, "--trials", 5, "--prompt-tokens", 4)
        capsys.readouterr()
        assert main(["report", str(out / "trace.jsonl"), "--format", "json"]) == 0
        report = json.loads(capsys.readouterr().out)
        found = json.loads((out / "ttft.json").read_text())
        assert report["requests"]["total"] == 5
        assert report["ttft_s"]["mean"] == pytest.approx(found["ttft_s"]["mean"], rel=1e-6)

    def test_json_is_all_that_is_printed(self, config, tmp_path, capsys):
        """With --json standard output is the result."""
        bench(config, tmp_path / "out", "--trials", 2, "--prompt-tokens", 4, "--json")
        assert json.loads(capsys.readouterr().out)["schema"] == "llmtrace.bench.ttft/1"


class TestPrompts:
    def test_ids_are_new_for_each_request_and_the_same_in_each_run(self, subject):
        """No two requests share a prompt, and a seed decides all of them."""
        choice = PromptChoice(lengths=(8,))
        first, again = (prompts.Prompts(subject, choice, seed=1) for _ in "ab")
        ids = [first.prompt(i).ids for i in (0, 1, 2, trials.WARMUP_IDS)]
        assert all(i.shape == (1, 8) for i in ids)
        assert len({tuple(i[0].tolist()) for i in ids}) == 4
        assert torch.equal(first.prompt(1).ids, again.prompt(1).ids)
        assert not torch.equal(
            first.prompt(1).ids, prompts.Prompts(subject, choice, 7).prompt(1).ids
        )

    def test_exactly_so_many_tokens(self, subject):
        """An end-of-sequence token does not shorten a request, unless asked for."""
        subject.model.generation_config.eos_token_id = list(range(64))
        prompt = prompts.Prompts(subject, PromptChoice(lengths=(4,)), 0).prompt(0)
        short = Generation(5, stop_at_eos=True)
        generation.prepare(subject, short)
        assert generation.ask(subject, prompt, short).output_tokens == 1
        plan = Generation(5)
        generation.prepare(subject, plan)
        assert generation.ask(subject, prompt, plan).output_tokens == 5


class TestCaches:
    @pytest.mark.parametrize("cache", ["dynamic", "static"])
    def test_is_the_one_asked_for(self, subject, cache):
        """The record says which it was."""
        plan = Generation(4, cache=cache)
        prompt = prompts.Prompts(subject, PromptChoice(lengths=(4,)), 0).prompt(0)
        record = generation.ask(subject, prompt, plan)
        assert (record.cache_implementation, record.compiled) == (cache, False)


class TestStopping:
    def test_ctrl_c_keeps_what_was_measured(self, config, tmp_path, monkeypatch):
        """Exit code 130, and results of the requests that had run."""
        ask, asked = trials.ask, []

        def interrupted(*args, **kwargs):
            asked.append(1)
            if len(asked) == 6:
                raise KeyboardInterrupt
            return ask(*args, **kwargs)

        monkeypatch.setattr(trials, "ask", interrupted)
        out = tmp_path / "out"
        assert bench(config, out, "--trials", 9, "--prompt-tokens", 4) == 130
        found = json.loads((out / "ttft.json").read_text())
        assert found["interrupted"] is True
        assert found["requests"]["run"] == found["ttft_s"]["count"] == 2
        assert main(["report", str(out / "trace.jsonl"), "--format", "json"]) == 0

    def test_a_request_that_fails_ends_it_and_loses_nothing(
        self, config, tmp_path, monkeypatch, capsys
    ):
        """Exit code 2 with one line, and results of the requests before."""
        generate, calls = LlamaForCausalLM.generate, []

        def failing(self, *args, **kwargs):
            calls.append(1)
            if len(calls) == 6:
                raise RuntimeError("out of\nmemory")
            return generate(self, *args, **kwargs)

        monkeypatch.setattr(LlamaForCausalLM, "generate", failing)
        out = tmp_path / "out"
        assert bench(config, out, "--trials", 9, "--prompt-tokens", 4) == 2
        assert json.loads((out / "ttft.json").read_text())["ttft_s"]["count"] == 2
        assert "generate(): RuntimeError: out of memory" in capsys.readouterr().err


class TestRefusals:
    @pytest.mark.parametrize(
        ("more", "says"),
        [
            (["--prompt-tokens", 300], "more than the 256 positions"),
            (["--compile", "--cache", "dynamic"], "--compile needs --cache static"),
            (["--temperature", 1], "need --sample"),
            (["--prompt-file", "x.txt"], "needs a tokenizer"),
            (["--device", "cuda:99"], "no such CUDA device"),
            (["--device", "nonsense"], "is no device"),
            (["--device", "cpu", "--device-map", "auto"], "exclude each other"),
            (["--model", "x"], "either --model PATH or --random-weights"),
            (["--cache", "quantized"], "needs optimum-quanto or hqq"),
        ],
    )
    def test_one_line(self, config, tmp_path, capsys, more, says):
        """Exit code 2, and no traceback."""
        assert bench(config, tmp_path / "out", "--trials", 1, *more) == 2
        error = capsys.readouterr().err.strip().splitlines()
        assert len(error) == 1
        assert says in error[0]

    def test_compiling_bitsandbytes(self, subject):
        """It is refused with its reason, unless forced."""
        quantized = models.Subject(subject.model, None, ModelChoice(quantization="nf4"))
        plan = Generation(4, cache="static", compile=True)
        with pytest.raises(models.ConfigError, match="--force"):
            generation.check(quantized, plan, 4)
        generation.check(quantized, plan, 4, force=True)


class TestFoldersWithoutTokenizer:
    @pytest.mark.parametrize("kind", ["llama", "gpt2"])
    def test_are_measured_with_ids_alone(self, tmp_path, capsys, kind):
        """transformers refuses one of them and makes an empty tokenizer for the other."""
        small = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2}
        config = AutoConfig.for_model(
            kind, **small, num_attention_heads=2, intermediate_size=32, bos_token_id=1,
            eos_token_id=2,
        )  # fmt: skip
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
        run = ["bench", "ttft", "--model", str(tmp_path / "model"), "--trials", "2"]
        ids, texts = tmp_path / "ids", tmp_path / "texts"
        assert main([*run, "--prompt-tokens", "4", "--out", str(ids)]) == 0
        prompts_file = tmp_path / "prompts.txt"
        prompts_file.write_text("a text\n")
        assert main([*run, "--prompt-file", str(prompts_file), "--out", str(texts)]) == 2
        assert "--prompt-file needs a tokenizer" in capsys.readouterr().err
        assert not texts.exists()


class TestEnds:
    def test_no_request_that_counts_is_undecided(self, config, tmp_path):
        """The first request of a model is cold."""
        out = tmp_path / "out"
        more = ("--trials", 1, "--warmup", 0, "--prompt-tokens", 4)
        assert bench(config, out, *more) == 3
        assert json.loads((out / "ttft.json").read_text())["ttft_s"] is None

    def test_results_stay_until_there_can_be_others(self, config, tmp_path, capsys):
        """--overwrite beside a model that does not load loses nothing."""
        out = tmp_path / "out"
        out.mkdir()
        (out / "ttft.json").write_text("{}")
        assert bench(str(tmp_path / "no.json"), out, "--overwrite") == 2
        assert (out / "ttft.json").read_text() == "{}"
        assert bench(config, out, "--overwrite", "--trials", 2, "--prompt-tokens", 4) == 0
        assert (out / "ttft.json").read_text() != "{}"

    @pytest.mark.parametrize("seed", [2**32, 10**30])
    def test_seeds_that_are_too_large(self, config, tmp_path, capsys, seed):
        """torch takes none of more than 64 bits, and requests count up from it."""
        with pytest.raises(SystemExit) as ended:
            bench(config, tmp_path / "out", "--seed", seed)
        assert ended.value.code == 2
        assert "is more than" in capsys.readouterr().err

    def test_the_largest_seed_is_taken(self, config, tmp_path):
        """Whatever is counted up from it."""
        more = ("--seed", 2**32 - 1, "--trials", 2, "--prompt-tokens", 4, "--sample")
        assert bench(config, tmp_path / "out", *more) == 0


def test_times_are_those_of_a_stopwatch(subject, monkeypatch):
    """TTFT of slow requests is what a clock outside of llmtrace says, within 2 %."""
    plan, seen = Generation(2), []
    forward, generate = LlamaForCausalLM.forward, LlamaForCausalLM.generate

    def slow(self, *args, **kwargs):
        time.sleep(0.05)
        made = forward(self, *args, **kwargs)
        seen.append(time.perf_counter())
        return made

    def stamped(self, *args, **kwargs):
        seen.append(time.perf_counter())
        return generate(self, *args, **kwargs)

    monkeypatch.setattr(LlamaForCausalLM, "forward", slow)
    monkeypatch.setattr(LlamaForCausalLM, "generate", stamped)
    prompt = prompts.Prompts(subject, PromptChoice(lengths=(4,)), 0).prompt(0)
    generation.ask(subject, prompt, plan)
    seen.clear()
    record = generation.ask(subject, prompt, plan)
    begun, first, second = seen
    # The clock stops when the forward ends: the token is selected a little later.
    assert record.ttft_s == pytest.approx(first - begun, rel=0.02, abs=0.002)
    assert record.itl_s[0] == pytest.approx(second - first, rel=0.02, abs=0.002)

"""``llmtrace bench compare-settings`` on a tiny model."""

import csv
import json
import time

import pytest
from transformers import LlamaForCausalLM, LogitsProcessorList

from llmtrace.bench import generation
from llmtrace.bench.compare_settings import memory
from llmtrace.cli import main
from llmtrace.errors import ConfigError
from tests.tiny_shape import SHAPE


@pytest.fixture
def config(tmp_path):
    """A model's config.json."""
    file = tmp_path / "tiny.json"
    file.write_text(json.dumps({**SHAPE, "max_position_embeddings": 2048}))
    return str(file)


@pytest.fixture
def bench(config, tmp_path, capsys):
    """Run the tool; return its exit code, its JSON by lever, and what it printed."""

    def run(levers, *more, trials=4):
        out = tmp_path / "out"
        code = main(
            [
                *("bench", "compare-settings", "--random-weights", config, "--out", str(out)),
                *("--device", "cpu", "--levers", levers, "--trials", str(trials), "--warmup", "1"),
                *("--prompt-tokens", "6", "--max-new-tokens", "4", *map(str, more)),
            ]
        )
        printed = capsys.readouterr()
        file = out / "compare-settings.json"
        return code, json.loads(file.read_text()) if file.exists() else None, printed

    return run


def lines(lever):
    """The lines of a lever, by their names."""
    return {line["name"]: line for line in lever["lines"]}


class TestFiles:
    def test_all_are_written(self, bench, tmp_path):
        """JSON, CSV, PNG, and a trace file of each variant with its requests, and no other."""
        code, found, printed = bench("sampling,use-cache", "--at-concurrency", 3)
        assert code == 0
        out = tmp_path / "out"
        variants = [f"{lever}-{side}" for lever in ("sampling", "use-cache") for side in SIDES]
        traces = {f"compare-settings-{variant}.jsonl" for variant in variants}
        assert {file.name for file in out.iterdir()} == {
            *traces,
            *(f"compare-settings.{kind}" for kind in ("json", "csv", "png")),
            "trace-warmup.jsonl",
        }
        assert (out / "compare-settings.png").read_bytes().startswith(b"\x89PNG")
        rows = list(csv.DictReader((out / "compare-settings.csv").read_text().splitlines()))
        assert len(rows) == 2 * 2 * 2 * 4
        assert {row["rows"] for row in rows if row["kind"] == "batches"} == {"3"}
        assert [lever["lever"] for lever in found["levers"]] == ["use-cache", "sampling"]
        assert "TGS at 3 concurrent" in lines(found["levers"][0])
        assert "sampling: temperature 0.8, top_p 0.9" in printed.out

    def test_compare_says_the_same_of_the_traces(self, bench, tmp_path, capsys):
        """The files hold what the figures are of."""
        _, found, _ = bench("sampling")
        files = [tmp_path / "out" / f"compare-settings-sampling-{side}.jsonl" for side in SIDES]
        assert main(["compare", *map(str, files), "--json"]) == 3
        said = {x["name"]: x for x in json.loads(capsys.readouterr().out)["lines"]}
        own = lines(found["levers"][0])
        for name in ("TTFT p50", "ITL p95", "TGS request mean"):
            assert said[name]["before"] == pytest.approx(own[name]["before"], rel=1e-6)
            assert said[name]["after"] == pytest.approx(own[name]["after"], rel=1e-6)


SIDES = ("before", "after")


class TestLevers:
    def test_room_for_more_than_is_generated(self, bench):
        """Both sides generate the same number of tokens; only the cache's size differs."""
        code, found, _ = bench("max-new-tokens,static-cache-size")
        assert code == 0
        for lever in found["levers"]:
            for side in SIDES:
                tokens = lever[side]["report"]["output_tokens"]
                assert (tokens["min"], tokens["max"]) == (4, 4)
        growing, fixed = (lines(lever)["KV cache"] for lever in found["levers"])
        assert growing["before"] == growing["after"]
        # The 6 tokens of the prompt, and room: of the last token nothing need be kept.
        assert fixed["before"] / fixed["after"] == pytest.approx((6 + 1024) / (6 + 4), rel=0.2)

    def test_attention_has_a_model_of_its_own(self, bench):
        """What the model has already, and what there is no device for, is listed, not tried."""
        code, found, _ = bench("attention")
        assert code == 0
        (lever,) = found["levers"]
        kinds = [lever[side]["report"]["tgs"]["conditions"] for side in SIDES]
        assert [k["attn_implementations"] for k in kinds] == [["sdpa"], ["eager"]]
        assert {x["lever"]: x["reason"] for x in found["unavailable"]} == {
            "attention-sdpa": "it is what the model has before",
            "attention-flash_attention_2": "it needs a CUDA device",
        }

    def test_both_models_do_not_fit(self, bench, monkeypatch):
        """Then one comes after the other, and that is said; the next lever has its model again."""
        monkeypatch.setattr(memory, "fits_beside", lambda subject: False)
        code, found, printed = bench("attention,sampling")
        assert code == 0
        by_name = {lever["lever"]: lever for lever in found["levers"]}
        assert by_name["attention-eager"]["interleaved"] is False
        assert by_name["sampling"]["interleaved"] is True
        assert "all before, then all after" in printed.out

    def test_what_cannot_be_done_here_is_no_failure(self, bench, monkeypatch):
        """A variant that fails is listed with what went wrong, and the others are tried."""
        generate = LlamaForCausalLM.generate

        def refusing(self, *args, **kwargs):
            if kwargs.get("use_cache") is False:
                raise NotImplementedError("not in this model")
            return generate(self, *args, **kwargs)

        monkeypatch.setattr(LlamaForCausalLM, "generate", refusing)
        code, found, _ = bench("use-cache,sampling")
        assert code == 0
        assert [lever["lever"] for lever in found["levers"]] == ["sampling"]
        (left_out,) = found["unavailable"]
        assert left_out["lever"] == "use-cache"
        assert "not in this model" in left_out["reason"]

    def test_a_lever_that_is_worse_is_said_to_be(self, bench, monkeypatch):
        """Sampling that takes 20 ms a token more is worse; the exit code is 0 all the same."""
        arguments = generation.arguments

        def slow(subject, plan):
            def sleeping(ids, scores):
                time.sleep(0.02)
                return scores

            given = arguments(subject, plan)
            if plan.temperature == 0.8:
                given["logits_processor"] = LogitsProcessorList([sleeping])
            return given

        monkeypatch.setattr(generation, "arguments", slow)
        code, found, _ = bench("sampling", trials=12)
        assert code == 0
        own = lines(found["levers"][0])
        assert own["TTFT p50"]["after"] - own["TTFT p50"]["before"] >= 0.018
        for name in ("TTFT p50", "TGS request mean"):
            assert own[name]["verdict"] == "worse"


class TestOrder:
    def test_turn_about_with_the_same_prompts(self, bench, monkeypatch):
        """Before, after, after, before ...; each pair has one prompt, and no two pairs the same."""
        asked = []
        ask = generation.ask

        def noted(subject, prompt, plan, *, seed=0):
            asked.append((plan.temperature, tuple(prompt.ids[0].tolist()), seed))
            return ask(subject, prompt, plan, seed=seed)

        monkeypatch.setattr(generation, "ask", noted)
        bench("sampling")
        counted = asked[-8:]
        assert [t for t, _, _ in counted] == [0.95, 0.8, 0.8, 0.95] * 2
        pairs_of = [counted[i : i + 2] for i in range(0, 8, 2)]
        assert all(a[1:] == b[1:] for a, b in pairs_of)
        assert len({ids for _, ids, _ in asked}) == 4 + 1  # one that warms up
        assert not {ids for _, ids, _ in asked[:-8]} & {ids for _, ids, _ in counted}


class TestStopping:
    def test_ctrl_c_keeps_what_was_measured(self, bench, monkeypatch):
        """Exit code 130; the lever that was being tried has what it had, the others are listed."""
        ask, asked = generation.ask, []

        def interrupted(*args, **kwargs):
            asked.append(1)
            if len(asked) == 4 + 5:
                raise KeyboardInterrupt
            return ask(*args, **kwargs)

        monkeypatch.setattr(generation, "ask", interrupted)
        code, found, _ = bench("use-cache,sampling")
        assert code == 130
        assert found["interrupted"] is True
        (lever,) = found["levers"]
        assert (lever["lever"], lever["interrupted"]) == ("use-cache", True)
        assert [lever[side]["report"]["requests"]["total"] for side in SIDES] == [2, 2]
        assert {x["lever"]: x["reason"] for x in found["unavailable"]} == {
            "sampling": "Ctrl-C came before"
        }

    def test_a_lever_without_requests_on_both_sides_is_not_measured(self, bench, monkeypatch):
        """Ctrl-C while it warms up: nothing to compare, and no table of nothing."""

        def interrupted(*args, **kwargs):
            raise KeyboardInterrupt

        monkeypatch.setattr(generation, "ask", interrupted)
        code, found, _ = bench("use-cache,sampling")
        assert code == 130
        assert found["levers"] == []
        assert {x["lever"]: x["reason"] for x in found["unavailable"]} == {
            "use-cache": "Ctrl-C came before both sides had a request",
            "sampling": "Ctrl-C came before",
        }

    def test_an_unknown_lever(self, bench):
        """Exit code 2, one line that names those there are."""
        code, found, printed = bench("nonsense")
        assert (code, found) == (2, None)
        error = printed.err.strip().splitlines()
        assert len(error) == 1
        assert "--levers nonsense: is none of all, max-new-tokens" in error[0]


def test_models_saved_quantized(tmp_path, config):
    """They are what they are, and not quantized anew."""
    pytest.importorskip("bitsandbytes")
    from llmtrace.bench import models
    from llmtrace.bench.settings import ModelChoice

    kinds = [
        ({"load_in_8bit": True}, "8bit"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "nf4"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}, "4bit"),
        ({"quant_method": "gptq"}, None),
    ]
    for said, kind in kinds:
        holder = type("Config", (), {"quantization_config": said})()
        assert models._stored_quantization(holder) == kind
    made = models.load(ModelChoice(random_weights=config, quantization="nf4", device="cpu"))
    folder = tmp_path / "saved"
    made.model.save_pretrained(folder)
    tokenizer(folder)
    found = models.load(ModelChoice(model=str(folder), device="cpu"))
    assert found.choice.quantization == "nf4"
    with pytest.raises(ConfigError, match="was quantized before it was saved, as nf4"):
        models.load(ModelChoice(model=str(folder), quantization="8bit", device="cpu"))


def tokenizer(folder):
    """Put a tokenizer of a few words into *folder*."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(folder)

"""``llmtrace bench kv`` on a tiny model: real caches, and faults that must be found."""

import csv
import json

import pytest
import torch
from transformers import cache_utils

from llmtrace.bench import generation, models, prompts
from llmtrace.bench.kv import leaks
from llmtrace.bench.kv.running import Run, leak_test
from llmtrace.bench.kv.watch import watch
from llmtrace.bench.settings import Generation, ModelChoice, PromptChoice
from llmtrace.cli import main
from llmtrace.seams.cache_watch import watching
from llmtrace.seams.kv_layers import look

LAYERS, HEADS, DIM = 4, 2, 8
SHAPE = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": HEADS,
    "max_position_embeddings": 512,
}
TOKEN = 2 * HEADS * DIM * 4
"""Bytes of a token's keys and values in a layer, float32."""


@pytest.fixture
def config(tmp_path):
    """A model's config.json."""
    return written(tmp_path)


def written(folder, **more):
    file = folder / "tiny.json"
    file.write_text(json.dumps(SHAPE | more))
    return str(file)


def subject(config):
    return models.load(ModelChoice(random_weights=config, device="cpu"))


def looked_at(of, plan, tokens=64, **more):
    """Watch a request of a model and return what was seen."""
    generation.prepare(of, plan)
    prompt = prompts.Prompts(of, PromptChoice(lengths=(tokens,)), 0).prompt(0)
    return watch(of, prompt, plan, show=lambda *_: None, **more)


def bench(config, out, *more):
    """Run the tool and return its exit code."""
    given = ["--random-weights", config, "--device", "cpu", "--out", str(out)]
    return main(["bench", "kv", *given, *map(str, more)])


class TestCaches:
    def test_one_that_grows(self, config):
        """Each layer's shape after each step, counted by hand."""
        found = looked_at(subject(config), Generation(5), tokens=9)
        assert [step.tokens for step in found.steps] == [9, 10, 11, 12, 13]
        assert found.record.output_tokens == len(found.steps)
        for step in found.steps:
            assert [layer.keys for layer in step.layers] == [(1, HEADS, step.tokens, DIM)] * LAYERS
            assert step.size == step.held == step.due == LAYERS * TOKEN * step.tokens
        assert found.kind == "dynamic"

    def test_a_static_one_far_above_what_is_generated(self, config):
        """Asked for 200, got 10: bytes for 190 tokens are held in vain."""
        found = looked_at(subject(config), Generation(200, cache="static"), stop_after=10)
        assert found.record.output_tokens == len(found.steps) == 10
        assert {step.size for step in found.steps} == {found.steps[0].due}
        assert found.steps[0].size == LAYERS * TOKEN * (64 + 200 - 1)

    def test_a_sliding_one(self, tmp_path):
        """A window of 16 holds 15 of 64 tokens; static, 16."""
        config = written(tmp_path, model_type="mistral", sliding_window=16)
        grows = looked_at(subject(config), Generation(4))
        assert {layer.keys[2] for step in grows.steps for layer in step.layers} == {15}
        fixed = looked_at(subject(config), Generation(4, cache="static"))
        assert {layer.keys[2] for step in fixed.steps for layer in step.layers} == {16}
        assert all(s.size == s.due for s in (*grows.steps, *fixed.steps))

    @pytest.mark.skipif(
        not hasattr(cache_utils, "Fp8QuantizedLayer"), reason="new in transformers 5.24"
    )
    def test_a_quantized_one(self, config):
        """A byte for each number, and a scale of 4 bytes for each of 2 tensors."""
        model = subject(config).model
        cache = cache_utils.QuantizedCache("fp8", config=model.config)
        seen = []
        with watching(model, lambda cache: seen.append(look(cache))):
            model.generate(torch.tensor([[5, 6, 7]]), cache=cache, max_new_tokens=4)
        assert [layers[0].tokens for layers in seen] == [3, 4, 5, 6]
        assert [layers[0].packed for layers in seen] == [TOKEN // 4 * n for n in (3, 4, 5, 6)]
        assert all(one.size == one.packed + 8 for layers in seen for one in layers)
        assert {one.kind for layers in seen for one in layers} == {"quantized"}

    @pytest.mark.parametrize(
        ("more", "heads"),
        [
            ({"model_type": "gpt2", "n_head": 4, "num_key_value_heads": None}, 4),
            ({"model_type": "falcon", "multi_query": True, "num_key_value_heads": None}, 1),
            ({"model_type": "phi3", "pad_token_id": 0}, HEADS),
        ],
    )
    def test_other_families(self, tmp_path, more, heads):
        """Heads are counted in the words of each family."""
        found = looked_at(subject(written(tmp_path, **more)), Generation(2), tokens=9)
        assert {layer.keys[1] for layer in found.steps[-1].layers} == {heads}
        assert all(step.size == step.due for step in found.steps)

    def test_a_tuple(self):
        """What 4.38 to 4.41 have: pairs of tensors."""
        pair = (torch.zeros(1, HEADS, 7, DIM), torch.zeros(1, HEADS, 7, DIM))
        found = look((pair,) * 3)
        assert [layer.tokens for layer in found] == [7, 7, 7]
        assert found[0].size == TOKEN * 7

    def test_a_part_of_a_larger_tensor(self):
        """The storage is what is held."""
        room = torch.zeros(1, HEADS, 128, DIM)
        (found,) = look(((room[:, :, :65], room.clone()[:, :, :65]),))
        assert (found.size, found.held) == (TOKEN * 65, TOKEN * 128)

    def test_an_encoder_is_refused(self):
        """There are two caches in one."""
        both = cache_utils.EncoderDecoderCache(
            cache_utils.DynamicCache(), cache_utils.DynamicCache()
        )
        with pytest.raises(TypeError, match="encoder"):
            look(both)

    @pytest.mark.parametrize("cache", ["dynamic", "static"])
    @pytest.mark.parametrize("sample", [False, True])
    def test_tokens_are_the_same(self, config, cache, sample):
        """Looking changes nothing, and leaves nothing behind."""
        of = subject(config)
        ids = torch.arange(3, 20)[None]
        given = {"max_new_tokens": 12, "do_sample": sample, "cache_implementation": cache,
                 "eos_token_id": None, "disable_compile": True}  # fmt: skip
        given |= {"cache_implementation": None} if cache == "dynamic" else {}
        before = dict(vars(of.model))
        torch.manual_seed(3)
        without = of.model.generate(ids, **given)
        seen = []
        torch.manual_seed(3)
        with watching(of.model, lambda cache: seen.append(look(cache))):
            watched = of.model.generate(ids, **given)
        assert torch.equal(without, watched)
        assert len(seen) == 12
        assert "_update_model_kwargs_for_generation" not in vars(of.model)
        assert vars(of.model).keys() - before.keys() <= {"_previous_max_cache_length", "_cache"}


def holding(function):
    """Make a DynamicCache's layers hold what *function* makes of index, keys and values.

    Attention goes on with what is true.
    """
    update = cache_utils.DynamicCache.update

    def wrong(self, keys, values, layer_idx, *args, **kwargs):
        true = self.__dict__.setdefault("true", {})
        if layer_idx in true:
            self.layers[layer_idx].keys, self.layers[layer_idx].values = true[layer_idx]
        made = update(self, keys, values, layer_idx, *args, **kwargs)
        true[layer_idx] = made
        layer = self.layers[layer_idx]
        layer.keys, layer.values = (function(layer_idx, tensor) for tensor in made)
        return made

    return wrong


def padded(tensor, length):
    """Return keys or values with zeros up to *length* tokens."""
    return torch.nn.functional.pad(tensor, (0, 0, 0, max(0, length - tensor.shape[-2])))


class TestFaults:
    def found(self, config, out, *more):
        code = bench(config, out, "--requests", 0, "--max-new-tokens", 4, *more)
        made = json.loads((out / "kv.json").read_text())
        return code, {one["code"]: one for one in made["anomalies"]}

    def test_the_third_layer_keeps_a_wrong_length(self, config, tmp_path, monkeypatch, capsys):
        """128 tokens where 64, 65, ... are due, as in the field report."""
        wrong = holding(lambda i, t: padded(t, 128) if i == 2 else t)
        monkeypatch.setattr(cache_utils.DynamicCache, "update", wrong)
        code, anomalies = self.found(config, tmp_path / "out")
        assert code == 1
        assert anomalies["length"]["layers"] == anomalies["growth"]["layers"] == [2]
        assert anomalies["length"]["found"] == f"[1,{HEADS},128,{DIM}]"
        assert anomalies["length"]["due"] == f"[1,{HEADS},64,{DIM}]"
        assert "length, growth" in capsys.readouterr().out

    def test_growth_that_is_not_linear(self, config, tmp_path, monkeypatch):
        """Layers grow by sixteens; not the first, whose length the model goes by."""
        wrong = holding(lambda i, t: padded(t, -(-t.shape[-2] // 16) * 16) if i else t)
        monkeypatch.setattr(cache_utils.DynamicCache, "update", wrong)
        code, anomalies = self.found(config, tmp_path / "out")
        assert code == 1
        growth = anomalies["growth"]
        assert growth["layers"] == [1, 2, 3]
        assert (growth["first_step"], growth["found"], growth["due"]) == (1, "16 tokens", "1")

    def test_heads_for_each_query(self, config, tmp_path, monkeypatch):
        """Keys and values repeated before they are kept take twice the memory."""
        wrong = holding(lambda _, t: t.repeat_interleave(2, dim=1))
        monkeypatch.setattr(cache_utils.DynamicCache, "update", wrong)
        code, anomalies = self.found(config, tmp_path / "out")
        assert code == 1
        assert list(anomalies) == ["shape"]
        assert "a head for each query" in anomalies["shape"]["found"]

    def test_another_type(self, config, tmp_path, monkeypatch):
        """One layer in half precision."""
        wrong = holding(lambda i, t: t.half() if i == 1 else t)
        monkeypatch.setattr(cache_utils.DynamicCache, "update", wrong)
        code, anomalies = self.found(config, tmp_path / "out")
        assert (code, list(anomalies)) == (1, ["dtype"])
        assert anomalies["dtype"]["layers"] == [1]


APP = """
KEPT = []

def keep(model):
    generate = model.generate

    def answer(*args, **kwargs):
        made = generate(*args, return_dict_in_generate=True, **kwargs)
        KEPT.append(made.get("cache") or made.get("past_key_values"))
        return made.sequences

    model.generate = answer
"""


class TestLeaks:
    def test_an_app_that_keeps_caches(self, config, tmp_path, capsys):
        """The verdict, the bytes of one cache per request, and who holds it."""
        app = tmp_path / "leaking_app.py"
        app.write_text(APP)
        code = bench(
            config, tmp_path / "out", "--requests", 9, "--max-new-tokens", 4,
            "--prepare", f"{app}:keep",
        )  # fmt: skip
        assert code == 1
        found = json.loads((tmp_path / "out" / "kv.json").read_text())
        assert found["anomalies"] == []
        leak = found["leak_test"]
        assert leak["verdict"] == "LEAK"
        # The last token is selected, but never run.
        assert leak["bytes_per_request"] == LAYERS * TOKEN * (64 + 4 - 1)
        assert {"class": "transformers.cache_utils.DynamicCache", "per_request": 1.0} in leak[
            "growing"
        ]
        assert leak["holders"] == ["DynamicCache in list in `KEPT` of module leaking_app"]
        assert "Leak test: LEAK" in capsys.readouterr().out

    def test_a_store_that_is_full(self, config):
        """The last three caches are kept: that is no leak."""
        of, kept = subject(config), []
        generate = of.model.generate

        def answer(*args, **kwargs):
            made = generate(*args, return_dict_in_generate=True, **kwargs)
            kept.append(made)
            del kept[:-3]
            return made.sequences

        of.model.generate = answer
        plan = Generation(3)
        generation.prepare(of, plan)
        run = Run()
        choice = prompts.Prompts(of, PromptChoice(lengths=(4,)), 0)
        leak_test(run, of, choice, plan, None, requests=12, progress=lambda *_: None)
        assert run.leaks.verdict == leaks.CLEAN

    @pytest.mark.parametrize("cache", ["dynamic", "static"])
    def test_none(self, config, tmp_path, cache):
        """Prompts of different lengths, and not a byte stays."""
        code = bench(
            config, tmp_path / "out", "--requests", 9, "--max-new-tokens", 3, "--cache", cache,
            "--prompt-tokens", "4,9",
        )  # fmt: skip
        leak = json.loads((tmp_path / "out" / "kv.json").read_text())["leak_test"]
        assert (code, leak["verdict"]) == (0, "no leak")
        assert {one["tensor_bytes"] for one in leak["samples"]} == {
            leak["samples"][0]["tensor_bytes"]
        }

    def test_too_few_requests(self, config, tmp_path):
        """Undecided."""
        assert bench(config, tmp_path / "out", "--requests", 2, "--max-new-tokens", 2) == 3

    def test_a_request_that_fails_loses_nothing(self, config, tmp_path, monkeypatch, capsys):
        """Exit code 2 with one line, and what was seen before."""
        update, calls = cache_utils.DynamicCache.update, []

        def failing(*args, **kwargs):
            calls.append(1)
            if len(calls) > 5 * 2 * LAYERS:
                raise RuntimeError("out of\nmemory")
            return update(*args, **kwargs)

        monkeypatch.setattr(cache_utils.DynamicCache, "update", failing)
        assert bench(config, tmp_path / "out", "--requests", 9, "--max-new-tokens", 2) == 2
        found = json.loads((tmp_path / "out" / "kv.json").read_text())
        assert found["leak_test"]["requests"] == 3
        assert "generate(): RuntimeError: out of memory" in capsys.readouterr().err


class TestFiles:
    def test_all_are_written(self, config, tmp_path, capsys):
        """JSON, CSV, pictures and traces; a row for each step and layer."""
        out = tmp_path / "out"
        assert bench(config, out, "--requests", 9, "--max-new-tokens", 3) == 0
        assert {file.name for file in out.iterdir()} == {
            "kv.json",
            "kv.csv",
            "kv.png",
            "kv-leaks.png",
            "trace.jsonl",
            "trace-warmup.jsonl",
        }
        rows = list(csv.DictReader((out / "kv.csv").read_text().splitlines()))
        assert [(row["step"], row["layer"]) for row in rows[:5]] == [
            ("0", "0"),
            ("0", "1"),
            ("0", "2"),
            ("0", "3"),
            ("1", "0"),
        ]
        assert len(rows) == 3 * LAYERS
        assert {row["growth_bytes"] for row in rows[LAYERS:]} == {str(TOKEN)}
        found = json.loads((out / "kv.json").read_text())
        assert found["schema"] == "llmtrace.bench.kv/1"
        assert found["verdict"] == "good"
        assert found["steps"][-1]["due_bytes"] == found["steps"][-1]["bytes"]
        assert found["steps"][-1]["allocator"] is None
        assert found["report"]["tgs"]["conditions"]["prompt_tokens"]["max"] == 64
        assert "as it should be" in capsys.readouterr().out

    def test_ctrl_c_keeps_what_was_seen(self, config, tmp_path, monkeypatch):
        """In the leak test, and while the cache is watched."""
        update = cache_utils.DynamicCache.update
        calls = []

        def interrupted(*args, **kwargs):
            calls.append(1)
            if len(calls) == stop:
                raise KeyboardInterrupt
            return update(*args, **kwargs)

        monkeypatch.setattr(cache_utils.DynamicCache, "update", interrupted)
        for part, request in (("watched", 1), ("leaks", 4)):
            calls.clear()
            stop = (request * 6 + 2) * LAYERS + 1
            out = tmp_path / part
            assert bench(config, out, "--requests", 9, "--max-new-tokens", 6) == 130
            found = json.loads((out / "kv.json").read_text())
            assert found["interrupted"] is True
            assert found["cache"]["steps"] == (2 if part == "watched" else 6)

    def test_an_app_that_fails_to_prepare(self, config, tmp_path, capsys):
        """Its error in one line; no traceback, and no folder."""
        app, out = tmp_path / "broken_app.py", tmp_path / "out"
        app.write_text("def wrap(model):\n    model.no_such_thing()\n")
        assert bench(config, out, "--prepare", f"{app}:wrap", "--prompt-tokens", 8) == 2
        error = capsys.readouterr().err.strip()
        assert "wrap: failed: AttributeError" in error
        assert "\n" not in error
        assert not out.exists()

    def test_a_model_without_attention(self, tmp_path, capsys):
        """It has no KV cache to look at."""
        shape = {"model_type": "mamba", "vocab_size": 64, "hidden_size": 16, "state_size": 4,
                 "num_hidden_layers": 2}  # fmt: skip
        file = tmp_path / "mamba.json"
        file.write_text(json.dumps(shape))
        assert bench(str(file), tmp_path / "out") == 2
        assert "has no attention" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("more", "says"),
        [
            (["--prepare", "nowhere.py:f"], "there is no such file"),
            (["--stop-after", 9, "--max-new-tokens", 4], "more than --max-new-tokens"),
            (["--cache", "offloaded"], "needs a GPU"),
        ],
    )
    def test_refusals(self, config, tmp_path, capsys, more, says):
        """Exit code 2, and one line."""
        assert bench(config, tmp_path / "out", *more) == 2
        error = capsys.readouterr().err.strip().splitlines()
        assert len(error) == 1
        assert says in error[0]

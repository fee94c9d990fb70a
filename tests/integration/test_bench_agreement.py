"""The stopwatch that knows nothing of llmtrace, and what both say of the same requests."""

import argparse
import ast
import json
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def agreement(monkeypatch):
    """The program, as it is when run from its folder."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import agreement

    yield agreement
    for name in ("agreement", "stopwatch"):
        sys.modules.pop(name, None)


@pytest.fixture
def arguments(tmp_path):
    """A tiny model, few requests."""
    file = tmp_path / "tiny.json"
    file.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "vocab_size": 64,
                "hidden_size": 16,
                "intermediate_size": 32,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
            }
        )
    )
    return argparse.Namespace(
        random_weights=str(file), model=None, gguf_file=None, dtype=None, device="cpu", seed=0,
        prompt_tokens=8, max_new_tokens=5, trials=3, warmup=1, batch=[2], threads=[1, 2],
        cache="dynamic", compile=False,
    )  # fmt: skip


def test_the_stopwatch_knows_nothing_of_llmtrace():
    """It imports no module of it."""
    tree = ast.parse((BENCHMARKS / "stopwatch.py").read_text())
    imported = [
        name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in [getattr(node, "module", None), *(alias.name for alias in node.names)]
        if name
    ]
    assert "torch" in imported
    assert not [name for name in imported if name.startswith("llmtrace")]


def test_both_say_the_same(agreement, arguments, monkeypatch):
    """Of requests that take 20 ms a token: TTFT, TPOT, ITL, TGS within 2 %, the cache to a byte."""
    load = agreement.stopwatch.load

    def slow(given):
        model = load(given)
        model.model.register_forward_pre_hook(lambda *_: time.sleep(0.02))
        return model

    monkeypatch.setattr(agreement.stopwatch, "load", slow)
    shown = []
    found = agreement.all_figures(arguments, shown.append)
    assert found == shown
    same = {f.name: f for f in found if f.way.startswith("same request")}
    threads = {"TGS, 1 threads", "TGS, 2 threads"}
    assert set(same) == {"TTFT", "TPOT", "ITL", "TGS, batch of 2", *threads}
    for figure in same.values():
        assert figure.pairs == 3
        assert abs(figure.off_percent) < 2
    assert same["TTFT"].stopwatch > 0.02
    (cache,) = (f for f in found if f.name.startswith("KV cache"))
    # Keys and values of 3 layers, 2 heads of 4 floats, of all tokens but the last.
    assert cache.llmtrace == cache.stopwatch == 2 * 3 * 2 * 4 * 4 * (8 + 5 - 1)


def test_the_stopwatch_alone(agreement, arguments):
    """Every figure is there, each request's tokens are counted, and threads share the model."""
    watch = agreement.stopwatch
    model = watch.load(arguments)
    found = watch.measure(model, arguments)
    said = watch.summary(found)
    assert len(found["requests"]) == 3
    assert all(len(r["itl_s"]) == 4 for r in found["requests"])
    assert set(said["tgs_batch"]) == {2}
    assert set(said["tgs_threads"]) == {1, 2}
    assert min(said["tgs_threads"].values()) > 0
    one = watch.request(model, watch.random_prompt(model, 8, 1), 1)
    assert "tpot_s" not in one


def test_when_all_threads_are_busy(agreement):
    """From the last start to the first end, as often as so many run."""
    requests = [
        {"start": start, "times": [start + 0.5, end]}
        for start, end in [(0.0, 4.0), (1.0, 3.0), (3.5, 6.0), (5.0, 7.0)]
    ]
    busy = agreement.stopwatch.busy
    assert busy(requests, 2) == [(1.0, 3.0), (3.5, 4.0), (5.0, 6.0)]
    assert busy(requests, 3) == []

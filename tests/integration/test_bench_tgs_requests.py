"""What ``llmtrace bench tgs`` says of its requests: who held them up, how many, the same again."""

import json
import time

import pytest
from transformers import LlamaForCausalLM
from transformers.generation.streamers import BaseStreamer

from llmtrace.bench import generation
from llmtrace.bench.tgs.load import arrive_within
from llmtrace.cli import main
from tests.tiny_shape import SHAPE


@pytest.fixture
def bench(tmp_path):
    """Run the tool on a tiny model; returns exit code and result."""
    config = tmp_path / "tiny.json"
    config.write_text(json.dumps(SHAPE))
    given = ["--random-weights", str(config), "--prompt-tokens", "4", "--max-new-tokens", "6"]

    def run(*more, out="out"):
        folder = tmp_path / out
        code = main(["bench", "tgs", *given, "--out", str(folder), *map(str, more)])
        file = folder / "tgs.json"
        return code, json.loads(file.read_text()) if file.exists() else None

    return run


class Blocking(BaseStreamer):
    """A consumer that logs each token, slowly."""

    def put(self, value):
        time.sleep(0.06)

    def end(self):
        pass


def test_a_consumer_that_blocks_is_named(bench, monkeypatch, capsys):
    """Tokens come late, and it is said that the model is not what is slow."""
    code, quick = bench("--concurrency", 1, "--requests", 2, out="quick")
    assert code == 0
    assert "slow_consumer" not in capsys.readouterr().out
    assert quick["levels"][0]["report"]["findings"] == []
    arguments = generation.arguments
    monkeypatch.setattr(
        generation, "arguments", lambda *of: {**arguments(*of), "streamer": Blocking()}
    )
    code, slow = bench("--concurrency", "1,2", "--requests", 4)
    assert code == 0
    for level in slow["levels"]:
        assert level["itl_s"]["p50"] > 0.06
        (finding,) = level["report"]["findings"]
        assert finding["code"] == "slow_consumer"
        assert "put() held the model up" in finding["evidence"]
        assert len(finding["trace_ids"]) == 4
    said = capsys.readouterr().out
    assert said.count("[slow_consumer]") == 1
    assert "the model was not slow" in said


class TestOpenLoop:
    def test_for_so_many_seconds(self, bench):
        """As many requests as the process makes arrive in that time, all of them run."""
        code, found = bench("--rate", "20,60", "--duration", 0.5, "--concurrency", 2)
        assert code == 0
        assert [(lv["name"], lv["counted"]) for lv in found["levels"]] == [
            ("20/s", arrive_within(20, 0.5, 0)),
            ("60/s", arrive_within(60, 0.5, 0)),
        ]

    @pytest.mark.parametrize("load", [("--duration", 1), ("--duration", 1, "--concurrency", 2)])
    def test_a_closed_loop_takes_no_duration(self, bench, capsys, load):
        """Exit code 2, one line, nothing written."""
        assert bench(*load) == (2, None)
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert "--duration needs --rate" in line


def test_sampled_tokens_are_the_same_again(bench, monkeypatch):
    """At each level: what differs is the load alone."""
    generate, seen = LlamaForCausalLM.generate, []

    def watched(self, *args, **kwargs):
        ids = generate(self, *args, **kwargs)
        seen.append(ids.tolist())
        return ids

    monkeypatch.setattr(LlamaForCausalLM, "generate", watched)
    how = ("--sample", "--temperature", 1, "--concurrency", 1, "--requests", 3)
    assert bench("--rate", "1000,2000", *how)[0] == 0
    slower, faster = seen[2:5], seen[5:]  # without those that warmed up both levels
    assert slower == faster
    assert slower[0] != slower[1]

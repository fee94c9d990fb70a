"""``llmtrace bench compare-settings`` on the real model, as a user would run it."""

import json
import subprocess
import sys


def test_on_the_real_model(tmp_path):
    """What can be tried here is, the rest is listed, and the exit code says nothing of either."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "llmtrace", "bench", "compare-settings", "--model", "demo"),
            *("--levers", "use-cache,attention,quantization", "--trials", "2", "--warmup", "1"),
            *("--prompt-tokens", "8", "--max-new-tokens", "4", "--out", "out"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out" / "compare-settings.json").read_text())
    assert [lever["lever"] for lever in found["levers"]] == ["use-cache", "attention-eager"]
    assert {x["lever"] for x in found["unavailable"]} == {
        "attention-sdpa",
        "attention-flash_attention_2",
        "quantization-8bit",
        "quantization-nf4",
    }
    assert "SmolLM2-135M-Instruct on" in done.stdout
    assert "too few requests to tell" in done.stdout
    (use_cache, attention) = found["levers"]
    kept = [use_cache[side]["report"]["tgs"]["conditions"] for side in ("before", "after")]
    assert [k["prompt_tokens"]["max"] for k in kept] == [2, 2]
    assert attention["interleaved"] in {True, False}

"""``llmtrace bench ttft`` on the real model, as a user would run it."""

import json
import re
import subprocess
import sys


def bench(folder, *more):
    """Run the tool in *folder* to its end."""
    return subprocess.run(
        [sys.executable, "-m", "llmtrace", "bench", "ttft", "--model", "demo", *more],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_texts_of_a_file(tmp_path):
    """Tokenizing is a part of the time, and the line that scripts look for comes last."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Hello there\nWhat is a waterfall, in three short sentences?\n")
    done = bench(tmp_path, "--prompt_file", str(prompts), "--trials", "6", "--out", "out")
    assert done.returncode == 0, done.stderr
    last = done.stdout.rstrip().splitlines()[-1]
    assert re.fullmatch(r"TTFT_mean=[\d.]+ms, TTFT_p95=[\d.]+ms, std=[\d.]+ms", last)
    assert "SmolLM2-135M-Instruct on cpu" in done.stdout
    found = json.loads((tmp_path / "out" / "ttft.json").read_text())
    assert found["requests"] == {"run": 6, "counted": 6, "cold": 0}
    parts = sum(part["mean"] for part in found["parts_s"].values())
    assert abs(parts - found["ttft_from_request_s"]["mean"]) < 1e-4
    assert found["parts_s"]["tokenize"]["min"] > 0
    assert found["environment"]["versions"]["torch"]
    again = bench(tmp_path, "--prompt_file", str(prompts), "--trials", "6", "--out", "out")
    assert (again.returncode, "lies there already" in again.stderr) == (2, True)

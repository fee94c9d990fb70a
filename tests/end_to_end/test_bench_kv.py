"""``llmtrace bench kv`` on the real model, as a user would run it."""

import json
import subprocess
import sys


def test_the_demonstration_model(tmp_path):
    """30 layers of 3 heads for 9 of queries: each is due 1,536 bytes a token, and has them."""
    done = subprocess.run(
        [
            sys.executable, "-m", "llmtrace", "bench", "kv", "--model", "demo", "--device", "cpu",
            "--prompt-tokens", "64", "--max-new-tokens", "8", "--requests", "2", "--out", "out",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "2 requests are too few" in done.stdout
    assert "[1,3,71,64]" in done.stdout
    found = json.loads((tmp_path / "out" / "kv.json").read_text())
    assert found["verdict"] == "undecided"
    assert [step["bytes"] for step in found["steps"]] == [
        30 * 2 * 3 * 64 * 4 * tokens for tokens in range(64, 72)
    ]
    assert all(step["bytes"] == step["due_bytes"] for step in found["steps"])
    assert found["anomalies"] == []
    assert found["report"]["requests"]["total"] == 3

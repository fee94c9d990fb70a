"""``llmtrace bench itl`` on the real model, as a user would run it."""

import csv
import json
import re
import subprocess
import sys


def test_curve_of_the_real_model(tmp_path):
    """Gaps, floor and files; reading weights is part of every step."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "llmtrace", "bench", "itl", "--model", "demo"),
            *("--trials", "3", "--max-new-tokens", "24", "--prompt-tokens", "16"),
            *("--out", "out"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    last = done.stdout.rstrip().splitlines()[-1]
    shape = r"ITL_p50=[\d.]+ms, ITL_p95=[\d.]+ms, ITL_p99=[\d.]+ms, ITL_max=[\d.]+ms"
    assert re.fullmatch(shape, last)
    assert "SmolLM2-135M-Instruct on cpu" in done.stdout
    found = json.loads((tmp_path / "out" / "itl.json").read_text())
    rows = list(csv.DictReader((tmp_path / "out" / "itl.csv").read_text().splitlines()))
    assert found["itl_s"]["count"] == len(rows) == 3 * 23
    assert found["floor"]["weight_bytes"] == 4 * found["model"]["parameters"]
    # 30 layers, keys and values, 3 heads of 64 numbers of 4 bytes.
    assert found["floor"]["kv_bytes_per_token"] == 30 * 2 * 3 * 64 * 4
    forward = sum(float(row["host_forward_s"]) for row in rows)
    assert forward > 0.5 * sum(float(row["itl_s"]) for row in rows)
    assert (tmp_path / "out" / "itl.png").stat().st_size > 10_000

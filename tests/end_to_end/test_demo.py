"""``llmtrace demo``, as ``make demo`` runs it."""

import json
import subprocess
import sys


def demo(folder, *options):
    done = subprocess.run(
        [sys.executable, "-m", "llmtrace", "demo", "--max-new-tokens", "24", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_demo(tmp_path):
    """It prints the model's answers, the table with its conditions, and where both files lie."""
    said = demo(tmp_path).stdout
    assert "LlamaForCausalLM" in said
    assert "A waterfall is" in said
    for word in ("TTFT", "ITL", "TPOT", "TGS system", "prompt tokens", "sampling", "concurrency"):
        assert word in said
    page, file = sorted((tmp_path / "llmtrace-traces").iterdir())
    assert page == file.with_suffix(".html")
    assert f"HTML report: llmtrace-traces/{page.name}" in said
    assert "SmolLM2-135M-Instruct" in page.read_text()
    assert f"Trace file: llmtrace-traces/{file.name}" in said.replace("./", "")
    assert len(file.read_text().splitlines()) == 4


def test_demo_as_json(tmp_path):
    """With ``--json`` standard output is the report and nothing else."""
    done = demo(tmp_path, "--json", "--question", "Hi!")
    report = json.loads(done.stdout)
    assert report["requests"] == {"total": 2, "ok": 2, "error": 0, "cold": 1}
    assert report["itl_s"]["count"] > 0
    assert "> Hi!" in done.stderr

"""``llmtrace bench`` and a real Ctrl-C."""

import json
import signal
import subprocess
import sys
import time

SHAPE = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def test_ctrl_c_keeps_what_was_measured(tmp_path):
    """Exit code 130, and files with the requests that had run."""
    (tmp_path / "tiny.json").write_text(json.dumps(SHAPE))
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "llmtrace", "bench", "ttft", "--random-weights", "tiny.json"),
            *("--prompt-tokens", "4", "--trials", "1000000", "--out", "out"),
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that starts jobs in the background makes them deaf to it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    trace = tmp_path / "out" / "trace.jsonl"
    # The trace of requests that count begins with the first of them.
    while process.poll() is None and not trace.exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    found = json.loads((tmp_path / "out" / "ttft.json").read_text())
    assert found["interrupted"] is True
    assert found["ttft_s"]["count"] == found["requests"]["run"] >= 1
    assert "Ctrl-C ended the run" in said
    assert "Traceback" not in errors

"""The examples, run as a user would."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {
    "thread_streaming.py": "32 tokens; first token after",
    "own_loop.py": "1 prefill, 15 decode steps",
    "continuous_batching.py": "4 requests, ended by",
}


@pytest.mark.parametrize("name", SAYS)
def test_example(name, tmp_path):
    """It ends well, says what it should, and leaves one trace file."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout
    assert len(list((tmp_path / "llmtrace-traces").glob("*.jsonl"))) == 1


def test_every_example_is_run():
    """No example is left out of this list."""
    assert sorted(SAYS) == sorted(file.name for file in EXAMPLES.glob("*.py"))

"""The examples, run as a user would."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {
    "thread_streaming.py": "32 tokens; first token after",
    "own_loop.py": "1 prefill, 15 decode steps",
    "custom_scheduler.py": "5 requests, 44 tokens, 22 calls of the model",
    "continuous_batching.py": "4 requests, ended by",
}
SERVED = {"fastapi_stream.py"}
"""Those that run until they are stopped: test_serving.py."""


def run(name, folder):
    """Run an example to its end, in *folder*."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("name", SAYS)
def test_example(name, tmp_path):
    """It ends well, says what it should, and leaves one trace file."""
    done = run(name, tmp_path)
    assert SAYS[name] in done.stdout
    for median in re.findall(r"own clock: median ([0-9.]+) ms", done.stdout):
        assert float(median) < 5
    assert len(list((tmp_path / "llmtrace-traces").glob("*.jsonl"))) == 1


def test_every_example_is_run():
    """No example is left out of this list."""
    assert {*SAYS, *SERVED} == {file.name for file in EXAMPLES.glob("*.py")}

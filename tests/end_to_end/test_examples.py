"""The examples, run as a user would."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_shape import SHAPE

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {
    "thread_streaming.py": "32 tokens; first token after",
    "own_loop.py": "1 prefill, 15 decode steps",
    "custom_scheduler.py": "5 requests, 44 tokens, 22 calls of the model",
    "continuous_batching.py": "4 requests, ended by",
}
SERVED = {"fastapi_stream.py"}
"""Those that run until they are stopped: test_serving.py."""

OF_TWO = ("--model_path", "demo", "--prompt_file", "prompts.txt", "--trials", "2")
TINY = ("--random-weights", "tiny.json")
"""Their tools have tests of their own on the real model."""
MEASURES = {
    "ttft_benchmark.py": (
        OF_TWO,
        r"^TTFT_mean=[\d.]+ms, TTFT_p95=[\d.]+ms, std=[\d.]+ms$",
    ),
    "itl_profiler.py": (
        (*TINY, "--prompt-tokens", "8", "--trials", "2", "--max-new-tokens", "6"),
        r"^ITL_p50=[\d.]+ms, ITL_p95=[\d.]+ms, ITL_p99=[\d.]+ms, ITL_max=[\d.]+ms$",
    ),
    "tgs_stress_test.py": (
        (
            *("--model_path", "demo", "--concurrency", "1,2", "--requests", "2"),
            *("--prompt-tokens", "8", "--max-new-tokens", "4"),
        ),
        r"^2 \(threads\) +[\d.]+ ",
    ),
    "kv_cache_analyzer.py": (
        (*TINY, "--prompt-tokens", "8", "--requests", "0"),
        r"^Anomalies: none$",
    ),
}
"""The measuring programs: what they are given, and what they say."""


def start(name, folder, *arguments, **more):
    """Run an example to its end, in *folder*."""
    return subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        **more,
    )


def run(name, folder, *arguments):
    """Run an example, which must end well."""
    done = start(name, folder, *arguments)
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


@pytest.mark.parametrize("name", MEASURES)
def test_measuring_program(name, tmp_path):
    """With the arguments of the field report it says what that says; its files are where asked."""
    (tmp_path / "prompts.txt").write_text("The capital of France is\nOnce upon a time\n")
    (tmp_path / "tiny.json").write_text(json.dumps(SHAPE))
    arguments, says = MEASURES[name]
    done = run(name, tmp_path, *arguments, "--out", "out")
    assert re.search(says, done.stdout, re.MULTILINE), done.stdout
    assert {".json", ".csv", ".png", ".jsonl"} <= {f.suffix for f in (tmp_path / "out").iterdir()}


@pytest.mark.parametrize("name", MEASURES)
def test_measuring_program_without_torch(name, tmp_path):
    """One line that says what to install, exit code 2, no traceback."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "found = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'torch' else found(name, *more)\n"
    )
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = start(name, tmp_path, "--model_path", "demo", env=environment)
    assert done.returncode == 2
    said = "llmtrace bench: needs torch: pip install 'llmtrace[bench]'"
    assert done.stderr.splitlines() == [said]


def test_every_example_is_run():
    """No example is left out of this list."""
    listed = {*SAYS, *SERVED, *MEASURES}
    assert listed == {file.name for file in EXAMPLES.glob("*.py")}

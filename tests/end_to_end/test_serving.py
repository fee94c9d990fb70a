"""``examples/fastapi_stream.py`` as a process, asked by clients with clocks of their own."""

import importlib.util
import sys
from pathlib import Path

import pytest

from llmtrace.sources.otlp_json import read

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(900)  # several processes load a model each


@pytest.fixture(scope="module")
def load_test():
    """The load test, as a module."""
    spec = importlib.util.spec_from_file_location("serving", ROOT / "benchmarks" / "serving.py")
    module = sys.modules["serving"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["serving"]


def test_clients_at_once(load_test):
    """Every answer is what it is without llmtrace, and has a whole trace that is right.

    The parts of a trace add up from the server span to the first text (checked for each answer);
    by the client's clock that was after it had asked, and before it had the text.
    """
    result = load_test.measure(clients=4, pairs=2, tokens=6)
    assert result["problems"] == []
    assert result["answers_identical"]
    assert result["traces_complete"] == result["answers"] == 8
    earliest, _, latest = result["first_text_client_minus_trace_ms"]
    assert earliest > 0
    assert latest < result["first_text_ms_median"]


def test_one_line_is_enough(load_test, tmp_path, monkeypatch):
    """Without any instrumentation of HTTP: a local file, a record of each answer."""
    monkeypatch.chdir(tmp_path)
    with load_test.serving(None, traced=True) as port:
        answers = [load_test.ask(port, "Name a river.", 4) for _ in range(2)]
    (file,) = (tmp_path / "llmtrace-traces").glob("*.jsonl")
    records = read([str(file)]).records
    assert [r.output_tokens for r in records] == [4, 4]
    assert all(r.operation == "chat" and r.error is None for r in records)
    assert all(r.first_delivery_s is not None and r.tokenize_s is not None for r in records)
    assert answers[0].text == answers[1].text != b""

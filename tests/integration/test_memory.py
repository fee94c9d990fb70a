"""What a finished request leaves in memory: nothing."""

import gc

import pytest

import llmtrace
from llmtrace.recording.recorder import Recorder
from llmtrace.telemetry.spans import LiveSpan


@pytest.fixture
def no_collector():
    """Python's cycle collector is off: only what nothing refers to goes."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_a_finished_request_is_gone_without_the_collector(tiny, prompt, telemetry):
    """Neither ``generate()`` nor a block leaves a cycle that keeps its marks and attributes."""
    tiny.generate(prompt, max_new_tokens=2)
    with llmtrace.request(), llmtrace.request(tiny):
        tiny(prompt)
    assert telemetry.handle.flush()
    left = [o for o in gc.get_objects() if issubclass(type(o), (Recorder, LiveSpan))]
    assert left == []

"""A clock and a device that go exactly as a test says; programs run in a process of their own."""

# First: a provider of the SDK's that is older than this hangs in a forked child, where it makes
# an executor before the executors' lock is free.
import concurrent.futures.thread  # noqa: F401
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from llmtrace.recording import (
    batch,
    batched_request,
    device_recorder,
    own_loop,
    recorder,
    running,
)
from llmtrace.timing import host
from llmtrace.timing.device import DeviceTimes

ROOT = Path(__file__).parents[2]
MS = 1_000_000


class FakeClock:
    """A host clock that stands still until it is told to go on."""

    def __init__(self, now_ns=1_000 * MS):
        self.now_ns = now_ns

    def __call__(self):
        return self.now_ns

    def advance(self, ms):
        self.now_ns += round(ms * MS)

    @property
    def ms(self):
        """Milliseconds since 1 s, where it starts."""
        return self.now_ns / MS - 1_000


@pytest.fixture
def fake_clock(monkeypatch):
    """The clock of everything that marks a request."""
    clock = FakeClock()
    clocked = (batch, batched_request, recorder, device_recorder, running, own_loop, host)
    for module in clocked:
        monkeypatch.setattr(module, "now", clock)
    return clock


class FakeEvent:
    """An instant on the fake device's stream."""

    order = None
    at_ns = None


class FakeDevice:
    """A device that reaches each mark ``lag_ms`` after the host asked for it."""

    clock = "fake"

    def __init__(self, host_clock):
        self.host = host_clock
        self.lag_ms = 1.0
        self.finished = True
        self.fails = False
        self.out = []
        """Events that were handed out and not given back."""
        self.made = 0
        self.recorded = 0
        self.resolved = None
        """What ``resolve`` was asked for last."""
        self.calls = []

    def mark(self):
        event = FakeEvent()
        self.made += 1
        self.out.append(event)
        self.remark(event)
        return event

    def remark(self, mark):
        self.recorded += 1
        mark.order = self.recorded
        mark.at_ns = self.host.now_ns + round(self.lag_ms * MS)

    def passed(self, mark):
        return self.finished

    def resolve(self, marks):
        if self.fails:
            raise RuntimeError("device-side assert")
        self.resolved = marks
        self.calls.append(marks)
        order = [mark.order for _, mark in marks]
        assert order == sorted(order), "not in stream order"
        assert all(asked <= mark.at_ns for asked, mark in marks)
        if not self.finished:
            return None
        return DeviceTimes([mark.at_ns for _, mark in marks], 7_000)

    def capturing(self):
        return False

    def release(self, marks):
        for mark in marks:
            self.out.remove(mark)


@pytest.fixture
def fake_device(fake_clock):
    """A device timer whose times the test decides."""
    return FakeDevice(fake_clock)


@pytest.fixture
def run_program(tmp_path):
    """Run Python source in a process of its own, in an empty folder."""

    def run(source, *, check=True, **variables):
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "LLMTRACE_"))}
        environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path[1:]])
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(source)],
            cwd=tmp_path,
            env={**environ, **variables},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if check:
            assert done.returncode == 0, done.stderr
        return done

    return run

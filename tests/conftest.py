"""Fixtures of every test: a clean environment, and nothing of ours left behind."""

import os

import pytest

from llmtrace.guard import guard


@pytest.fixture(autouse=True)
def clean_environ(monkeypatch):
    """No variable of the developer's own shell decides a test."""
    for name in list(os.environ):
        if name.startswith(("LLMTRACE_", "OTEL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def internal_errors_fail(request):
    """An error that llmtrace swallowed fails the test, unless the test provokes one."""
    guard.failures = 0
    guard.warned.clear()
    yield
    failures, guard.failures = guard.failures, 0
    if "provokes_internal_errors" not in request.fixturenames:
        assert failures == 0, "llmtrace swallowed an internal error: see the log"


@pytest.fixture
def provokes_internal_errors():
    """Mark a test in which llmtrace's own code is made to fail."""

"""The recorder of the request that is running here.

A ``ContextVar`` and nothing else: state on the model, the class or a global would be overwritten
by concurrent requests, and a thread-local would leak between asyncio tasks.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from llmtrace.recording.recorder import Recorder

active: ContextVar[Recorder | None] = ContextVar("llmtrace_active", default=None)

latest: ContextVar[Any] = ContextVar("llmtrace_latest", default=None)
"""What identifies the span of the request that ended here last: what follows may belong to it."""

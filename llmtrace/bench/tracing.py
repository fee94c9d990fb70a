"""The trace file of a run, and the quiet in which it is measured."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from pathlib import Path

from llmtrace import api, config
from llmtrace.errors import ConfigError

TRACE = "trace.jsonl"


WARMUP_TRACE = "trace-warmup.jsonl"
FLUSH_S = 10.0
"""The file takes a moment; a collector that the environment names may not answer at all."""


class Trace:
    """The trace file of a run, while it runs."""

    def __init__(self, folder: Path, handle: api.Instrumentation) -> None:
        self._folder = folder
        self._handle = handle

    def warmed_up(self) -> None:
        """Put what has been traced so far into a file of its own, which no figure is made from."""
        self.keep(WARMUP_TRACE)

    def keep(self, name: str) -> None:
        """Append what has been traced since the last such call to the file *name* instead."""
        self._handle.flush(FLUSH_S)
        so_far = self._folder / TRACE
        if so_far.exists():
            with (self._folder / name).open("ab") as file:
                file.write(so_far.read_bytes())
            so_far.unlink()


@contextlib.contextmanager
def traced(folder: Path) -> Iterator[Trace]:
    """Trace what runs in this block into ``trace.jsonl`` of *folder*, whatever else is set.

    Raises:
        ConfigError: ``LLMTRACE_DISABLED`` is set.
    """
    from llmtrace.telemetry.exporters import file_provider

    if config.load().disabled:
        raise ConfigError("LLMTRACE_DISABLED is set, so nothing would be measured")
    os.environ.setdefault("OTEL_SERVICE_NAME", "llmtrace-bench")
    provider, _ = file_provider(str(folder), os.environ, TRACE)
    handle = api.instrument(tracer_provider=provider)
    try:
        yield Trace(folder, handle)
    finally:
        handle.flush(FLUSH_S)
        handle.close()
        provider.shutdown()


@contextlib.contextmanager
def collector_frozen() -> Iterator[None]:
    """Keep the garbage collector from stopping a request."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()

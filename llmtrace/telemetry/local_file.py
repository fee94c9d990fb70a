"""The local trace file: where spans go when there is nowhere else. OTLP/JSON lines."""

from __future__ import annotations

import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from llmtrace.guard import guard
from llmtrace.telemetry.otlp_json import encode


def default_service() -> str:
    """Return a name for this program: its script's."""
    script = Path(sys.argv[0] if sys.argv else "").stem
    if script == "__main__":
        script = Path(sys.argv[0]).resolve().parent.name
    return script if script and script != "-c" else "python"


class LocalFileExporter(SpanExporter):
    """Appends batches of spans to ``llmtrace-<service>-<pid>.jsonl``, or to a file named.

    The folder and the file are made with the first span: merely turning llmtrace on writes
    nothing. A forked child writes a file of its own. What cannot be written is dropped, with one
    warning, and writing is tried again with the next batch.
    """

    def __init__(self, folder: str, service: str, name: str | None = None) -> None:
        self._folder = Path(folder)
        self._name = name
        self._service = re.sub(r"[^\w.-]+", "_", service) or "python"

    @property
    def path(self) -> Path:
        """Where this process writes."""
        return self._folder / (self._name or f"llmtrace-{self._service}-{os.getpid()}.jsonl")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append *spans* as one line."""
        line = encode(spans) + "\n"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._append(line.encode())
        except OSError as error:
            guard.warn_once(
                "local_file",
                f"cannot write {self.path}: {error.strerror or error}. Traces are lost; set "
                "LLMTRACE_DIR to a folder that can be written to.",
            )
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def _append(self, line: bytes) -> None:
        """Write the whole line or nothing: half a line would spoil the next one."""
        with self.path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                written = file.write(line)
                while written < len(line):
                    written += file.write(line[written:])
            except OSError:
                file.truncate(size)
                raise

    def shutdown(self) -> None:
        """Nothing is held open."""


def _call(method: Callable[[], None] | None) -> None:
    if method is not None:
        method()


class BufferedProcessor(SpanProcessor):
    """Collects ended spans until it is told to export them.

    Spans are ended and flushed by one background thread, so a batch is a request, whole, and no
    second thread or queue is needed.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._renew()
        if hasattr(os, "register_at_fork"):
            renew = weakref.WeakMethod(self._renew)
            os.register_at_fork(after_in_child=lambda: _call(renew()))

    def _renew(self) -> None:
        """Start anew: what a forked child finds here is its parent's to write."""
        self._lock = threading.Lock()
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        """Keep *span*."""
        if span.context is not None and span.context.trace_flags.sampled:
            with self._lock:
                self._spans.append(span)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002 - the SDK's shape
        """Export what has been kept."""
        with self._lock:
            spans, self._spans = self._spans, []
        if not spans:
            return True
        return self._exporter.export(spans) is SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Export what is left."""
        self.force_flush()
        self._exporter.shutdown()

"""Turning tracing on inside the program that ``llmtrace run`` started."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial

from llmtrace import api
from llmtrace.auto.termination import before_termination
from llmtrace.guard import guard
from llmtrace.records import RequestRecord
from llmtrace.session import session

SUMMARY_PROCESS = "LLMTRACE_RUN_PID"
"""Holds the id of the process that prints the summary: not its children."""

MAX_RECORDS = 100_000
"""Requests kept in memory for the summary; beyond that it covers the latest."""


def start(environ: Mapping[str, str]) -> None:
    """Instrument this process; the one that was started prints the summary at exit.

    Raises:
        ConfigError: A setting has a value that cannot be used.
    """
    handle = api.instrument()
    end: Callable[[], object] = handle.flush
    if environ.get(SUMMARY_PROCESS) == str(os.getpid()):
        records: list[RequestRecord] = []

        def keep(record: RequestRecord) -> None:
            records.append(record)
            if len(records) > MAX_RECORDS:
                del records[: MAX_RECORDS // 10]

        api.subscribe(keep)
        end = partial(guard.call, "printing the summary", _summarise, handle, records)
        atexit.register(end)
    before_termination(end, lambda: session().config.flush_timeout_s)


def _summarise(handle: api.Instrumentation, records: list[RequestRecord]) -> None:
    handle.flush()
    if not records:
        print("\nllmtrace: no generate() call was traced.", file=sys.stderr)  # noqa: T201
        return
    from llmtrace.reports.summary import summary_text

    print(file=sys.stderr)  # noqa: T201
    print(summary_text(records, handle.path, sys.stderr), file=sys.stderr)  # noqa: T201

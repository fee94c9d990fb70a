"""``llmtrace export``: a recorded file sent on to a backend."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from typing import TYPE_CHECKING, Any

from llmtrace.cli.extras import require
from llmtrace.cli.reading import FILE_HELP, complain_of, progress
from llmtrace.cli.writing import write
from llmtrace.errors import SendError, SourceError

if TYPE_CHECKING:
    from llmtrace.sources.recording import Problems
    from llmtrace.telemetry.otlp_http import Sender

LONG_SENDING_BYTES = 5_000_000
"""Sending takes longer than reading."""

MOST_SECONDS = 86_400.0

HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "export",
        help="send recorded traces to a backend",
        description="Send the spans of recorded files to a backend, as they were recorded, over "
        "OTLP/HTTP. Headers come from OTEL_EXPORTER_OTLP_HEADERS, as for any exporter. What the "
        "backend cannot take now is tried again, five times at most.",
        epilog="Exit codes: 0 sent, 1 the backend rejected spans, 2 unreadable input, or the "
        "backend cannot be reached or refuses.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help=FILE_HELP)
    parser.add_argument(
        "--otlp",
        required=True,
        metavar="URL",
        help="the backend's OTLP/HTTP address, such as http://localhost:4318; /v1/traces is added",
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=10.0,
        metavar="S",
        help="seconds to wait for each answer (default: %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="print counts as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Send the files; return the exit code."""
    require("orjson", "opentelemetry.proto")
    from opentelemetry.util.re import parse_env_headers

    from llmtrace.sources.recording import Problems
    from llmtrace.telemetry.otlp_http import Sender

    given = next((value for name in HEADERS if (value := os.environ.get(name))), "")
    headers = parse_env_headers(given, liberal=True)
    sender = Sender(arguments.otlp, headers, arguments.timeout)
    problems = Problems()
    sent = _Sent()
    try:
        _send(arguments.files, sender, problems, sent)
    except SendError as error:
        raise SendError(f"{error}; {sent.spans:,} spans were sent before") from None
    complain_of("export", problems, ())
    if not sent.spans:
        raise SourceError(problems.lines[0] if problems.lines else "no spans in the input")
    _print_counts(sent, sender, problems, as_json=arguments.json)
    return int(sent.rejected > 0)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds to wait")
    return value


class _Sent:
    """What has arrived."""

    def __init__(self) -> None:
        self.spans = 0
        self.messages = 0
        self.rejected = 0
        self.reason = ""


def _send(files: list[str], sender: Sender, problems: Problems, sent: _Sent) -> None:
    from llmtrace.sources.documents import read_documents
    from llmtrace.sources.files import find_files
    from llmtrace.telemetry.otlp_message import messages

    found = list(dict.fromkeys(file for path in files for file in find_files(path)))
    with progress(found, "sending", LONG_SENDING_BYTES) as on_bytes:
        documents = (
            document for file in found for document in read_documents(file, problems, on_bytes)
        )
        for message, spans in messages(documents, problems.add):
            rejected, reason = sender.send(message)
            sent.spans += spans - rejected
            sent.messages += 1
            sent.rejected += rejected
            sent.reason = sent.reason or reason


def _print_counts(sent: _Sent, sender: Sender, problems: Problems, *, as_json: bool) -> None:
    counts = {
        "spans": sent.spans,
        "rejected": sent.rejected,
        "reason": sent.reason or None,
        "messages": sent.messages,
        "retries": sender.retries,
        "problems": problems.count,
        "url": sender.url,
    }
    if as_json:
        write("export", json.dumps(counts, indent=2) + "\n", None, ())
        return
    said = f"{sent.spans:,} spans sent to {sender.url} (messages: {sent.messages:,})"
    write("export", said + "\n", None, ())
    if sent.rejected:
        why = f": {sent.reason}" if sent.reason else ""
        print(f"llmtrace export: {sent.rejected:,} spans rejected{why}", file=sys.stderr)

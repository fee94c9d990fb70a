"""The page: template, style, scripts and data in one file that asks for nothing else.

Style and scripts are allowed by their hashes and everything else is forbidden, so neither a word
in a trace nor a browser's add-on can make the page speak to anyone.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from string import Template
from typing import Any

from llmtrace.analysis.report import Report
from llmtrace.records import RequestRecord
from llmtrace.reports.html.payload import payload
from llmtrace.reports.wording import clean, listed
from llmtrace.sources.recording import Problems

SCRIPTS = (
    "base.js",
    "chart.js",
    "curves.js",
    "spread.js",
    "load.js",
    "steps.js",
    "lanes.js",
    "waterfall.js",
    "requests.js",
    "headline.js",
    "tables.js",
    "sections.js",
    "main.js",
)
"""In the order in which they are joined: one script, so that one hash allows it."""


def render(
    report: Report,
    records: Sequence[RequestRecord],
    *,
    include_cold: bool = False,
    problems: Problems | None = None,
) -> str:
    """Return the page.

    Args:
        report: The numbers.
        records: The requests they are made from, in any order.
        include_cold: Whether *report* was built with the cold ones.
        problems: What of the input could not be read.
    """
    ordered = sorted(records, key=lambda record: record.start_unix_ns)
    data = payload(report, ordered, include_cold=include_cold, problems=problems)
    style, script = _style(), _script()
    models = (report.cold or report).tgs.conditions.models
    return Template(_asset("page.html")).substitute(
        title=html.escape(clean(f"{listed(models, 'no requests')} - llmtrace report")),
        policy=html.escape(_policy(style, script)),
        style=style,
        data=embedded(data),
        script=script,
    )


def embedded(data: Mapping[str, Any]) -> str:
    """Return *data* as JSON that can stand inside a script element, whatever texts it holds."""
    written = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    for character in "<>&":
        written = written.replace(character, f"\\u{ord(character):04x}")
    return written


def _policy(style: str, script: str) -> str:
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


@lru_cache(maxsize=1)
def _style() -> str:
    return _asset("page.css")


@lru_cache(maxsize=1)
def _script() -> str:
    parts = "\n".join(_asset(name) for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\n}})();\n'


def _asset(name: str) -> str:
    return files("llmtrace.reports.html").joinpath("assets", name).read_text(encoding="utf-8")

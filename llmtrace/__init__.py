"""OpenTelemetry traces of Hugging Face transformers' ``generate()``.

Importing this package wraps transformers as soon as transformers is imported; telemetry goes to
the app's own OpenTelemetry providers, if it has any. :func:`instrument` sends it somewhere in any
case. ``LLMTRACE_DISABLED=1`` wraps nothing.
"""

from llmtrace.api import capture, instrument, request, subscribe, uninstrument
from llmtrace.errors import (
    ConfigError,
    LlmtraceError,
    MissingExtraError,
    PolicyError,
    SendError,
    SourceError,
)
from llmtrace.records import RequestRecord, StepRecord
from llmtrace.session import session as _session
from llmtrace.version import __version__

__all__ = [
    "ConfigError",
    "LlmtraceError",
    "MissingExtraError",
    "PolicyError",
    "RequestRecord",
    "SendError",
    "SourceError",
    "StepRecord",
    "__version__",
    "capture",
    "instrument",
    "request",
    "subscribe",
    "uninstrument",
]

_session().arm()

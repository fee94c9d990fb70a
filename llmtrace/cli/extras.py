"""Saying which extra a command lacks."""

from __future__ import annotations

from importlib.util import find_spec

from llmtrace.errors import MissingExtraError

_EXTRA_OF = {
    "numpy": "report",
    "opentelemetry.proto": "otlp",
    "orjson": "report",
    "rich": "report",
    "zstandard": "report",
}


def require(*modules: str) -> None:
    """Check that *modules* are installed.

    Raises:
        MissingExtraError: One is not; the message names the extra that has it.
    """
    for module in modules:
        if find_spec(module) is None:
            extra = _EXTRA_OF.get(module, "bench")
            raise MissingExtraError(f"needs {module}: pip install 'llmtrace[{extra}]'")

"""Every setting, once: its name, variable, type, default and meaning.

Order: argument, then variable, then default; resolved into one frozen object.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from llmtrace.errors import ConfigError
from llmtrace.guard import guard
from llmtrace.hardware import parse_peaks

Steps = Literal["spans", "none"]
Content = Literal["no_content", "span_only", "event_only", "span_and_event"]


@dataclass(frozen=True, slots=True)
class Config:
    """The settings in force."""

    steps: Steps = "spans"
    max_step_spans: int = 4096
    dir: str = "./llmtrace-traces"
    content: Content = "no_content"
    flush_timeout_s: float = 5.0
    peaks: str | None = None
    disabled: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """How one field of ``Config`` is given and read."""

    field: str
    variable: str
    parse: Callable[[str], Any]
    meaning: str
    shared: bool = False
    """The variable is other packages' too: a value that we do not know is no error."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A setting's value and where it came from."""

    setting: Setting
    value: Any
    source: Literal["argument", "variable", "default"]


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        value = text.strip().lower()
        if value not in allowed:
            raise ValueError(f"is none of {', '.join(allowed)}")
        return value

    return parse


def _positive(kind: type[int | float]) -> Callable[[str], int | float]:
    def parse(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            raise ValueError("is not a number") from None
        if not 0 < value < float("inf"):
            raise ValueError("is not a positive number")
        return value

    return parse


def _flag(text: str) -> bool:
    value = text.strip().lower()
    if value in {"1", "true", "yes", "on"}:
        return True
    if value in {"", "0", "false", "no", "off"}:
        return False
    raise ValueError("is neither 1 nor 0")


def _path(text: str) -> str:
    if not text:
        raise ValueError("is empty")
    return os.fspath(text)


def _peaks(text: str) -> str:
    parse_peaks(text)
    return text


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "steps",
        "LLMTRACE_STEPS",
        _choice("spans", "none"),
        "one span per prefill, first token and decode step, or arrays on the request span only",
    ),
    Setting(
        "max_step_spans",
        "LLMTRACE_MAX_STEP_SPANS",
        _positive(int),
        "steps of one request that are recorded singly; later ones only count",
    ),
    Setting("dir", "LLMTRACE_DIR", _path, "folder of the local trace files"),
    Setting(
        "content",
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT",
        _choice(*get_args(Content)),
        "whether prompt and output text go onto the request span (span_only, span_and_event); "
        "events are not emitted",
        shared=True,
    ),
    Setting(
        "flush_timeout_s",
        "LLMTRACE_FLUSH_TIMEOUT_S",
        _positive(float),
        "longest wait at exit for telemetry to leave, seconds",
    ),
    Setting(
        "peaks",
        "LLMTRACE_PEAKS",
        _peaks,
        "the device's peak rates for MBU and MFU, BYTES_PER_S[,FLOP_PER_S] as `llmtrace peaks` "
        "measures them; the datasheet's by default",
    ),
    Setting("disabled", "LLMTRACE_DISABLED", _flag, "1: nothing is wrapped, nothing is recorded"),
)


def resolve(
    arguments: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> list[Resolved]:
    """Return every setting with its value and source.

    Raises:
        ConfigError: An argument or a variable has a value that cannot be used.
    """
    arguments = arguments or {}
    environ = os.environ if environ is None else environ
    defaults = {f.name: f.default for f in fields(Config)}
    unknown = set(arguments) - set(defaults)
    if unknown:
        raise ConfigError(f"unknown setting: {', '.join(sorted(unknown))}")
    return [_resolve_one(s, arguments, environ, defaults[s.field]) for s in SETTINGS]


def _resolve_one(
    setting: Setting, arguments: Mapping[str, Any], environ: Mapping[str, str], default: Any
) -> Resolved:
    if arguments.get(setting.field) is not None:
        given = arguments[setting.field]
        return Resolved(
            setting, _parse(setting, str(given), f"{setting.field}={given!r}"), "argument"
        )
    text = environ.get(setting.variable)
    if not text:
        return Resolved(setting, default, "default")
    try:
        value = _parse(setting, text, f"{setting.variable}={text!r}")
    except ConfigError as error:
        if not setting.shared:
            raise
        guard.warn_once(setting.variable, f"{error}; {default} is used.")
        return Resolved(setting, default, "default")
    return Resolved(setting, value, "variable")


def _parse(setting: Setting, text: str, shown: str) -> Any:
    try:
        return setting.parse(text)
    except ValueError as error:
        raise ConfigError(f"{shown} {error} ({setting.meaning})") from None


def usable(environ: Mapping[str, str]) -> dict[str, str]:
    """Return *environ* without the settings whose values cannot be used."""

    def is_good(setting: Setting) -> bool:
        try:
            _parse(setting, environ.get(setting.variable, ""), "")
        except ConfigError:
            return False
        return True

    bad = {s.variable for s in SETTINGS if not is_good(s)}
    return {name: value for name, value in environ.items() if name not in bad}


def load(
    arguments: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> Config:
    """Return the settings in force; see :func:`resolve`."""
    return Config(**{r.setting.field: r.value for r in resolve(arguments, environ)})

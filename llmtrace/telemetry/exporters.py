"""Providers of our own, from the standard ``OTEL_*`` variables or to the local file.

They are private: the global providers are never set or replaced.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import metadata
from importlib.metadata import entry_points
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SimpleSpanProcessor,
    SpanExportResult,
)

from llmtrace.errors import ConfigError
from llmtrace.guard import guard
from llmtrace.names import RANK, VERSION, WORLD_SIZE
from llmtrace.telemetry.local_file import BufferedProcessor, LocalFileExporter, default_service

QUEUE_SIZE = 16_384
"""Spans our own batch processors may hold: four requests of the largest size."""

_PROTOCOLS = {
    "grpc": "otlp_proto_grpc",
    "http/protobuf": "otlp_proto_http",
}


def named_exporters(signal: str, environ: Mapping[str, str]) -> list[str] | None:
    """Return the exporters that the environment names for ``traces`` or ``metrics``.

    Returns:
        Entry-point names; an empty list for ``none``; None when nothing is said.
    """
    listed = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip()
    endpoint = environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT") or environ.get(
        "OTEL_EXPORTER_OTLP_ENDPOINT"
    )
    if not listed:
        return [_otlp(signal, environ)] if endpoint else None
    names = [name.strip() for name in listed.split(",") if name.strip()]
    return [_otlp(signal, environ) if n == "otlp" else n for n in names if n != "none"]


def _otlp(signal: str, environ: Mapping[str, str]) -> str:
    protocol = environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL") or environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
    )
    name = _PROTOCOLS.get(protocol.strip())
    if name is None:
        raise ConfigError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol!r} is none of {', '.join(_PROTOCOLS)}"
        )
    return name


def load(signal: str, name: str) -> Any:
    """Return the exporter class of an entry point.

    Raises:
        ConfigError: No installed package has it, or it cannot be imported.
    """
    found = list(entry_points(group=f"opentelemetry_{signal}_exporter", name=name))
    if not found:
        hint = "; pip install 'llmtrace[otlp]'" if name.startswith("otlp") else ""
        raise ConfigError(
            f"OTEL_{signal.upper()}_EXPORTER names {name!r}, which no installed package has{hint}"
        )
    return _started(signal, name, found[0].load)


def _started(signal: str, name: str, start: Callable[[], Any]) -> Any:
    """Return what *start* returns: an exporter, set up from the environment, or its class.

    Raises:
        ConfigError: It refuses: a package is missing, an endpoint malformed, a port taken.
    """
    try:
        return start()
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"the exporter {name!r} of {signal} does not start ({reason})") from error


def resource(environ: Mapping[str, str]) -> Resource:
    """Return this process's resource, named after its script unless the environment names it."""
    made = Resource.create({**_versions(), **_rank(environ)})
    listed = environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
    keys = {item.partition("=")[0].strip() for item in listed}
    named = environ.get("OTEL_SERVICE_NAME") or "service.name" in keys
    return made if named else made.merge(Resource({"service.name": default_service()}))


def _versions() -> dict[str, str]:
    """Return the versions of the packages that the figures hang on, as far as installed."""
    found = {}
    for package in ("torch", "transformers", "accelerate", "bitsandbytes"):
        with suppress(metadata.PackageNotFoundError):
            found[f"{VERSION}.{package}"] = metadata.version(package)
    return found


def _rank(environ: Mapping[str, str]) -> dict[str, int]:
    """Return which of a distributed run's processes this is, as its launcher says."""
    rank, size = environ.get("RANK", ""), environ.get("WORLD_SIZE", "")
    if not (rank.isdecimal() and size.isdecimal()) or int(size) < 2:  # noqa: PLR2004
        return {}
    return {RANK: int(rank), WORLD_SIZE: int(size)}


def tracer_provider(names: list[str], environ: Mapping[str, str]) -> TracerProvider:
    """Return a provider that sends spans to the named exporters."""
    provider = TracerProvider(resource=resource(environ), shutdown_on_exit=False)
    for name in names:
        exporter = _started("traces", name, load("traces", name))
        if isinstance(exporter, ConsoleSpanExporter):
            provider.add_span_processor(SimpleSpanProcessor(exporter))
        else:
            _quieten(exporter, "spans", SpanExportResult.FAILURE)
            processor = BatchSpanProcessor(exporter, max_queue_size=QUEUE_SIZE)
            provider.add_span_processor(processor)
    return provider


def meter_provider(names: list[str], environ: Mapping[str, str]) -> MeterProvider:
    """Return a provider that sends metrics to the named exporters or readers."""
    readers: list[MetricReader] = []
    for name in names:
        exporter = _started("metrics", name, load("metrics", name))
        if isinstance(exporter, MetricReader):
            readers.append(exporter)
            continue
        if name != "console":
            from opentelemetry.sdk.metrics.export import MetricExportResult

            _quieten(exporter, "metrics", MetricExportResult.FAILURE)
        readers.append(PeriodicExportingMetricReader(exporter))
    return MeterProvider(readers, resource(environ), shutdown_on_exit=False)


def file_provider(
    folder: str, environ: Mapping[str, str], name: str | None = None
) -> tuple[TracerProvider, Any]:
    """Return a provider that writes the local file, and its exporter.

    Args:
        folder: Where the file lies.
        environ: Describes the process.
        name: The file's name, if it is not to be the usual one.
    """
    described = resource(environ)
    exporter = LocalFileExporter(folder, str(described.attributes["service.name"]), name)
    # Limits set for a backend do not apply to the file, whose reports need every attribute.
    limits = SpanLimits(
        max_attributes=SpanLimits.UNSET,
        max_span_attributes=SpanLimits.UNSET,
        max_attribute_length=SpanLimits.UNSET,
        max_span_attribute_length=SpanLimits.UNSET,
    )
    provider = TracerProvider(resource=described, shutdown_on_exit=False, span_limits=limits)
    provider.add_span_processor(BufferedProcessor(exporter))
    return provider, exporter


_exporting = threading.local()
_filtered: set[str] = set()


class _OnlyOthers(logging.Filter):
    """Drops what an exporter logs while it exports for us; other users' lines pass."""

    def filter(self, record: logging.LogRecord) -> bool:  # noqa: ARG002 - logging's shape
        return not getattr(_exporting, "ours", False)


def _quieten(exporter: Any, what: str, failure: Any) -> None:
    """Make *exporter* warn once instead of on every try, with one line instead of a traceback.

    The exporter object is ours, so its method may be replaced.
    """
    for name in (type(exporter).__module__, *_TALKATIVE):
        if name not in _filtered:
            _filtered.add(name)
            logging.getLogger(name).addFilter(_OnlyOthers())
    exporter.export = _quiet(exporter.export, what, failure)


_TALKATIVE = (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.sdk._shared_internal",
    "urllib3.connectionpool",
)


def _quiet(export: Callable[..., Any], what: str, failure: Any) -> Callable[..., Any]:
    def quiet(*args: Any, **kwargs: Any) -> Any:
        _exporting.ours = True
        reason = "the exporter reported a failure"
        try:
            result = export(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the program goes on without this batch
            result, reason = failure, f"{type(error).__name__}: {error}"
        finally:
            _exporting.ours = False
        if result is failure:
            guard.warn_once(
                f"export_{what}",
                f"could not export {what} ({reason}). Your program is not affected; check the "
                "OTEL_EXPORTER_OTLP_* variables and that the collector is reachable.",
            )
        return result

    return quiet

"""Where telemetry goes: arguments, else the app's providers, else ``OTEL_*``, else the file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Tracer, TracerProvider

from llmtrace import names
from llmtrace.errors import ConfigError
from llmtrace.guard import guard
from llmtrace.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Destination:
    """Where spans and metrics go at present."""

    tracer_provider: TracerProvider | None
    meter_provider: MeterProvider | None
    tracer: Tracer | None
    metrics: Metrics | None
    file: Any = None
    """The exporter of the local trace file, if that is where spans go."""

    @property
    def exists(self) -> bool:
        """Whether anything goes anywhere."""
        return self.tracer is not None or self.metrics is not None


class Router:
    """Decides, at each request's start, where its telemetry goes.

    An app may set its providers before us, after us, or never: what it has set counts.
    """

    def __init__(self, version: str) -> None:
        self._version = version
        self._arguments: tuple[Any, Any] = (None, None)
        self._fallback: tuple[Any, Any, Any] | None = None
        """Providers of our own, once they were needed."""
        self.fallback_folder: str | None = None
        """Folder of the local file; None: nothing but the app's providers is used."""
        self._key: tuple[Any, ...] | None = None
        self._current = Destination(None, None, None, None)

    def use(self, tracer_provider: Any, meter_provider: Any, fallback_folder: str | None) -> None:
        """Take these providers; where one is None, look elsewhere."""
        self._arguments = (tracer_provider, meter_provider)
        if fallback_folder != self.fallback_folder:
            self.fallback_folder = fallback_folder
            self._fallback = None
        self._key = None

    def current(self) -> Destination:
        """Return where telemetry goes now."""
        app_tracer, app_meter = _app_tracer_provider(), _app_meter_provider()
        key = (*self._arguments, app_tracer, app_meter, self.fallback_folder, os.getpid())
        if self._key is None or any(a is not b for a, b in zip(key[:4], self._key, strict=False)):
            self._current = self._resolve(app_tracer, app_meter)
            self._key = key
        return self._current

    def _resolve(self, app_tracer: Any, app_meter: Any) -> Destination:
        tracing = self._arguments[0] or app_tracer
        metering = self._arguments[1] or app_meter
        file = None
        if self.fallback_folder is not None and (tracing is None or metering is None):
            own_tracing, own_metering, own_file = self._own(os.environ)
            file = own_file if tracing is None else None
            tracing = tracing or own_tracing
            metering = metering or own_metering
        return Destination(
            tracing,
            metering,
            tracing.get_tracer(names.SCOPE, self._version) if tracing is not None else None,
            Metrics(metering, self._version) if metering is not None else None,
            file,
        )

    def _own(self, environ: Mapping[str, str]) -> tuple[Any, Any, Any]:
        if self._fallback is None:
            self._fallback = self._make_own(environ)
        return self._fallback

    def _make_own(self, environ: Mapping[str, str]) -> tuple[Any, Any, Any]:
        from llmtrace.telemetry import exporters

        tracing = metering = file = None
        try:
            named = exporters.named_exporters("traces", environ)
            if named:
                tracing = exporters.tracer_provider(named, environ)
            named_metrics = exporters.named_exporters("metrics", environ)
            if named_metrics:
                metering = exporters.meter_provider(named_metrics, environ)
        except ConfigError as error:
            guard.warn_once("exporters", f"{error}. Traces go to the local file instead.")
            named = None
        if tracing is None and named is None:
            tracing, file = exporters.file_provider(self.fallback_folder or ".", environ)
        return tracing, metering, file

    def own_providers(self) -> list[Any]:
        """Return the providers that we made and must shut down."""
        return [p for p in (self._fallback or ())[:2] if p is not None]


def check_environment(environ: Mapping[str, str]) -> None:
    """Look for mistakes in the ``OTEL_*`` variables before they matter.

    Raises:
        ConfigError: A variable names an exporter that does not exist.
    """
    from llmtrace.telemetry import exporters

    for signal in ("traces", "metrics"):
        for name in exporters.named_exporters(signal, environ) or ():
            exporters._load(signal, name)  # noqa: SLF001 - same package


def _app_tracer_provider() -> Any | None:
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider) else provider


def _app_meter_provider() -> Any | None:
    provider = metrics.get_meter_provider()
    return None if type(provider).__name__ == "_ProxyMeterProvider" else provider

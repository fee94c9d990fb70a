"""Where telemetry goes: arguments, else the app's providers, else ``OTEL_*``, else the file."""

from __future__ import annotations

import os
import threading
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
        self._own: dict[str, Any] = {}
        """Providers of our own, by signal, and the file's exporter, once they were needed."""
        self.fallback_folder: str | None = None
        """Folder of the local file; None: nothing but the app's providers is used."""
        self._lock = threading.Lock()
        self._key: tuple[Any, ...] | None = None
        """The providers that ``_current`` was made from."""
        self._current = Destination(None, None, None, None)

    def use(self, tracer_provider: Any, meter_provider: Any, fallback_folder: str | None) -> None:
        """Take these providers; where one is None, look elsewhere."""
        self._arguments = (tracer_provider, meter_provider)
        if fallback_folder != self.fallback_folder:
            self.fallback_folder = fallback_folder
            self._own = {}
        self._key = None

    def current(self) -> Destination:
        """Return where telemetry goes now."""
        app_tracer, app_meter = _app_tracer_provider(), _app_meter_provider()
        key = (*self._arguments, app_tracer, app_meter)
        if self._is_stale(key):
            with self._lock:
                if self._is_stale(key):
                    self._current = self._resolve(app_tracer, app_meter)
                    self._key = key
        return self._current

    def latest(self) -> Destination:
        """Return where telemetry went last; makes nothing."""
        return self._current

    def _is_stale(self, key: tuple[Any, ...]) -> bool:
        known = self._key
        return known is None or any(a is not b for a, b in zip(key, known, strict=True))

    def _resolve(self, app_tracer: Any, app_meter: Any) -> Destination:
        tracing = self._arguments[0] or app_tracer
        metering = self._arguments[1] or app_meter
        file = None
        if self.fallback_folder is not None:
            if tracing is None:
                tracing, file = self._own_tracing(self.fallback_folder, os.environ)
            if metering is None:
                metering = self._own_metering(os.environ)
        return Destination(
            tracing,
            metering,
            tracing.get_tracer(names.SCOPE, self._version) if tracing is not None else None,
            Metrics(metering, self._version) if metering is not None else None,
            file,
        )

    def _own_tracing(self, folder: str, environ: Mapping[str, str]) -> tuple[Any, Any]:
        """Return a provider for the exporters that the environment names, else for the file."""
        from llmtrace.telemetry import exporters

        if "traces" not in self._own:
            provider = file = named = None
            try:
                named = exporters.named_exporters("traces", environ)
                if named:
                    provider = exporters.tracer_provider(named, environ)
            except ConfigError as error:
                named = None
                guard.warn_once("traces", f"{error}. Traces go to the local file instead.")
            if named is None:
                provider, file = exporters.file_provider(folder, environ)
            self._own.update(traces=provider, file=file)
        return self._own["traces"], self._own["file"]

    def _own_metering(self, environ: Mapping[str, str]) -> Any:
        """Return a provider for the exporters that the environment names, else None."""
        from llmtrace.telemetry import exporters

        if "metrics" not in self._own:
            provider = None
            try:
                named = exporters.named_exporters("metrics", environ)
                if named:
                    provider = exporters.meter_provider(named, environ)
            except ConfigError as error:
                guard.warn_once("metrics", f"{error}. Metrics go nowhere.")
            self._own["metrics"] = provider
        return self._own["metrics"]

    def own_providers(self) -> list[Any]:
        """Return the providers that we made and must shut down."""
        own = (self._own.get("traces"), self._own.get("metrics"))
        return [provider for provider in own if provider is not None]


def check_environment(environ: Mapping[str, str]) -> None:
    """Look for mistakes in the ``OTEL_*`` variables before they matter.

    Raises:
        ConfigError: A variable names an exporter that does not exist.
    """
    from llmtrace.telemetry import exporters

    for signal in ("traces", "metrics"):
        for name in exporters.named_exporters(signal, environ) or ():
            exporters.load(signal, name)


def _app_tracer_provider() -> Any | None:
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider) else provider


def _app_meter_provider() -> Any | None:
    provider = metrics.get_meter_provider()
    return None if type(provider).__name__ == "_ProxyMeterProvider" else provider

"""The entry point of ``opentelemetry-instrument``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from llmtrace import api
from llmtrace.auto.termination import before_termination
from llmtrace.session import session


class LlmtraceInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Does what :func:`llmtrace.instrument` does."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return what must be installed for there to be anything to trace."""
        return ("transformers >= 4.38",)

    def _instrument(self, **kwargs: Any) -> None:
        handle = api.instrument(
            tracer_provider=kwargs.get("tracer_provider"),
            meter_provider=kwargs.get("meter_provider"),
        )
        before_termination(handle.flush, lambda: session().config.flush_timeout_s)

    def _uninstrument(self, **kwargs: Any) -> None:  # noqa: ARG002 - the base class's shape
        api.uninstrument()

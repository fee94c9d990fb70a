"""Letting the app's own ``force_flush`` and ``shutdown`` wait for what we still hold.

A request's spans are built after it has returned. An app that ends with ``provider.shutdown()``,
or whose provider shuts down at exit, would lose its last requests without this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmtrace.guard import guard

Wrap = Callable[[type, str, Callable[..., Any]], Any]


def install_tracing(wrap: Wrap, drain: Callable[[], Any]) -> None:
    """Wrap the SDK's tracer provider; see :func:`_install`."""
    from opentelemetry.sdk.trace import TracerProvider

    _install(TracerProvider, wrap, drain)


def install_metrics(wrap: Wrap, drain: Callable[[], Any]) -> None:
    """Wrap the SDK's meter provider; see :func:`_install`."""
    from opentelemetry.sdk.metrics import MeterProvider

    _install(MeterProvider, wrap, drain)


def _install(provider: type, wrap: Wrap, drain: Callable[[], Any]) -> None:
    """Wrap a provider's methods that end with everything exported.

    Args:
        provider: The SDK's class.
        wrap: Puts a wrapper on a class's method, and takes it off again later.
        drain: Waits, within a bound, until no finished request is held any more; does nothing
            in the thread that deals with them.
    """

    def first_drain(
        wrapped: Any,
        instance: Any,  # noqa: ARG001 - wrapt's shape
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        guard.call("draining before a provider is flushed", drain)
        return wrapped(*args, **kwargs)

    for method in ("force_flush", "shutdown"):
        wrap(provider, method, first_drain)

"""The parts of llmtrace put together: one session per process."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from llmtrace import config as settings
from llmtrace.config import Config
from llmtrace.guard import guard
from llmtrace.recording.pipeline import Pipeline
from llmtrace.seams.arming import Arming
from llmtrace.seams.patching import PatchSet
from llmtrace.telemetry.destination import Router
from llmtrace.telemetry.emitter import Emitter
from llmtrace.version import __version__


class Session:
    """Settings, wrappers, pipeline and destination of this process."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.config, complaint = _environment_config(environ)
        self.router = Router(__version__)
        self.emitter = Emitter(self.router, self.config)
        self.emitter.complaint = complaint
        self.pipeline = Pipeline(self.config, self.emitter)
        self.emitter.pause = self.pipeline.pause
        patches = PatchSet()
        self.arming = Arming(self.pipeline, patches, self._sdk_installers(patches))
        self._lock = threading.RLock()
        self._exit_hook = self._children_hook = False
        self._given: dict[str, Any] = {}
        """What ``instrument()`` has been given so far."""

    def arm(self) -> None:
        """Put the wrappers in place; telemetry goes to the app's providers, if it has any."""
        if self.config.disabled:
            return
        with self._lock:
            self.arming.arm()
            if not self._exit_hook:
                self._exit_hook = True
                atexit.register(self.at_exit)

    def instrument(
        self, arguments: Mapping[str, Any], tracer_provider: Any, meter_provider: Any
    ) -> None:
        """Arm, and decide where telemetry goes.

        What an earlier call was given stays, unless this one is given something else.

        Raises:
            ConfigError: A setting has a value that cannot be used.
        """
        providers = {"tracer_provider": tracer_provider, "meter_provider": meter_provider}
        with self._lock:
            new = {k: v for k, v in {**arguments, **providers}.items() if v is not None}
            given = {**self._given, **new}
            self._configure(settings.load({k: given[k] for k in arguments if k in given}))
            self._given = given
            if self.config.disabled:
                return
            # Absolute: the app may change its folder, and its traces must not be scattered.
            folder = os.path.abspath(self.config.dir)  # noqa: PTH100
            tracing, metering = (given.get(name) for name in providers)
            self.router.use(tracing, metering, folder)
            self.arm()

    def _sdk_installers(self, patches: PatchSet) -> dict[str, Callable[[], None]]:
        from llmtrace.telemetry import flush_hooks, server_spans

        def drain() -> None:
            self.pipeline.drain(self.config.flush_timeout_s)

        def trace_installer() -> None:
            flush_hooks.install_tracing(patches.wrap, drain)
            server_spans.install(patches.wrap)

        return {
            "opentelemetry.sdk.trace": trace_installer,
            "opentelemetry.sdk.metrics": lambda: flush_hooks.install_metrics(patches.wrap, drain),
            "multiprocessing.util": self._flush_in_children,
        }

    def _flush_in_children(self) -> None:
        """Flush at the end of forked workers too: they leave without running ``atexit``."""
        from multiprocessing import util

        if not self._children_hook:
            self._children_hook = True
            util.register_after_fork(
                self, lambda session: util.Finalize(None, session.at_exit, exitpriority=100)
            )

    def uninstrument(self) -> None:
        """Put every attribute back; what has finished is still exported."""
        with self._lock:
            self.arming.disarm()
            self.pipeline.abandon_running()
            self._flush_and_close()
            self._given = {}
            self.router.use(None, None, None)

    def flush(self, timeout_s: float) -> bool:
        """Export what has finished; False if time ran out."""
        return self.pipeline.flush(timeout_s)

    def _configure(self, config: Config) -> None:
        self.config = self.emitter.config = self.pipeline.config = config

    def at_exit(self) -> None:
        """Export what is left, within the bound."""
        if not self._flush_and_close():
            guard.warn_once(
                "exit",
                f"not everything could be exported within {self.config.flush_timeout_s:g} s at "
                "exit. Check that the collector is reachable, or raise LLMTRACE_FLUSH_TIMEOUT_S.",
            )

    def _flush_and_close(self) -> bool:
        """Export what is left, close the providers that we made; False if time ran out."""
        deadline = time.monotonic() + self.config.flush_timeout_s
        flushed = self.pipeline.flush(self.config.flush_timeout_s)
        providers = self.router.own_providers()

        def close() -> None:
            for provider in providers:
                guard.call("closing a provider", provider.shutdown)

        left = max(0.1, deadline - time.monotonic())
        closed = not providers or self.emitter.errands.run(close, left)
        return flushed and closed


def _environment_config(environ: Mapping[str, str]) -> tuple[Config, str | None]:
    """Return the settings of the environment, and what is wrong with them.

    Importing us must not fail over a typing error, nor complain before there is a request.
    """
    from llmtrace.errors import ConfigError

    try:
        return settings.load(environ=environ), None
    except ConfigError as error:
        return settings.load(environ=settings.usable(environ)), f"{error}. Its default is used."


_session: Session | None = None
_lock = threading.Lock()


def session() -> Session:
    """Return this process's session, made on first use."""
    global _session  # noqa: PLW0603 - one process, one set of wrappers
    if _session is None:
        with _lock:
            if _session is None:
                _session = Session(os.environ)
    return _session

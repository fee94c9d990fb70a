"""The Python API: what ``import llmtrace`` offers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal
from weakref import finalize

from llmtrace.guard import guard
from llmtrace.recording.activation import Activation, Entry
from llmtrace.recording.own_loop import OwnLoop
from llmtrace.records import RequestRecord
from llmtrace.session import session

if TYPE_CHECKING:
    from typing_extensions import Self

CAPTURE_WAIT_S = 10.0
"""Longest wait at the end of a ``capture()`` block for records to be made."""


class Instrumentation:
    """What :func:`instrument` returns: a handle, also usable with ``with``."""

    def flush(self, timeout_s: float = 5) -> bool:
        """Export what has finished.

        Args:
            timeout_s: Longest wait, seconds.

        Returns:
            Whether everything was exported in time.
        """
        return session().flush(timeout_s)

    def close(self) -> None:
        """Undo :func:`instrument`, and flush."""
        session().uninstrument()

    @property
    def path(self) -> str | None:
        """The local trace file of this process, where that is where traces go."""
        file = session().router.current().file
        return None if file is None else str(file.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


_handle = Instrumentation()


def instrument(
    *,
    tracer_provider: Any | None = None,
    meter_provider: Any | None = None,
    steps: Literal["spans", "none"] | None = None,
    max_step_spans: int | None = None,
    dir: str | None = None,  # noqa: A002 - the setting's name
    content: Literal["no_content", "span_only", "event_only", "span_and_event"] | None = None,
    flush_timeout_s: float | None = None,
    peaks: str | None = None,
) -> Instrumentation:
    """Trace every ``generate()`` of this process from now on.

    Telemetry goes to the providers given here; else to the app's global providers, whether set
    before or after; else to the exporters that the standard ``OTEL_*`` variables name; else to a
    local file, ``llmtrace-<service>-<pid>.jsonl`` in *dir*. No global provider is replaced.
    Calling it again changes what is given anew, and nothing else.

    Args:
        tracer_provider: Receives the spans.
        meter_provider: Receives the metrics.
        steps: ``spans`` for one span per step, ``none`` for arrays on the request span only.
        max_step_spans: Steps of one request that are recorded singly.
        dir: Folder of the local trace file.
        content: Whether prompt and output text go onto the request span.
        flush_timeout_s: Longest wait at exit for telemetry to leave, seconds.
        peaks: The device's peak rates for MBU and MFU, ``BYTES_PER_S[,FLOP_PER_S]`` as
            ``llmtrace peaks`` measures them; the datasheet's by default.

    Raises:
        ConfigError: A setting, here or in a variable, has a value that cannot be used.
    """
    session().instrument(
        {
            "steps": steps,
            "max_step_spans": max_step_spans,
            "dir": dir,
            "content": content,
            "flush_timeout_s": flush_timeout_s,
            "peaks": peaks,
        },
        tracer_provider,
        meter_provider,
    )
    return _handle


def uninstrument() -> None:
    """Put back every patched attribute; nothing more is recorded."""
    session().uninstrument()


class request:  # noqa: N801 - used like a function
    """Make one request of own forward calls, or the place where TTFT starts.

    Around an own decode loop, ``with request():`` groups the model's forward calls: the first is
    the prefill, each later one a decode step. Around ``generate()``, which is a request itself,
    TTFT from the request counts from the start of this block.

    A scheduler that works on several requests at once, or in another thread than the one in which
    they arrive, uses the object itself::

        r = llmtrace.request(model).start(input_tokens=12)  # it has arrived: its TTFT begins
        with llmtrace.request.active(r, other):  # anywhere: whose forward calls are these
            logits = model(batch).logits
        r.token()  # one more token for this one
        r.end(finish_reason="stop")

    Args:
        model: The model called; left out, the first transformers model called is.
        name: Name of the span.
        attributes: Set on the span.
    """

    def __init__(
        self,
        model: Any | None = None,
        *,
        name: str | None = None,
        attributes: Mapping[str, str | bool | int | float] | None = None,
    ) -> None:
        self._model = model
        self._name = name
        self._attributes = attributes or {}
        self._loops: list[OwnLoop | None] = []
        """Open loops: a block may be entered again inside itself."""

    def __enter__(self) -> Self:
        self._loops.append(self._open())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close(error)

    def start(self, *, input_tokens: int | None = None) -> Self:
        """Begin the request without binding it to this place: its span's parent is the current one.

        It lives until :meth:`end`, whatever thread calls that. Only forward calls under
        :meth:`active` are its own.

        Args:
            input_tokens: Tokens of its prompt, which a call with the rows of several requests does
                not tell.

        Raises:
            RuntimeError: It has begun and has not ended.
        """
        if self._loops:
            raise RuntimeError("start(): this request has begun already; call end() first")
        loop = self._open(here=False, input_tokens=input_tokens)
        self._loops.append(loop)
        if loop is not None:
            finalize(self, loop.dropped).atexit = False
        return self

    def end(self, error: BaseException | None = None, *, finish_reason: str | None = None) -> None:
        """End what :meth:`start` began; without that, or a second time, do nothing.

        Args:
            error: Why it failed, if it did.
            finish_reason: Why it ended otherwise, such as ``stop`` or ``length``.
        """
        self._close(error, finish_reason)

    @staticmethod
    def active(*requests: request) -> AbstractContextManager[None]:
        """Return a ``with`` block whose forward calls belong to *requests*.

        In any thread or task, as often as needed. A call with the rows of several requests counts
        for each of them. Of a single request the span is current in the block too, and a
        ``generate()`` in it counts its TTFT from the request's start. Do not yield inside it.

        Args:
            requests: Those that have begun; others are left out.
        """
        # Each once, however many rows of the call it has.
        entries = (one._entry() for one in dict.fromkeys(requests))  # noqa: SLF001 - this class
        return Activation([entry for entry in entries if entry is not None])

    def token(self, n: int = 1) -> None:
        """Say that *n* tokens have been selected for each row.

        Without it each forward call counts as one token, selected when the forward ends.

        Raises:
            TypeError: *n* is no whole number.
            ValueError: *n* is negative.
        """
        count = operator.index(n)
        if count < 0:
            raise ValueError(f"token({n!r}): the number of tokens cannot be negative")
        loop = self._loop
        if loop is not None:
            loop.token(count)

    @property
    def _loop(self) -> OwnLoop | None:
        """The innermost open loop; another thread may be ending it."""
        innermost = self._loops[-1:]
        return innermost[0] if innermost else None

    def _open(self, *, here: bool = True, input_tokens: int | None = None) -> OwnLoop | None:
        from llmtrace.seams.own_loop import read_own_loop, recorded_model

        session_here = session()
        if not session_here.arming.armed:
            return None
        model = guard.call("finding the model", recorded_model, self._model)
        return guard.call(
            "opening a request()",
            OwnLoop,
            session_here.pipeline,
            read_own_loop,
            model,
            self._name,
            self._attributes,
            here=here,
            input_tokens=input_tokens,
        )

    def _entry(self) -> Entry | None:
        loop = self._loop
        return None if loop is None else loop.entry

    def _close(self, error: BaseException | None, finish_reason: str | None = None) -> None:
        try:
            loop = self._loops.pop()
        except IndexError:  # it has ended, or another thread is ending it
            return
        if loop is not None:
            guard.call("closing a request()", loop.close, error, finish_reason)


@contextmanager
def capture() -> Iterator[list[RequestRecord]]:
    """Collect the records of requests that finish in this block, in any thread.

    Yields:
        A list that is complete when the block has ended.
    """
    pipeline = session().pipeline
    pipeline.drain(CAPTURE_WAIT_S)
    records: list[RequestRecord] = []
    unsubscribe = pipeline.subscribe(records.append)
    try:
        yield records
    finally:
        if not pipeline.drain(CAPTURE_WAIT_S, hurry=False):
            guard.warn_once(
                "capture",
                f"capture() gave up after {CAPTURE_WAIT_S:g} s: records of this block are missing. "
                "Does a subscriber block?",
            )
        unsubscribe()


def subscribe(callback: Callable[[RequestRecord], None]) -> Callable[[], None]:
    """Have *callback* called with each finished record, in a background thread.

    Args:
        callback: Its failures are logged and do not reach the application.

    Returns:
        A function that ends the subscription.
    """
    return session().pipeline.subscribe(callback)

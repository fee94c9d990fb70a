"""The hot path: what is kept while a request runs.

Per step this reads a clock three times and appends. It takes no lock, formats nothing, calls no
OpenTelemetry and never waits. What the marks mean is worked out later, in
``llmtrace.recording.build``; a device's stream is marked in ``llmtrace.recording.device_recorder``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from llmtrace.guard import guard
from llmtrace.timing.host import now


class DeviceLeg(NamedTuple):
    """One device's part of a forward call."""

    forward: int
    device: str
    begun_ns: int | None
    """None for the first: it begins with the forward."""
    ended_ns: int


class PendingTimes(Protocol):
    """Marks on a device that have not been read yet."""

    def passed(self, marks: Marks) -> bool:
        """Whether there is nothing to wait for before they can be read."""

    def read(self, marks: Marks) -> None:
        """Replace host times by the device's, where it has any to tell."""


@dataclass(slots=True)
class Marks:
    """The marks of one finished request, host clock, nanoseconds."""

    start_ns: int
    end_ns: int
    forward_starts: list[int]
    forward_ends: list[int]
    tokens: list[int]
    """When each token (of every row at once) was selected; on the device if there is one."""
    token_forwards: list[int]
    """Forward calls done before each token."""
    token_counts: list[int] | None = None
    """Tokens selected for one row at each mark, where that can differ from 1."""
    puts: list[int] = field(default_factory=list)
    put_forwards: list[int] = field(default_factory=list)
    device: PendingTimes | None = None
    """The same instants on a device, until they have been read."""
    host_tokens: list[int] | None = None
    """The host's times of ``tokens``, where those are the device's."""
    device_forward_ends: list[int] | None = None
    device_prefill_start: int | None = None
    clock: str = "host"
    clock_error_ns: int | None = None
    more_tokens: int = 0
    more_forwards: int = 0
    """Tokens and forward calls after the limit: of those only the last one's time is kept."""
    last_mark: int | None = None
    encoder_start: int | None = None
    legs: list[DeviceLeg] = field(default_factory=list)
    replays: list[tuple[int, int]] = field(default_factory=list)
    """Forwards done before, and when, the first CUDA graph of a forward was replayed."""


OVER = object()
"""Stands for the model of a request that has ended: no model is this one, so none is recorded."""


class Recorder:
    """Marks of one request, on the host clock."""

    __slots__ = (
        "adopt",
        "cache",
        "captured",
        "compiled",
        "encoder_start",
        "first_call",
        "forward_ends",
        "forward_starts",
        "ids",
        "last_mark",
        "lengths",
        "limit",
        "marked",
        "model",
        "more_forwards",
        "more_tokens",
        "outer",
        "own_loop",
        "put_forwards",
        "puts",
        "replays",
        "sees_forwards",
        "shift",
        "start_ns",
        "token_counts",
        "token_forwards",
        "tokens",
        "verdicts",
    )

    clock = "host"

    def __init__(self, model: Any, limit: int, start_ns: int) -> None:
        self.model = model
        self.limit = limit
        self.start_ns = start_ns
        self.forward_starts: list[int] = []
        self.forward_ends: list[int] = []
        self.tokens: list[int] = []
        self.token_forwards: list[int] = []
        self.marked = 0
        self.token_counts: list[int] | None = None
        self.lengths: list[tuple[int, int]] | None = None
        self.puts: list[int] = []
        self.put_forwards: list[int] = []
        self.replays: list[tuple[int, int]] = []
        self.more_forwards = 0
        self.more_tokens = 0
        self.last_mark: int | None = None
        self.adopt: Callable[[Any], Recorder] | None = None
        """What an own loop does with the first model it calls; returns who records it."""
        self.sees_forwards = True
        """False for a model whose calls are not seen, so that processors stand in for them."""
        self.compiled = False
        self.captured = False
        """Whether a CUDA graph was captured meanwhile."""
        self.encoder_start: int | None = None
        self.own_loop = False
        self.outer: Recorder | None = None
        """The recorder that was active where this one's request began."""
        self.first_call: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        """The first forward call's arguments, in an own loop only."""
        self.cache: Any = None
        """The KV cache, until the request ends."""
        self.ids: Any = None
        """The ids generated so far: all an interrupted request leaves."""
        self.verdicts: list[Any] | None = None
        """What the stopping criteria said after each step, where the ids alone will not tell."""
        self.shift = 0
        """Added to a sequence's length in a request's second loop and later ones."""

    @property
    def over(self) -> bool:
        """Whether the request has ended; a recorder may stay active where it was not ended."""
        return self.model is OVER

    def adopted(self, model: Any) -> Recorder:
        """Return who records *model*, the first one called in an own loop that names none."""
        if self.adopt is None:
            return self
        return guard.call("adopting a model", self.adopt, model) or self

    @property
    def in_forward(self) -> bool:
        """Whether a forward call is under way."""
        return len(self.forward_starts) != len(self.forward_ends)

    @property
    def forwards_done(self) -> int:
        """Forward calls that have returned."""
        return len(self.forward_ends) + self.more_forwards

    def capturing(self) -> bool:
        """Whether calls are being captured rather than run."""
        return False

    def awaits_device(self) -> bool:
        """Whether the request only waits for its device, as seen from another thread."""
        return False

    def encoder_started(self) -> None:
        """An encoder is about to be called, before the model's own first forward."""
        if self.encoder_start is None:
            self.encoder_start = now()

    def forward_started(self) -> None:
        """The model's forward is about to be called."""
        self.forward_starts.append(now())

    def forward_ended(self) -> None:
        """The forward call has returned: on a device, its work is enqueued."""
        if len(self.forward_ends) >= self.limit and self.limit_reached():
            self.overflow()
            return
        self.forward_ends.append(now())

    def graph_replayed(self) -> None:
        """A CUDA graph is about to be replayed in a forward call."""
        done = len(self.forward_ends)
        if not self.replays or self.replays[-1][0] != done:
            self.replays.append((done, now()))

    def forward_failed(self) -> None:
        """The forward call raised."""
        self.forward_starts.pop()

    def forward_seen(self) -> None:
        """A forward has been done that was not seen to begin."""
        self.forward_ended()
        # The same instant: no duration, as nothing is known of it.
        self.forward_starts.append(self.forward_ends[-1])

    def token(self) -> None:
        """A token has been selected for every row.

        Only the first call after a forward counts: some loops consult their criteria twice a
        step, and a streamer may be handed the token before the criteria see it.
        """
        done = len(self.forward_ends)
        if done != self.marked:
            self.marked = done
            self.token_forwards.append(done)
            self.tokens.append(now())

    def select(self, count: int) -> None:
        """The caller's own code has selected *count* tokens (``request().token()``)."""
        if self.token_counts is None:
            self.token_counts = []
        if count < 1:  # nothing was accepted: the step goes on
            return
        if len(self.tokens) >= self.limit:
            self.fill()
            self.select(count)
            return
        self.token_counts.append(count)
        self.marked = -1
        self.token()

    def put(self) -> None:
        """A streamer is about to be handed tokens."""
        self.token()
        self.puts.append(now())
        self.put_forwards.append(len(self.forward_ends))

    def length(self, total: int) -> None:
        """The sequence is *total* tokens long after the latest step (assisted decoding).

        Only the first call after a forward counts: before the next one, some releases ask their
        criteria about the draft, which is longer than what will be kept of it.
        """
        done = len(self.forward_ends)
        if self.lengths is not None and (not self.lengths or self.lengths[-1][0] != done):
            self.lengths.append((done, total))

    def close(self, end_ns: int) -> Marks:
        """Return the marks, all on the host clock."""
        # Copies: an own loop may be ended by one thread while another is in its forward call.
        selected = len(self.tokens)
        done = len(self.forward_ends)
        return Marks(
            start_ns=self.start_ns,
            end_ns=end_ns,
            forward_starts=self.forward_starts[:done],
            forward_ends=self.forward_ends[:done],
            tokens=self.tokens[:selected],
            token_forwards=self.token_forwards[:selected],
            puts=self.puts,
            put_forwards=self.put_forwards,
            token_counts=self._counts(selected),
            more_tokens=self._more_tokens(),
            more_forwards=self.more_forwards,
            last_mark=self.last_mark,
            encoder_start=self.encoder_start,
            replays=self.replays,
        )

    def _counts(self, marks: int) -> list[int] | None:
        """Return the tokens per mark, where it can differ from 1."""
        if self.lengths is None:
            return None if self.token_counts is None else self.token_counts[:marks]
        total_after = dict(self.lengths)
        totals = [total_after.get(forwards) for forwards in self.token_forwards]
        previous: int | None = total_after.get(0)
        counts = []
        for total in totals:
            counts.append(1 if total is None or previous is None else total - previous)
            previous = total
        return counts

    def _more_tokens(self) -> int:
        """Return the tokens after the limit."""
        if not self.lengths or not self.more_tokens:
            return self.more_tokens
        done = self.token_forwards[-1] if self.token_forwards else 0
        recorded = [total for forwards, total in self.lengths if forwards <= done]
        return self.lengths[-1][1] - recorded[-1] if recorded else self.more_tokens

    def limit_reached(self) -> bool:
        """Whether as many steps are kept as may be. Prefill chunks are not steps."""
        return len(self.tokens) >= self.limit or (self.own_loop and not self.tokens)

    def overflow(self) -> None:
        """The forward that has just ended is one too many: it only counts."""
        self.forward_starts.pop()
        self.fill()
        self.forward_ended()

    def fill(self) -> None:
        """Keep no more single steps: the memory of one request is bounded."""
        self.__class__ = FullRecorder


class FullRecorder(Recorder):
    """A recorder that has reached its limit: it counts, and keeps the time of the last mark.

    That is the last token's. Only where none is ever marked is it the last forward's.
    """

    __slots__ = ()

    def mark_last(self) -> None:
        """What happens now is the last thing that is known."""
        self.last_mark = now()

    def forward_started(self) -> None:
        """Not kept."""

    def forward_ended(self) -> None:
        self.marked = -1
        self.more_forwards += 1
        if not self.more_tokens:
            self.mark_last()

    def graph_replayed(self) -> None:
        """Not kept."""

    def forward_failed(self) -> None:
        """Not kept."""

    def forward_seen(self) -> None:
        self.forward_ended()

    def token(self) -> None:
        if self.marked == -1:
            self.marked = 0
            self.more_tokens += 1
            self.mark_last()

    def select(self, count: int) -> None:
        if count > 0:
            self.more_tokens += count
            self.mark_last()

    def put(self) -> None:
        self.token()

    def length(self, total: int) -> None:
        if not self.lengths:
            return
        kept = len(self.forward_ends)
        step = kept + self.more_tokens
        if self.lengths[-1][0] == step:
            return
        if self.lengths[-1][0] > kept:
            self.lengths.pop()
        self.lengths.append((step, total))

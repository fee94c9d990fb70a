"""When a streamer's text was ready, asked for and taken; nothing is interpreted here."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

LATE_NS = 100_000_000
"""Text that lay for less than this is on time: nobody sees it."""

MAX_LATE = 1024
"""Late items of which the times are kept."""


@dataclass(slots=True)
class LateItem:
    """Text that lay in the streamer's queue before it was taken. Durations in nanoseconds."""

    item: int
    """Which one, from 1; the prompt's item is none."""
    late_ns: int
    """Ready to taken."""
    away_ns: int
    """Of that, while the consumer was not asking, having taken the item before."""
    loop_ns: int
    """Of that, while the event loop did not get to it."""
    waiting: int
    """Items that were ready when this one was taken, itself included."""


@dataclass(slots=True)
class StreamTimes:
    """The times of one streamer in one request.

    The thread that generates writes what is put; the consumer's thread writes what is taken.
    """

    pull: bool
    """The consumer takes items out of the streamer, rather than being handed them."""
    prompt_items: int = 0
    """Items that carry the prompt, not tokens."""
    items: int = 0
    """Items taken, the prompt's included."""
    delivered_ns: int | None = None
    visible_ns: int | None = None
    ended: bool = False
    """The consumer has found the end."""
    closed: bool = False
    """The streamer has been told the end."""
    ready: deque[int] = field(default_factory=deque)
    """When each item that has not been taken was ready."""
    unmatched: bool = False
    """Items were taken that were not seen to be put: how late they are is not known."""
    taken_ns: int = 0
    """When the latest item was taken."""
    late: list[LateItem] = field(default_factory=list)
    seen_ns: int | None = None
    """Until when the consumer was watched."""
    puts: int = 0
    put_ns: int = 0
    """Host time inside the streamer's own ``put``."""
    longest_put_ns: int = 0
    longest_put: int = 0
    """At which token, from 1."""

    @property
    def settled(self) -> bool:
        """Whether nothing more will be learnt."""
        return not self.pull or self.ended

    def put(self, took_ns: int) -> None:
        """The streamer's own ``put`` of a token has returned."""
        self.puts += 1
        self.put_ns += took_ns
        if took_ns > self.longest_put_ns:
            self.longest_put_ns, self.longest_put = took_ns, self.puts

    def item(self, asked_ns: int, at_ns: int, *, visible: bool, arrived: bool | None) -> None:
        """The consumer took an item out of the streamer.

        Args:
            asked_ns: When it asked for one.
            at_ns: When it got it.
            visible: Whether it is more than white space.
            arrived: Whether the event loop had put an item into the queue when the consumer
                asked; None where no loop is between them.
        """
        self.items += 1
        number = self.items - self.prompt_items
        self._note_lateness(number, asked_ns, at_ns, arrived=arrived)
        self.taken_ns = at_ns
        if number > 0:
            self.reached(at_ns, visible=visible)

    def _note_lateness(
        self, number: int, asked_ns: int, at_ns: int, *, arrived: bool | None
    ) -> None:
        try:
            ready_ns = self.ready.popleft()
        except IndexError:
            self.unmatched = True
            return
        late_ns = at_ns - ready_ns
        if late_ns < LATE_NS or number <= 0 or len(self.late) >= MAX_LATE:
            return
        away_ns = max(asked_ns - max(ready_ns, self.taken_ns), 0)
        loop_ns = 0
        if arrived is not None:
            loop_ns = at_ns - max(asked_ns, ready_ns)
            if not arrived:  # it was handed to the loop before, so the loop has not run since
                away_ns, loop_ns = 0, loop_ns + away_ns
        self.late.append(LateItem(number, late_ns, away_ns, loop_ns, len(self.ready) + 1))

    def reached(self, at_ns: int, *, visible: bool) -> None:
        """A token's item reached the consumer."""
        if self.delivered_ns is None:
            self.delivered_ns = at_ns
        if visible and self.visible_ns is None:
            self.visible_ns = at_ns

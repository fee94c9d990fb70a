"""Streamers: when tokens are handed over, and when the consumer has them.

``generate()`` is given a proxy; the user's object, its class and its attributes stay as they are.
The consumer's side of the queueing streamers is seen on transformers' own classes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import wrapt

from llmtrace.guard import guard
from llmtrace.recording.recorder import Recorder
from llmtrace.recording.stream import StreamTimes
from llmtrace.seams.patching import PatchSet
from llmtrace.seams.tokenizers import this_place
from llmtrace.timing.host import now


@dataclass(slots=True)
class _Known:
    """What is kept of a streamer, beside it."""

    alive: weakref.ref[Any]
    context: Any = None
    """The telemetry context in which it was built, if that holds a span."""
    place: object = None
    """The place in which it was built, if no span says it: a prompt may have been made there."""
    times: StreamTimes | None = None


_known: dict[int, _Known] = {}
"""By the streamer's id: a streamer need not be hashable. Entries go when the streamer does."""


def _remember(streamer: Any) -> _Known | None:
    known = _known.get(id(streamer))
    if known is not None and known.alive() is streamer:
        return known
    key = id(streamer)
    try:
        alive = weakref.ref(streamer, lambda _: _known.pop(key, None))
    except TypeError:  # it has no room for weak references: nothing is kept of it
        return None
    known = _known[key] = _Known(alive)
    return known


def context_of(streamer: Any) -> Any | None:
    """Return the telemetry context in which *streamer* was built, if it is known."""
    known = _known.get(id(streamer))
    return known.context if known is not None and known.alive() is streamer else None


def place_of(streamer: Any) -> object | None:
    """Return the place in which *streamer* was built, if no span says it."""
    known = _known.get(id(streamer))
    return known.place if known is not None and known.alive() is streamer else None


def observe(streamer: Any) -> StreamTimes:
    """Return what will hold the times of *streamer*'s next request."""
    known = _remember(streamer)
    pull = known is not None and hasattr(streamer, "text_queue")
    times = StreamTimes(pull=pull)
    if pull and not getattr(streamer, "skip_prompt", False):
        times.prompt_items = 1
    if known is not None:
        known.times = times
    return times


_ObjectProxy: Any = getattr(wrapt, "BaseObjectProxy", wrapt.ObjectProxy)
"""wrapt 2 has a proxy that does not pretend to be iterable."""


class StreamerProxy(_ObjectProxy):  # type: ignore[misc]
    """Stands for the user's streamer in one ``generate()`` call."""

    def __init__(self, streamer: Any, recorder: Recorder, times: StreamTimes) -> None:
        super().__init__(streamer)
        self._self_recorder = recorder
        self._self_times = times

    def put(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Note the time and pass *value* on. What is put before any forward is the prompt."""
        recorder, times = self._self_recorder, self._self_times
        if not recorder.forward_ends:
            return self.__wrapped__.put(value, *args, **kwargs)
        before = None
        recorder.put()
        if recorder.lengths and getattr(value, "shape", None):
            # Several tokens a step: should the streamer fail, nothing else tells how many.
            recorder.length(recorder.lengths[-1][1] + value.shape[-1])
        begun = now()
        if not times.pull and times.visible_ns is None:
            if times.delivered_ns is None:
                times.delivered_ns = begun
            before = _printed(self.__wrapped__)
        result = self.__wrapped__.put(value, *args, **kwargs)
        done = now()
        times.put(done - begun)
        if before is not None and _printed(self.__wrapped__) not in {before, None}:
            times.visible_ns = done
        return result

    def end(self, *args: Any, **kwargs: Any) -> Any:
        """Pass on; text held back until now becomes visible."""
        times = self._self_times
        held_back = not times.pull and times.visible_ns is None and times.delivered_ns is not None
        cached = bool(getattr(self.__wrapped__, "token_cache", None))
        times.closed = True
        result = self.__wrapped__.end(*args, **kwargs)
        if held_back and cached:
            times.visible_ns = now()
        return result

    def __copy__(self) -> Any:
        return self.__wrapped__

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        import copy

        return copy.deepcopy(self.__wrapped__, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__wrapped__.__reduce_ex__(protocol)


def is_proxied(streamer: Any) -> bool:
    """Whether an outer request watches *streamer* already."""
    return type(streamer) is StreamerProxy


def _printed(streamer: Any) -> int | None:
    """Return how much of its text a ``TextStreamer`` has let out, or None if it is none.

    It holds text back until a word is complete. It never says so, but counts the characters.
    """
    count = getattr(streamer, "print_len", None)
    return count if isinstance(count, int) else None


def install(patches: PatchSet, here: Callable[[], Any | None]) -> None:
    """Watch transformers' streamers.

    Args:
        patches: Receives the wrappers.
        here: Returns the current telemetry context if it holds a span.
    """
    from transformers.generation import streamers

    def built(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = wrapped(*args, **kwargs)
        if patches.enabled:
            guard.call("remembering where a streamer was built", _keep_context, instance, here())
        return result

    patches.wrap(streamers.TextStreamer, "__init__", built)
    patches.wrap(streamers.TextIteratorStreamer, "on_finalized_text", _queued)
    patches.wrap(streamers.TextIteratorStreamer, "__next__", _taken)
    queue = getattr(streamers, "AsyncTextIteratorStreamer", None)
    if queue is not None:
        patches.wrap(queue, "on_finalized_text", _queued)
        patches.wrap(queue, "__anext__", _awaited)


def _keep_context(streamer: Any, context: Any | None) -> None:
    known = _remember(streamer)
    if known is not None:
        known.context = context
        known.place = this_place() if context is None else None


def _times_of(streamer: Any) -> StreamTimes | None:
    """Return the times of *streamer*'s latest request, if there is more to learn of it."""
    known = _known.get(id(streamer))
    times = known.times if known is not None else None
    return None if times is None or times.settled else times


def _queued(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An item is about to be put into the consumer's queue."""
    times = _times_of(instance)
    if times is not None:
        times.ready.append(now())
    return wrapped(*args, **kwargs)


def _taken(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    asked = now()
    try:
        text = wrapped(*args, **kwargs)
    except StopIteration:
        _note_end(instance)
        raise
    guard.call("noting an item taken", _note, instance, text, asked, None)
    return text


async def _awaited(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    arrived = guard.call("looking into a streamer's queue", _has_items, instance)
    asked = now()
    try:
        text = await wrapped(*args, **kwargs)
    except StopAsyncIteration:
        _note_end(instance)
        raise
    guard.call("noting an item taken", _note, instance, text, asked, arrived)
    return text


def _has_items(streamer: Any) -> bool | None:
    """Return whether there is something to take, or None where the queue does not say."""
    size = getattr(streamer.text_queue, "qsize", None)
    return None if size is None else bool(size())


def _note(streamer: Any, text: Any, asked_ns: int, arrived: bool | None) -> None:  # noqa: FBT001
    """The consumer took *text*. It may have asked before the request began."""
    times = _times_of(streamer)
    if times is not None:
        times.item(asked_ns, now(), visible=bool(str(text).strip()), arrived=arrived)


def _note_end(streamer: Any) -> None:
    times = _times_of(streamer)
    if times is not None:
        times.ended = True

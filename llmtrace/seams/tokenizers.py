"""Tokenizer calls: their time is part of what a user waits for before the first token.

A call belongs to a request if it made what the request was given: programs tokenize for other
purposes too. Tensors are moved and lists are made into tensors in between, so what is compared is
the place (the current span, or the context) and the number of rows and tokens.
"""

from __future__ import annotations

import time
import weakref
from collections import OrderedDict, deque
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from llmtrace.guard import guard
from llmtrace.locks import ForkSafeLock
from llmtrace.recording.pipeline import Telemetry
from llmtrace.recording.request import Tokenization
from llmtrace.seams.patching import PatchSet
from llmtrace.timing.host import now

MAX_PLACES = 1024
"""Places whose tokenizer calls are remembered until a request is made there."""

MAX_CALLS = 64
"""Latest calls remembered of one place."""


@dataclass(slots=True)
class _Call:
    """One outermost tokenizer call."""

    tokenizer: weakref.ref[Any]
    chat: bool
    begun_ns: int
    took_ns: int
    shape: tuple[int, int] | None = None
    """Rows and tokens of what it returned, if that was ids."""
    text: int | None = None
    """Hash of what it returned, if that was text for a later call."""


_inside: ContextVar[bool] = ContextVar("llmtrace_tokenizing", default=False)
_place: ContextVar[object | None] = ContextVar("llmtrace_place", default=None)
_places: OrderedDict[object, deque[_Call]] = OrderedDict()
_lock = ForkSafeLock()


def install(patches: PatchSet, telemetry: Telemetry) -> None:
    """Watch ``PreTrainedTokenizerBase``; transformers has been imported."""
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase

    def watch(name: str, *, chat: bool) -> None:
        def wrapper(
            wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Any:
            if _inside.get() or not patches.enabled:
                return wrapped(*args, **kwargs)
            token = _inside.set(True)
            begun, begun_unix = now(), time.time_ns()
            try:
                result = wrapped(*args, **kwargs)
            finally:
                _inside.reset(token)
            call = _Call(weakref.ref(instance), chat, begun, now() - begun)
            given = args[0] if args else kwargs.get("text")
            guard.call("noting a tokenizer call", _note, telemetry, call, begun_unix, given, result)
            return result

        patches.wrap(PreTrainedTokenizerBase, name, wrapper)

    watch("__call__", chat=False)
    watch("encode", chat=False)
    watch("apply_chat_template", chat=True)


def _note(telemetry: Telemetry, call: _Call, begun_unix_ns: int, given: Any, result: Any) -> None:
    telemetry.tokenized(begun_unix_ns, begun_unix_ns + call.took_ns)
    call.shape = _shape(result)
    call.text = hash(result) if isinstance(result, str) else None
    key = telemetry.key(None) or _own_key()
    with _lock:
        calls = _keep(key)
        if isinstance(given, str):
            _take_over(call, calls, hash(given))
        calls.append(call)


def _take_over(call: _Call, calls: deque[_Call], text: int) -> None:
    """Count the call that made the text of this one, such as a chat template's, into it."""
    for before in reversed(calls):
        if before.text == text:
            call.took_ns += before.took_ns
            call.chat = call.chat or before.chat
            call.begun_ns = before.begun_ns
            calls.remove(before)
            return


def _shape(result: Any) -> tuple[int, int] | None:
    """Return rows and tokens of a tokenizer's result, whatever its form."""
    ids = result["input_ids"] if hasattr(result, "keys") and "input_ids" in result else result
    if hasattr(ids, "shape"):
        shape = tuple(ids.shape)
        return (1, shape[0]) if len(shape) == 1 else (shape[0], shape[1])
    if not isinstance(ids, list) or not ids:
        return None
    if isinstance(ids[0], int):
        return 1, len(ids)
    return (len(ids), max(map(len, ids))) if isinstance(ids[0], list) else None


def this_place() -> object:
    """Return what identifies this place, for whoever makes a request of it elsewhere."""
    key = _own_key()
    with _lock:
        _keep(key)
    return key


def _keep(key: object) -> deque[_Call]:
    """Return the calls of a place, which is the latest from now on."""
    calls = _places.setdefault(key, deque(maxlen=MAX_CALLS))
    _places.move_to_end(key)
    if len(_places) > MAX_PLACES:
        _places.popitem(last=False)
    return calls


def _own_key() -> object:
    """Return what identifies this place where no span does."""
    key = _place.get()
    if key is None or key not in _places:
        key = object()
        _place.set(key)
    return key


def take_tokenization(key: object | None, prompt: Any) -> Tokenization | None:
    """Return, once, the tokenizer calls that made *prompt*.

    Args:
        key: What identifies the place; None where no span does.
        prompt: The tensor that carries the prompt, ``[rows, tokens, ...]``.
    """
    shape = _shape(prompt)
    with _lock:
        calls = _places.get(key or _place.get())
        if not calls or shape is None:
            return None
        made = _made_at_once(calls, shape) or _made_row_by_row(calls, shape)
        for call in made:
            calls.remove(call)
    if not made:
        return None
    return Tokenization(
        sum(call.took_ns for call in made),
        made[0].begun_ns,
        any(call.chat for call in made),
        made[0].tokenizer,
    )


def _made_at_once(calls: deque[_Call], shape: tuple[int, int]) -> list[_Call]:
    return next(([call] for call in reversed(calls) if call.shape == shape), [])


def _made_row_by_row(calls: deque[_Call], shape: tuple[int, int]) -> list[_Call]:
    """Return the latest calls, one per row, whose longest fills the batch, as pipelines do it."""
    rows, longest = shape
    latest = list(calls)[-rows:]
    lengths = [call.shape[1] if call.shape and call.shape[0] == 1 else 0 for call in latest]
    return latest if len(latest) == rows and max(lengths) == longest and min(lengths) else []


def texts_of(tokenizer: Any, rows: Any) -> list[str]:
    """Return the text of each row of token ids."""
    if rows is None or (hasattr(rows, "is_floating_point") and rows.is_floating_point()):
        return []
    rows = rows.tolist() if hasattr(rows, "tolist") else rows
    return [tokenizer.decode(row, skip_special_tokens=True) for row in rows]

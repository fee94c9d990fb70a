"""Tokenizer calls: their time is part of what a user waits for before the first token."""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from llmtrace.guard import guard
from llmtrace.recording.pipeline import Telemetry
from llmtrace.recording.request import Tokenization
from llmtrace.seams.patching import PatchSet
from llmtrace.timing.host import now

MAX_PLACES = 1024
"""Places whose tokenizer calls are remembered until a request is made there."""

_inside: ContextVar[bool] = ContextVar("llmtrace_tokenizing", default=False)
_place: ContextVar[object | None] = ContextVar("llmtrace_place", default=None)
_places: OrderedDict[object, Tokenization] = OrderedDict()
_lock = threading.Lock()


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
                return wrapped(*args, **kwargs)
            finally:
                _inside.reset(token)
                took = now() - begun
                call = _TokenizerCall(instance, chat, begun_unix, took)
                guard.call("noting a tokenizer call", _note, telemetry, call)

        patches.wrap(PreTrainedTokenizerBase, name, wrapper)

    watch("__call__", chat=False)
    watch("encode", chat=False)
    watch("apply_chat_template", chat=True)


@dataclass(frozen=True, slots=True)
class _TokenizerCall:
    tokenizer: Any
    chat: bool
    begun_unix_ns: int
    took_ns: int


def _note(telemetry: Telemetry, call: _TokenizerCall) -> None:
    telemetry.tokenized(call.begun_unix_ns, call.begun_unix_ns + call.took_ns)
    key = telemetry.key(None) or _own_key()
    with _lock:
        place = _places.setdefault(key, Tokenization())
        place.duration_ns += call.took_ns
        place.chat = place.chat or call.chat
        place.tokenizer = weakref.ref(call.tokenizer)
        _places.move_to_end(key)
        if len(_places) > MAX_PLACES:
            _places.popitem(last=False)


def _own_key() -> object:
    """Return what identifies this place where no span does."""
    key = _place.get()
    if key is None or key not in _places:
        key = object()
        _place.set(key)
    return key


def take_tokenization(key: object | None) -> Tokenization | None:
    """Return, once, the tokenizer calls made in a place since the last request there.

    Args:
        key: What identifies the place; None where no span does.
    """
    with _lock:
        return _places.pop(key or _place.get(), None)


def texts_of(tokenizer: Any, rows: Any) -> list[str]:
    """Return the text of each row of token ids."""
    if rows is None or (hasattr(rows, "is_floating_point") and rows.is_floating_point()):
        return []
    rows = rows.tolist() if hasattr(rows, "tolist") else rows
    return [tokenizer.decode(row, skip_special_tokens=True) for row in rows]

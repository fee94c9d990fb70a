"""Putting our wrappers on third-party classes, and taking them off by identity."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from types import FunctionType
from typing import Any

import wrapt

from llmtrace.seams.wrapping import MethodWrapper, Wrapper

_ABSENT = object()
_Proxy: Any = getattr(wrapt, "BaseObjectProxy", wrapt.ObjectProxy)


@dataclass(slots=True)
class _Patch:
    owner: type
    name: str
    original: Any
    """The raw value from the owner's ``__dict__``, or ``_ABSENT``."""
    ours: Any


class PatchSet:
    """Wrappers in place, in the order they were put there."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._patches: list[_Patch] = []
        self.enabled = False
        """Read by wrappers that outlive their removal, under someone else's wrapper."""

    def __contains__(self, place: tuple[type, str]) -> bool:
        return any((p.owner, p.name) == place for p in self._patches)

    def wrap(self, owner: type, name: str, wrapper: Wrapper) -> bool:
        """Wrap the method *owner* itself defines; False if it defines none."""
        original = vars(owner).get(name, _ABSENT)
        if original is _ABSENT:
            return False
        self._put(owner, name, original, MethodWrapper(original, wrapper))
        return True

    def add(self, owner: type, name: str, function: Any) -> bool:
        """Give *owner* a method it inherits so far; False if it has one of its own."""
        if name in vars(owner):
            return False
        self._put(owner, name, _ABSENT, function)
        return True

    def put(self, owner: type, name: str, make: Callable[[Any], Any]) -> bool:
        """Put what *make* makes of the method *owner* itself defines in its place; False if none.

        Without wrapt, so for what the device waits for alone: under another library's wrapper it
        cannot be cut out, and has to pass on what is none of ours.

        Args:
            owner: The class.
            name: The method.
            make: Given a function that takes the instance first, returns another.
        """
        original = vars(owner).get(name, _ABSENT)
        if original is _ABSENT:
            return False
        plain = type(original) is FunctionType  # wrapt's wrappers say that they are, too
        self._put(owner, name, original, make(original if plain else _as_function(original)))
        return True

    def _put(self, owner: type, name: str, original: Any, ours: Any) -> None:
        with self._lock:
            if (owner, name) in self:
                return
            setattr(owner, name, ours)
            self._patches.append(_Patch(owner, name, original, ours))

    def restore(self) -> None:
        """Put back every attribute, last one first.

        Where another library has wrapped over us its wrapper stays; ours is cut out of its
        chain if that can be done, and otherwise only passes calls on.
        """
        with self._lock:
            self.enabled = False
            for patch in reversed(self._patches):
                _restore(patch)
            self._patches.clear()


def _as_function(method: Any) -> Any:
    """Return a function that calls *method*, which another library has wrapped."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method.__get__(self, type(self))(*args, **kwargs)

    return call


def _restore(patch: _Patch) -> None:
    current = vars(patch.owner).get(patch.name, _ABSENT)
    if current is not patch.ours:
        _cut_out(current, patch)
    elif patch.original is _ABSENT:
        delattr(patch.owner, patch.name)
    else:
        setattr(patch.owner, patch.name, patch.original)


def _cut_out(outer: Any, patch: _Patch) -> None:
    """Let the wrapt wrapper directly over ours wrap the original instead."""
    if patch.original is _ABSENT:
        return
    while isinstance(outer, _Proxy):
        inner = outer.__wrapped__
        if inner is patch.ours:
            outer.__wrapped__ = patch.original
            return
        outer = inner

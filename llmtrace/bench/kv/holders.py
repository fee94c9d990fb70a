"""Who holds an object that should be gone: the way from it outwards, as far as it can be told."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Sequence
from typing import Any

from llmtrace.bench.kv.leaks import is_cache

FURTHEST = 8
"""Steps outwards: each is a look at all objects."""


def of(growing: Sequence[tuple[str, float]]) -> tuple[str, ...]:
    """Return how objects of the classes that grow are held: caches first, else the first class.

    Args:
        growing: Full names of classes, and how many more there are of each per request.
    """
    names = [name for name, _ in growing]
    caches = [name for name in names if is_cache(name)]
    chains = []
    for name in caches or names[:1]:
        thing = _example(name)
        if thing is not None:
            chains.append(chain(thing))
    return tuple(chains)


def _example(name: str) -> Any:
    """Return one of the objects of the class of this full name: not the last, which may be due."""
    alive = [
        thing
        for thing in gc.get_objects()
        if f"{type(thing).__module__}.{type(thing).__qualname__}" == name
    ]
    return alive[len(alive) // 2] if alive else None


def chain(thing: Any) -> str:
    """Return who holds *thing*, who holds that, and so on to a module's variable.

    The caller may hold it by a local variable alone: a list of its own would be found.
    """
    said, seen = [_class(thing)], {id(thing)}
    current = thing
    for _ in range(FURTHEST):
        outer = _holder(current, seen)
        if outer is None:
            break
        seen.add(id(outer))
        named = _named(outer, current)
        if named is not None:
            said.append(named)
        if _module(outer) is not None:
            break
        current = outer
    return " in ".join(said)


def _holder(thing: Any, passed: set[int]) -> Any:
    """Return what holds *thing*, a module's variable before others: no function that runs."""
    holders = [
        outer
        for outer in gc.get_referrers(thing)
        if id(outer) not in passed and not isinstance(outer, types.FrameType)
    ]
    return next((outer for outer in holders if _module(outer)), holders[0] if holders else None)


def _module(thing: Any) -> str | None:
    """Return the name of the module whose variables *thing* is."""
    if not isinstance(thing, dict):
        return None
    name = thing.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    return name if module is not None and vars(module) is thing else None


def _named(outer: Any, inner: Any) -> str | None:
    """Return *outer* in words; None of an instance's dictionary."""
    if isinstance(outer, dict):
        names = [key for key, value in outer.items() if value is inner and isinstance(key, str)]
        kind = "a dict" if type(outer) is dict else _class(outer)
        name = f"`{names[0]}`" if names else kind
        module = _module(outer)
        return f"{name} of module {module}" if module else name
    return _class(outer)


def _class(thing: Any) -> str:
    return type(thing).__name__

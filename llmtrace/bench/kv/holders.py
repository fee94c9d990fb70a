"""Who holds an object that should be gone: the way from it outwards, as far as it can be told."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterable, Sequence
from typing import Any

FURTHEST = 8
"""Steps outwards: each is a look at all objects."""


def of(growing: Sequence[tuple[str, float]]) -> tuple[str, ...]:
    """Return how objects of the classes that grow are held: caches first, else the first class.

    Args:
        growing: Full names of classes, and how many more there are of each per request.
    """
    names = [name for name, _ in growing]
    caches = [name for name in names if name.endswith("Cache")]
    found = []
    for name in caches or names[:1]:
        things = alive(name)
        if things:
            found.append(chain(things[len(things) // 2]))
    return tuple(found)


def alive(name: str) -> list[Any]:
    """Return the objects of the class of this full name."""
    return [
        thing
        for thing in gc.get_objects()
        if f"{type(thing).__module__}.{type(thing).__qualname__}" == name
    ]


def chain(thing: Any) -> str:
    """Return who holds *thing*, who holds that, and so on to a module's variable.

    Objects that only stand between, such as an instance's dictionary, are passed over.
    """
    said, passed = [_class(thing)], {id(thing)}
    current, below = thing, thing
    for _ in range(FURTHEST):
        outer = _holder(current, passed)
        if outer is None:
            break
        passed.add(id(outer))
        named = _named(outer, current)
        if named is not None:
            said.append(named)
        below, current = current, outer
        if _module(outer) is not None:
            break
    del below
    return " in ".join(said)


def _holder(thing: Any, passed: Iterable[int]) -> Any:
    """Return what holds *thing*: not a function that runs, nor what looks for it."""
    found = None
    for outer in gc.get_referrers(thing):
        if id(outer) in passed or isinstance(outer, types.FrameType):
            continue
        if type(outer).__module__.startswith("llmtrace.bench.kv"):
            continue
        found = outer if found is None or _module(outer) is not None else found
    return found


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
        name = f"`{names[0]}`" if names else "a dict"
        module = _module(outer)
        return f"{name} of module {module}" if module else name
    return _class(outer)


def _class(thing: Any) -> str:
    return type(thing).__name__

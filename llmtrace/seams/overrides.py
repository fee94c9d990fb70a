"""Models with a ``generate()`` of their own: about 45 of transformers', and users' classes.

They mostly end in ``super().generate()``, another model's ``generate()`` or a decoding method,
often several times. Wrapped are the classes that exist when we are turned on, and each later one
as it is defined; the patch set puts them all back.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

from llmtrace.guard import guard
from llmtrace.seams.patching import PatchSet
from llmtrace.seams.wrapping import Wrapper

_TO_A_LOOP = frozenset(
    {"super", "generate", "_sample", "_greedy_search", "greedy_search", "_beam_search"}
)
_TO_A_LOOP_BEGINS = ("generate_", "_main_generate")


def install(patches: PatchSet, base: type, wrapper: Wrapper) -> None:
    """Wrap every ``generate()`` that a descendant of *base* has of its own, now and later.

    Args:
        patches: Receives the wrappers.
        base: ``GenerationMixin``, which defines no ``__init_subclass__`` in any release.
        wrapper: What to wrap them with.
    """

    def cover(cls: type) -> None:
        for owner in cls.__mro__:
            if owner is not base and _reaches_a_loop(vars(owner).get("generate")):
                patches.wrap(owner, "generate", wrapper)

    def __init_subclass__(cls: Any, /, **kwargs: Any) -> None:  # noqa: N807
        super(base, cls).__init_subclass__(**kwargs)  # type: ignore[arg-type]
        if patches.enabled:
            guard.call("looking at a new model class", cover, cls)

    patches.add(base, "__init_subclass__", classmethod(__init_subclass__))
    for cls in _descendants(base):
        guard.call("looking at a model class", cover, cls)


def _descendants(base: type) -> Iterator[type]:
    cls: type
    for cls in type.__subclasses__(base):
        yield cls
        yield from _descendants(cls)


def _reaches_a_loop(function: Any) -> bool:
    """Whether *function* calls what leads to a decoding loop that we see.

    Some models' ``generate()`` yields no tokens (speech frames, time series): no request.
    """
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return code is not None and any(
        name in _TO_A_LOOP or name.startswith(_TO_A_LOOP_BEGINS) for name in _names(code)
    )


def _names(code: CodeType) -> Iterator[str]:
    """Return the names that *code* uses, and those of comprehensions and functions inside it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)

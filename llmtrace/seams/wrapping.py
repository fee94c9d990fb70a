"""wrapt wrappers that survive what applications do with methods."""

from __future__ import annotations

import copy
import importlib
import operator
from collections.abc import Callable
from typing import Any

import wrapt

Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]


def _import_qualified(module: str, qualified_name: str) -> Any:
    return operator.attrgetter(qualified_name)(importlib.import_module(module))


# wrapt 2 has generic types, wrapt 1 has none at all: neither can be subclassed with types.
_FunctionWrapper: Any = wrapt.FunctionWrapper
_BoundFunctionWrapper: Any = wrapt.BoundFunctionWrapper


class _Bound(_BoundFunctionWrapper):  # type: ignore[misc]
    """A bound method that can be copied and pickled like any other.

    wrapt's own refuses both, which breaks ``copy.deepcopy`` of any object that keeps
    ``model.generate`` in an attribute, and ``Process(target=model.generate)`` under spawn.
    """

    def __reduce_ex__(self, protocol: Any) -> Any:
        owner = getattr(self, "__self__", None)
        if owner is None:
            return _import_qualified, (self.__module__, self.__qualname__)
        return getattr, (owner, self.__name__)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        owner = getattr(self, "__self__", None)
        if owner is None:
            return self
        return getattr(copy.deepcopy(owner, memo), self.__name__)


class MethodWrapper(_FunctionWrapper):  # type: ignore[misc]
    """A ``wrapt.FunctionWrapper`` whose bound methods can be copied and pickled."""

    __bound_function_wrapper__ = _Bound

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _import_qualified, (self.__module__, self.__qualname__)

"""Assisted decoding: how many candidate tokens are proposed, and how many are kept."""

from __future__ import annotations

from typing import Any

import wrapt

from llmtrace.guard import guard
from llmtrace.recording.request import RequestInfo

_ObjectProxy: Any = getattr(wrapt, "BaseObjectProxy", wrapt.ObjectProxy)


class Candidates(_ObjectProxy):  # type: ignore[misc]
    """Stands for a request's candidate generator; reads shapes only, which are on the host."""

    def __init__(self, generator: Any, info: RequestInfo) -> None:
        super().__init__(generator)
        self._self_info = info
        self._self_length: int | None = None

    def get_candidates(self, *args: Any, **kwargs: Any) -> Any:
        """Pass on, and count what is proposed."""
        found = self.__wrapped__.get_candidates(*args, **kwargs)
        guard.call("counting candidates", self._self_proposed, _ids(args, kwargs), found)
        return found

    def update_candidate_strategy(self, *args: Any, **kwargs: Any) -> Any:
        """Pass on, and count what was kept: all new tokens but the model's own one."""
        guard.call("counting candidates", self._self_kept, _ids(args, kwargs))
        return self.__wrapped__.update_candidate_strategy(*args, **kwargs)

    def _self_proposed(self, ids: Any, found: Any) -> None:
        candidates = found[0] if isinstance(found, tuple) else found
        self._self_length = ids.shape[1]
        info = self._self_info
        info.assisted_drafted = (info.assisted_drafted or 0) + candidates.shape[1] - ids.shape[1]

    def _self_kept(self, ids: Any) -> None:
        if self._self_length is not None:
            info = self._self_info
            kept = max(ids.shape[1] - self._self_length - 1, 0)
            info.assisted_accepted = (info.assisted_accepted or 0) + kept


def _ids(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs["input_ids"]

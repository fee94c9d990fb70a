"""What transformers' continuous batching keeps, by release: read, never written.

4.53 to 4.57 call a request's tokens ``full_prompt_ids`` and ``static_outputs``, later releases
``initial_tokens`` and ``generated_tokens``. 5.3 put what is in a step into objects of its own, and
into a pair of buffers where it prepares a step while another runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class States:
    """Reads the scheduler's state of a request.

    After a preemption the tokens made before are at the end of the new state's prompt.
    """

    def __init__(self, request_state: type) -> None:
        new = "initial_tokens" in getattr(request_state, "__dataclass_fields__", ())
        self._prompt = "initial_tokens" if new else "full_prompt_ids"
        self._generated = "generated_tokens" if new else "static_outputs"

    def prompt(self, state: Any) -> list[int]:
        """Return the tokens to prefill."""
        return getattr(state, self._prompt)  # type: ignore[no-any-return]

    def count(self, state: Any, length: int) -> int:
        """Return how many tokens have been generated for a prompt of *length* tokens."""
        return len(self.prompt(state)) - length + len(getattr(state, self._generated))

    def tokens(self, state: Any, length: int) -> list[int]:
        """Return the tokens generated for a prompt of *length* tokens."""
        return [*self.prompt(state)[length:], *getattr(state, self._generated)]


def stop_ids(state: Any) -> frozenset[int]:
    """Return the ids that end a request; ids below 0 stand for none."""
    eos = getattr(state, "eos_token_id", None)
    ids = eos if isinstance(eos, (list, tuple, set)) else () if eos is None else (eos,)
    return frozenset(token for token in ids if isinstance(token, int) and token >= 0)


def in_step(processor: Any) -> Sequence[Any]:
    """Return what a processor has put into the step that it prepared last, or nothing.

    The items are states, or hold one as ``state``. The list is a new one for each step.
    """
    buffers = getattr(processor, "inputs_and_outputs", None)
    if buffers is None:
        return getattr(processor, "requests_in_batch", ())
    pairs = getattr(buffers, "io_pairs", None)
    if pairs is not None:
        buffers = pairs[buffers.current_pair].host_io
    return getattr(buffers, "requests_in_batch", ())


def compute_stream(processor: Any) -> Any:
    """Return the stream that steps are computed on, or None for the thread's current one."""
    return getattr(getattr(processor, "inputs_and_outputs", None), "compute_stream", None)


def cache_usage(cache: Any) -> float | None:
    """Return the share of a paged cache's blocks that are in use."""
    free = getattr(cache, "compute_free_capacity", None)
    if free is not None:
        return 1.0 - float(free())
    total, free = getattr(cache, "num_blocks", None), getattr(cache, "get_num_free_blocks", None)
    if not total or free is None:
        return None
    return 1.0 - free() / total  # type: ignore[no-any-return]

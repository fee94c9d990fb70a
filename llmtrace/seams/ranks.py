"""Which rank of a distributed run this process is, and which requests are one across ranks.

Nothing is sent between ranks. With tensor parallelism every rank of a group calls ``generate()``
for the same requests in the same order, so the same name for a request follows on each from what
they have in common: the launcher, the group, and how many such requests there were before.
"""

from __future__ import annotations

import hashlib
import os
from itertools import count
from typing import Any

from llmtrace.recording.request import RequestInfo

_requests = count()


def read_ranks(info: RequestInfo, model: Any, shape: tuple[int, ...]) -> None:
    """Note this process's rank and, of a tensor-parallel model's request, its common name.

    Args:
        info: Receives them.
        model: The request's model.
        shape: Of its prompt; ranks whose prompts differ in shape do not serve the same request.
    """
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    if rank is None or size is None or size < 2:  # noqa: PLR2004
        return
    info.rank, info.world_size = rank, size
    group = getattr(model, "tp_size", None)
    if isinstance(group, int) and group > 1:
        common = (*_launcher(), rank // group, next(_requests), shape)
        info.ranks_request = hashlib.sha256(repr(common).encode()).hexdigest()[:48]
        info.first_rank = rank % group == 0


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None


def _launcher() -> tuple[str, ...]:
    """Return what ranks of one run share, and ranks of different runs do not.

    torchrun's run id is unique only where it made it up; then the parent process helps, which
    the ranks of one machine share.
    """
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    shared = tuple(os.environ.get(name, "") for name in names)
    return shared if len(shared[0]) > len("none") else (*shared, str(os.getppid()))

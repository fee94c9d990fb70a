"""The ``request()`` block around here: where TTFT from the request counts from."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(slots=True)
class Block:
    """A ``request()`` block that is open."""

    start_ns: int
    outer: Block | None = None
    """The block around this one."""
    attributes: dict[str, str | bool | int | float] = field(default_factory=dict)
    generates: int = 0
    """``generate()`` calls made inside: each is a request of its own."""
    closed: bool = False


current_block: ContextVar[Block | None] = ContextVar("llmtrace_block", default=None)


def block_start() -> int | None:
    """Return when the enclosing block began, host clock, and count a request into it."""
    block = current_block.get()
    if block is None or block.closed:
        return None
    block.generates += 1
    return block.start_ns


def block_attributes() -> dict[str, str | bool | int | float]:
    """Return the attributes given to the enclosing block."""
    block = current_block.get()
    return {} if block is None or block.closed else dict(block.attributes)

"""Memory: how much is held, whether a second model fits, what can be given back."""

from __future__ import annotations

import gc
from typing import Any

import psutil

from llmtrace.bench.models import Subject

SPARE = 1.2
"""So much more than its weights a second model is expected to take."""


def devices(subject: Subject) -> list[Any]:
    """Return the CUDA devices that a model lies on."""
    found = {p.device for p in subject.model.parameters()}
    return sorted((d for d in found if d.type == "cuda"), key=str)


def allocated(subject: Subject) -> int:
    """Return the bytes that are allocated on a model's devices, by whatever it is."""
    import torch

    return sum(torch.cuda.memory_allocated(d) for d in devices(subject))


def fits_beside(subject: Subject) -> bool:
    """Say whether a second model of this size fits into memory beside it."""
    weights = sum(p.numel() * p.element_size() for p in subject.model.parameters())
    found = devices(subject)
    if not found:
        return bool(psutil.virtual_memory().available > SPARE * weights)
    import torch

    tidy()
    free = sum(torch.cuda.mem_get_info(d)[0] for d in found)
    return bool(free > SPARE * weights)


def forget_compiled(subject: Subject) -> None:
    """Let go of compiled calls and their CUDA graphs."""
    import torch

    for name in ("_compiled_call", "_last_compile_config"):
        vars(subject.model).pop(name, None)
    torch.compiler.reset()


def tidy() -> None:
    """Give back memory that nothing uses."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

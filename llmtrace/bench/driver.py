"""Which of the driver's GPUs is which of torch's: CUDA_VISIBLE_DEVICES makes them differ."""

from __future__ import annotations

import os
from typing import Any


def driver_name(index: int) -> str | None:
    """Return by what the driver knows torch's GPU *index*; None where that cannot be known."""
    import torch

    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    if uuid is not None:
        return f"GPU-{str(uuid).removeprefix('GPU-')}"
    # Older releases of torch do not tell; the driver counts all GPUs, torch the visible ones.
    return None if os.environ.get("CUDA_VISIBLE_DEVICES") else str(index)


def handle_of(nvml: Any, name: str) -> Any:
    """Return the driver's handle of the GPU that :func:`driver_name` named.

    Raises:
        NVMLError: The driver does not know it.
    """
    if name.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    return nvml.nvmlDeviceGetHandleByUUID(name)

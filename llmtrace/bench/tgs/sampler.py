"""Reads the use of CPU and GPU every tenth of a second, in a process of its own.

Not a thread: one would take Python's lock from what is measured. Run by
:class:`llmtrace.bench.tgs.resources.Sampling`; writes JSON lines until its parent is gone or it is
told to end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil

from llmtrace.bench.driver import handle_of


def gpu_reader(name: str = "") -> Callable[[], dict[str, float]]:
    """Return what reads the GPU that the driver knows by *name*; without one it finds nothing."""
    if not name:
        return dict
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        handle = handle_of(nvml, name)
    except Exception:  # noqa: BLE001 - no driver, no GPU: nothing to read
        return dict

    def read() -> dict[str, float]:
        found: dict[str, float] = {}
        with suppress(nvml.NVMLError):
            use = nvml.nvmlDeviceGetUtilizationRates(handle)
            found |= {"gpu_percent": use.gpu, "gpu_memory_bandwidth_percent": use.memory}
        with suppress(nvml.NVMLError):
            found["gpu_memory_bytes"] = int(nvml.nvmlDeviceGetMemoryInfo(handle).used)
        with suppress(nvml.NVMLError):
            found["gpu_power_w"] = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
        return found

    return read


def main(argv: list[str]) -> int:
    """Sample every *argv[1]* seconds until the process *argv[0]* is gone; *argv[2]*: the GPU."""
    parent, interval = int(argv[0]), float(argv[1])
    process = psutil.Process(parent)
    read_gpu = gpu_reader(*argv[2:])
    psutil.cpu_percent()
    process.cpu_percent()
    due = time.monotonic()
    with suppress(psutil.NoSuchProcess, BrokenPipeError, KeyboardInterrupt):
        while os.getppid() == parent:
            due += interval
            time.sleep(max(0.0, due - time.monotonic()))
            sample: dict[str, Any] = {
                "unix_ns": time.time_ns(),
                "cpu_percent": psutil.cpu_percent(),
                "process_cpu_percent": process.cpu_percent(),
                "process_memory_bytes": process.memory_info().rss,
                **read_gpu(),
            }
            sys.stdout.write(json.dumps(sample) + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

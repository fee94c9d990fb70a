"""What a run's figures hang on: versions, devices, their limits and clocks, the processor."""

from __future__ import annotations

import datetime as dt
import os
import platform
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from llmtrace.bench.driver import driver_name, handle_of
from llmtrace.version import __version__

PACKAGES = ("torch", "transformers", "accelerate", "bitsandbytes", "tokenizers", "flash-attn")


def environment() -> dict[str, Any]:
    """Return the environment; what cannot be found out is left out."""
    import torch

    found: dict[str, Any] = {
        "date": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "llmtrace": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": _versions(),
        "cpu": {
            "model": _cpu_model(),
            "cores": os.cpu_count(),
            "governor": _first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            "torch_threads": torch.get_num_threads(),
            "load_1_min": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        },
        "gpus": gpus(),
    }
    if torch.cuda.is_available():
        found["cuda"] = torch.version.cuda
    return found


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _first_line(file: str) -> str | None:
    with suppress(OSError):
        return Path(file).read_text(encoding="utf-8").strip()
    return None


def gpus() -> list[dict[str, Any]]:
    """Return what the driver says of each visible GPU, and torch where it says nothing."""
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    found: list[dict[str, Any]] = [{"name": name} for name in names]
    with suppress(Exception):  # no driver, or one that refuses a question: the names are there
        import pynvml

        pynvml.nvmlInit()
        for index, gpu in enumerate(found):
            name = driver_name(index)
            if name is not None:
                gpu.update(_of_driver(pynvml, handle_of(pynvml, name)))
    return found


def _of_driver(nvml: Any, handle: Any) -> dict[str, Any]:
    questions = {
        "driver": nvml.nvmlSystemGetDriverVersion,
        "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "memory_bytes": lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        "utilization_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "other_processes": lambda: _others(nvml, handle),
    }
    found = {}
    for name, ask in questions.items():
        with suppress(nvml.NVMLError):
            found[name] = ask()
    return found


def _others(nvml: Any, handle: Any) -> int:
    """Return how many other processes compute on the device."""
    running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return sum(process.pid != os.getpid() for process in running)

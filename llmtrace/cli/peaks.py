"""``llmtrace peaks``: what this machine's device really reaches, for MBU and MFU."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from llmtrace.cli.extras import require
from llmtrace.errors import LlmtraceError
from llmtrace.hardware import peaks_of

REPEATS = 20
COPY_BYTES = 2**30
MATRIX = 8192
GB = 1e9
TERA = 1e12


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "peaks",
        help="measure a CUDA device's memory bandwidth and matrix rate",
        description="Measure what a CUDA device reaches: a copy of 1 GiB within its memory, bytes "
        "read and written counted, and a product of two 8192 x 8192 bfloat16 matrices of random "
        "numbers; medians of 20. Prints the setting that makes MBU and MFU use them.",
    )
    parser.add_argument("--device", default="cuda:0", help="the device (default: cuda:0)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    require("torch")
    import torch

    try:
        device = torch.device(arguments.device)
    except RuntimeError as error:
        raise LlmtraceError(f"--device {arguments.device}: {str(error).splitlines()[0]}") from None
    if device.type != "cuda" or (device.index or 0) >= torch.cuda.device_count():
        raise LlmtraceError(
            f"--device {arguments.device}: there is no such CUDA device here "
            f"({torch.cuda.device_count()} found)"
        )
    name = torch.cuda.get_device_name(device)
    bandwidth, flops = _measure(torch, device)
    listed = peaks_of(name)
    setting = f"{bandwidth:.3g},{flops:.3g}"
    if arguments.json:
        result = {
            "device": name,
            "bandwidth_bytes_per_s": bandwidth,
            "bfloat16_flop_per_s": flops,
            "datasheet_bandwidth_bytes_per_s": listed.bandwidth if listed else None,
            "datasheet_bfloat16_flop_per_s": listed.flops_of("bfloat16") if listed else None,
            "setting": setting,
        }
        print(json.dumps(result))
        return 0
    print(f"{name}: copy {bandwidth / GB:.0f} GB/s, bfloat16 matrices {flops / TERA:.0f} TFLOP/s")
    if listed is not None:
        half = (listed.flops_of("bfloat16") or 0) / TERA
        print(f"datasheet: {listed.bandwidth / GB:.0f} GB/s, {half:.0f} TFLOP/s")
    print(f"LLMTRACE_PEAKS={setting}")
    return 0


def _measure(torch: Any, device: Any) -> tuple[float, float]:
    """Return bytes per second of a copy and operations per second of a matrix product."""
    with torch.cuda.device(device):
        source, target = (torch.randn(COPY_BYTES // 4, device=device) for _ in "ab")
        copied = _median_s(torch, lambda: target.copy_(source))
        a, b = (torch.randn(MATRIX, MATRIX, device=device, dtype=torch.bfloat16) for _ in "ab")
        multiplied = _median_s(torch, lambda: a @ b)
    return 2 * COPY_BYTES / copied, 2 * MATRIX**3 / multiplied


def _median_s(torch: Any, work: Callable[[], Any]) -> float:
    """Return the device time of *work*, in seconds."""
    times = []
    for _ in range(REPEATS + 3):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in "ab")
        begun.record()
        work()
        ended.record()
        ended.synchronize()
        times.append(begun.elapsed_time(ended) / 1e3)
    warm = sorted(times[3:])
    return float(warm[len(warm) // 2])

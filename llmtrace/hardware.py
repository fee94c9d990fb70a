"""Peak rates of accelerators, from their vendors' datasheets: dense, without sparsity.

Rates that a machine really reaches are lower: ``llmtrace peaks`` measures them, and the setting
``peaks`` puts them in the place of these.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peaks:
    """What a device can do at most."""

    bandwidth: float
    """Bytes per second between the device's memory and its cores."""
    flops: dict[str, float]
    """Operations per second of matrix products, by the type of their operands."""

    def flops_of(self, dtype: str | None) -> float | None:
        """Return the peak for operands of *dtype*, a torch name or ``int8``."""
        return self.flops.get("any") or (self.flops.get(dtype) if dtype else None)


def _peaks(bandwidth_gb: float, half: float, single: float, int8: float | None = None) -> Peaks:
    """Return peaks from GB/s and TFLOP/s.

    Args:
        bandwidth_gb: GB/s.
        half: TFLOP/s of float16 and, from Ampere on, bfloat16.
        single: TFLOP/s of float32 without TF32, which transformers leaves off.
        int8: Tera-operations per second of int8.
    """
    flops = {"float16": half * 1e12, "bfloat16": half * 1e12, "float32": single * 1e12}
    if int8 is not None:
        flops["int8"] = int8 * 1e12
    return Peaks(bandwidth_gb * 1e9, flops)


_TABLE = (
    # Looked for in the device's name, in this order.
    ("B200", _peaks(8000, 2250, 80, 4500)),
    ("GH200", _peaks(4000, 989.4, 67, 1979)),
    ("H200 NVL", _peaks(4800, 835.5, 60, 1671)),
    ("H200", _peaks(4800, 989.4, 67, 1979)),
    ("H100 NVL", _peaks(3900, 835.5, 60, 1671)),
    ("H100 PCIe", _peaks(2000, 756, 51, 1513)),
    ("H100", _peaks(3350, 989.4, 67, 1979)),
    ("H20", _peaks(4000, 148, 44, 296)),
    ("A100-SXM4-80GB", _peaks(2039, 312, 19.5, 624)),
    ("A100 80GB PCIe", _peaks(1935, 312, 19.5, 624)),
    ("A100", _peaks(1555, 312, 19.5, 624)),
    ("A10G", _peaks(600, 70, 35, 140)),
    ("A10", _peaks(600, 125, 31.2, 250)),
    ("A30", _peaks(933, 165, 10.3, 330)),
    ("A40", _peaks(696, 149.7, 37.4, 299.3)),
    ("RTX A6000", _peaks(768, 154.8, 38.7, 309.7)),
    ("L40S", _peaks(864, 362, 91.6, 733)),
    ("L40", _peaks(864, 181, 90.5, 362)),
    ("L4", _peaks(300, 121, 30.3, 242.5)),
    ("Tesla T4", Peaks(320e9, {"float16": 65e12, "float32": 8.1e12, "int8": 130e12})),
    ("V100-SXM2", Peaks(900e9, {"float16": 125e12, "float32": 15.7e12})),
    ("V100-PCIE", Peaks(900e9, {"float16": 112e12, "float32": 14e12})),
    ("RTX 3090", _peaks(936, 71, 35.6, 284)),
    ("RTX 4090", _peaks(1008, 165.2, 82.6, 660.6)),
    ("RTX 5090", _peaks(1792, 209.5, 104.8, 838)),
    ("MI300X", _peaks(5300, 1307.4, 163.4, 2614.9)),
)


def peaks_of(name: str | None) -> Peaks | None:
    """Return the datasheet's peaks of the device called *name*, or None for one not listed."""
    if name is None:
        return None
    words = name.replace("-", " ").split()
    for known, peaks in _TABLE:
        parts = known.replace("-", " ").split()
        if any(words[i : i + len(parts)] == parts for i in range(len(words))):
            return peaks
    return None


def parse_peaks(text: str) -> Peaks:
    """Return peaks given as ``BYTES_PER_S[,FLOP_PER_S]``.

    Raises:
        ValueError: The text is not of that form.
    """
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if len(rates) not in {1, 2} or not all(0 < rate < float("inf") for rate in rates):
        raise ValueError("is not BYTES_PER_S[,FLOP_PER_S], such as 4.3e12,7.9e14")
    return Peaks(rates[0], {"any": rates[1]} if len(rates) > 1 else {})

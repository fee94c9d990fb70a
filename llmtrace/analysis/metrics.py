"""What each metric means: formula and unit, once.

The formulas are those of docs/glossary.md. ``t0`` is the entry of ``generate()``, ``t1 .. tn`` are
the times at which output tokens were selected, ``n`` is how many there are.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric."""

    name: str
    """As it is called everywhere."""
    unit: str
    """Of the numbers in a report object: ``s``, ``token/s``, ``1``."""
    formula: str


TTFT = MetricSpec("TTFT", "s", "t1 - t0: entry of generate() to first token selected")
ITL = MetricSpec("ITL", "s", "t[i+1] - t[i]: gap between output tokens of a row")
TPOT = MetricSpec("TPOT", "s", "(tn - t1) / (n - 1)")
E2E = MetricSpec("E2E", "s", "tn - t0: to the last token")
PREFILL = MetricSpec(
    "prefill",
    "s",
    "start of the first forward to end of the one that yields the first token",
)
TGS_REQUEST = MetricSpec("TGS request", "token/s", "n / (tn - t0), n over all rows")
TGS_DECODE = MetricSpec("TGS decode", "token/s", "(n - 1) / (tn - t1), n - 1 summed over all rows")
TGS_SYSTEM = MetricSpec(
    "TGS system",
    "token/s",
    "output tokens of all rows / time in which at least one request was running",
)
HOST_BOUND = MetricSpec(
    "host-bound",
    "1",
    "share of decode steps with launch lead < 200 us: the device waited for Python",
)
MBU = MetricSpec("MBU", "1", "bytes a decode step must read / (TPOT x the device's peak bandwidth)")
MFU = MetricSpec(
    "MFU", "1", "operations the prefill needs / (prefill time x the device's peak rate)"
)

ALL = (TTFT, ITL, TPOT, E2E, PREFILL, HOST_BOUND, MBU, MFU, TGS_REQUEST, TGS_DECODE, TGS_SYSTEM)
"""In the order in which a report shows them."""

OPTIONAL = (HOST_BOUND, MBU, MFU)
"""Not said where no request has them: not every device tells."""

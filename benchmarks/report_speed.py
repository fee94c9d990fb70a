"""Time and memory of ``llmtrace report`` on files of 10,000, 100,000 and 1,000,000 spans.

Each file is written by make_traces.py and reported in a process of its own, whose elapsed time,
processor time and largest resident set are taken. Limits for a million spans: 20 s and 1 GB; and
cost must grow no faster than the number of spans.

    python benchmarks/report_speed.py [--spans N ...] [--runs N] [--folder DIR] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from make_traces import write

TOKENS = 500
LIMIT_S = 20.0
LIMIT_BYTES = 1e9
LIMIT_SPANS = 1_000_000
LINEAR = 1.3
"""Ten times the spans may take so many times ten times the time, start-up left out."""


def measure(path: Path) -> dict[str, float]:
    """Return the cost of one report of *path*: seconds and bytes."""
    command = [sys.executable, "-m", "llmtrace", "report", "--json", str(path)]
    begun = time.perf_counter()
    child = os.posix_spawn(
        sys.executable,
        command,
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, usage = os.wait4(child, 0)
    elapsed = time.perf_counter() - begun
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"llmtrace report {path} failed")
    return {
        "elapsed_s": elapsed,
        "processor_s": usage.ru_utime + usage.ru_stime,
        # Kilobytes on Linux, bytes on macOS.
        "resident_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    }


def measure_all(sizes: list[int], runs: int, folder: Path) -> list[dict[str, float]]:
    found = []
    for spans in sizes:
        path = folder / f"traces-{spans}.jsonl"
        written = write(path, spans, TOKENS, seed=1)
        costs = [measure(path) for _ in range(runs)]
        found.append(
            {
                "spans": written,
                "file_bytes": path.stat().st_size,
                **{name: statistics.median(cost[name] for cost in costs) for name in costs[0]},
            }
        )
    return found


def faults(found: list[dict[str, float]]) -> list[str]:
    """Return what is beyond its limit."""
    said = []
    for row in found:
        share = max(row["spans"] / LIMIT_SPANS, 1.0)
        if row["elapsed_s"] > LIMIT_S * share:
            said.append(f"{row['spans']:,} spans: {row['elapsed_s']:.1f} s")
        if row["resident_bytes"] > LIMIT_BYTES * share:
            said.append(f"{row['spans']:,} spans: {row['resident_bytes'] / 1e6:,.0f} MB")
    if len(found) > 2:
        first, *_, before, last = found
        start = first["processor_s"]
        growth = (last["processor_s"] - start) / (before["processor_s"] - start)
        spans = (last["spans"] - first["spans"]) / (before["spans"] - first["spans"])
        if growth > LINEAR * spans:
            said.append(f"{growth:.1f} times the time for {spans:.1f} times the spans")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spans", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--runs", type=int, default=3, help="median of so many (%(default)s)")
    parser.add_argument("--folder", help="where to keep the files; else they are deleted")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.folder:
        Path(arguments.folder).mkdir(parents=True, exist_ok=True)
        found = measure_all(arguments.spans, arguments.runs, Path(arguments.folder))
    else:
        with tempfile.TemporaryDirectory() as folder:
            found = measure_all(arguments.spans, arguments.runs, Path(folder))
    if arguments.json:
        print(json.dumps({"cpus": os.cpu_count(), "reports": found}, indent=2))
    else:
        print(f"{'spans':>10} {'file MB':>8} {'elapsed s':>10} {'cpu s':>8} {'resident MB':>12}")
        for row in found:
            print(
                f"{row['spans']:10,} {row['file_bytes'] / 1e6:8,.0f} {row['elapsed_s']:10.2f} "
                f"{row['processor_s']:8.2f} {row['resident_bytes'] / 1e6:12,.0f}"
            )
    beyond = faults(found)
    for fault in beyond:
        print(f"beyond its limit: {fault}", file=sys.stderr)
    return int(bool(beyond))


if __name__ == "__main__":
    sys.exit(main())

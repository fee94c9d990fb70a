"""Samples of what the machine was doing, over a level's time and beside its tokens."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from llmtrace.analysis.summary import Summary, Values, summarise
from llmtrace.records import RequestRecord

if TYPE_CHECKING:
    from typing_extensions import Self

FILE = "tgs-resources.jsonl"
INTERVAL_S = 0.1
START_S = 10.0
"""The sampler is waited for so long, at most."""
END_S = 5.0
BINS = 40
"""Parts of a level's time in the heat map."""
WINDOW_S = 0.5
FEWEST_WINDOWS = 8
"""From fewer windows a correlation says nothing."""

RESOURCES = {
    "gpu_percent": "GPU use, %",
    "gpu_memory_bandwidth_percent": "GPU memory bandwidth use, %",
    "gpu_memory_bytes": "GPU memory, GB",
    "gpu_power_w": "GPU power, W",
    "cpu_percent": "CPU use of the machine, %",
    "process_cpu_percent": "CPU use of this process, % of one core",
    "process_memory_bytes": "memory of this process, GB",
}


class Sampling:
    """Samples resources into a file while a block runs."""

    def __init__(self, folder: Path, parent: int, gpu: str | None = None) -> None:
        """Say what to sample.

        Args:
            folder: Where :data:`FILE` is written.
            parent: The process that is measured, which this one is.
            gpu: As :func:`llmtrace.bench.driver.driver_name` names it; None: no GPU.
        """
        self._file = folder / FILE
        self._gpu = gpu or ""
        self._parent = parent
        self._stream: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._stream = self._file.open("wb")
        command = [sys.executable, "-m", "llmtrace.bench.tgs.sampler"]
        # A session of its own: Ctrl-C is for the measurement, which then ends this.
        self._process = subprocess.Popen(  # noqa: S603 - ourselves
            [*command, str(self._parent), str(INTERVAL_S), self._gpu],
            stdout=self._stream,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        limit = time.monotonic() + START_S
        try:
            while not self.samples() and self._process.poll() is None and time.monotonic() < limit:
                time.sleep(INTERVAL_S / 10)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        if self._process is None or self._stream is None:
            return
        try:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
        finally:  # Ctrl-C once more, or it does not listen
            self._process.kill()
            self._process.wait()
            self._stream.close()

    def samples(self) -> list[dict[str, Any]]:
        """Return what has been sampled; a last line that is not whole is left out."""
        found = []
        for line in self._file.read_bytes().splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
        return found


def within(
    samples: Sequence[Mapping[str, Any]], begun_ns: int, ended_ns: int
) -> list[Mapping[str, Any]]:
    """Return the samples between two times since the epoch."""
    return [s for s in samples if begun_ns <= s["unix_ns"] <= ended_ns]


def use(samples: Sequence[Mapping[str, Any]]) -> dict[str, Summary | None]:
    """Return each resource's distribution; only of resources that were there."""
    names = [name for name in RESOURCES if any(name in s for s in samples)]
    return {name: summarise(s.get(name) for s in samples) for name in names}


def over_time(
    samples: Sequence[Mapping[str, Any]], name: str, begun_ns: int, ended_ns: int
) -> list[float | None]:
    """Return a resource's mean in each of :data:`BINS` equal parts of the time.

    A sample stands for the time since the one before it: a part without a sample of its own has
    the next one. After the last sample there is nothing.
    """
    known = [s for s in samples if name in s]
    width = max(1, ended_ns - begun_ns) / BINS
    parts: list[list[float]] = [[] for _ in range(BINS)]
    for sample in known:
        place = int((sample["unix_ns"] - begun_ns) / width)
        if 0 <= place < BINS:
            parts[place].append(float(sample[name]))
    found: list[float | None] = []
    for part in reversed(parts):
        after = found[-1] if found else None
        found.append(sum(part) / len(part) if part else after)
    return found[::-1]


def correlation(
    samples: Sequence[Mapping[str, Any]], records: Sequence[RequestRecord], name: str
) -> float | None:
    """Return how a resource's use goes with the gaps between tokens, -1 to 1.

    Formula:
        Pearson's r over windows of half a second: mean of the resource's samples against the mean
        of the gaps that ended in the window.

    Returns:
        None from fewer than 8 windows, or where one of both never changed.
    """
    ends, gaps = _gaps(records)
    at = np.array([s["unix_ns"] for s in samples if name in s], dtype=np.float64) / 1e9
    values = np.array([s[name] for s in samples if name in s], dtype=np.float64)
    if not at.size or not ends.size:
        return None
    origin = min(at.min(), ends.min())
    windows = int((max(at.max(), ends.max()) - origin) / WINDOW_S) + 1
    used, of_gaps = (
        _means(((times - origin) / WINDOW_S).astype(np.int64), each, windows)
        for times, each in ((at, values), (ends, gaps))
    )
    both = ~np.isnan(used) & ~np.isnan(of_gaps)
    used, of_gaps = used[both], of_gaps[both]
    if used.size < FEWEST_WINDOWS or not used.std() or not of_gaps.std():
        return None
    return float(np.corrcoef(used, of_gaps)[0, 1])


def _gaps(records: Sequence[RequestRecord]) -> tuple[Values, Values]:
    """Return when gaps ended, seconds since the epoch, and how long they were."""
    ends, gaps = [np.empty(0)], [np.empty(0)]
    for record in records:
        if record.ttft_s is not None and record.itl_s:
            each = np.array(record.itl_s)
            ends.append(record.start_unix_ns / 1e9 + record.ttft_s + np.cumsum(each))
            gaps.append(each)
    return np.concatenate(ends), np.concatenate(gaps)


def _means(place: Any, values: Values, windows: int) -> Values:
    counts = np.bincount(place, minlength=windows)
    sums = np.bincount(place, values, windows)
    means: Values = np.divide(sums, counts, out=np.full(windows, np.nan), where=counts > 0)
    return means

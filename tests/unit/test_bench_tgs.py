"""Rates with several requests at a time, on times that a test decides; no torch."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from llmtrace.bench.tgs import resources
from llmtrace.bench.tgs.evaluation import evaluate, requests_of, steady_of
from llmtrace.bench.tgs.load import Job, Level, Run, arrivals_s
from llmtrace.bench.tgs.running import Measured
from tests.unit.requests import SECOND, request

PROMPT = SimpleNamespace(tokens=10)


def measured(level, *spans, tokens=(0.1, 0.2, 0.3, 0.4), due=None):
    """A level whose requests run in *spans*, seconds; tokens are at shares of each span."""
    run, records = Run(level), []
    for i, (begun, ended) in enumerate(spans):
        job = Job(i, PROMPT, submitted_ns=round(begun * SECOND), begun_ns=round(begun * SECOND) + i)
        job.ended_ns = round(ended * SECOND)
        if due is not None:
            job.due_ns = round(due[i] * SECOND)
            job.submitted_ns = job.due_ns
        run.jobs.append(job)
        times = [share * (ended - begun) for share in tokens]
        records.append(request(*times, start=begun, duration=ended - begun))
    ends = max(ended for _, ended in spans)
    return Measured(run, records, 0, round(ends * SECOND))


def closed(n, mechanism="threads", requests=8):
    return Level(n, mechanism, requests)


class TestArrivals:
    def test_a_poisson_process_of_that_rate(self):
        """The same by seed, the first one at once, on average as many as asked for."""
        first = arrivals_s(10, 2001, seed=1)
        assert first == arrivals_s(10, 2001, seed=1)
        assert first != arrivals_s(10, 2001, seed=2)
        assert first[0] == 0
        assert first == sorted(first)
        assert first[-1] == pytest.approx(200, rel=0.1)


class TestSteady:
    def test_only_the_time_in_which_all_are_at_work(self):
        """Ramp and tail, in which fewer run, are in the system's rate but not in this one."""
        one = measured(closed(2), (0, 10), (5, 15), tokens=[i / 10 for i in range(1, 11)])
        steady = steady_of(closed(2), one.records)
        assert steady.seconds == pytest.approx(5)
        assert steady.share == pytest.approx(1 / 3)
        assert steady.tgs == pytest.approx(10 / 5)

    def test_time_without_a_token_counts(self):
        """Of a ramp in which prompts are read, no token tells: it is not steady all the same."""
        one = measured(closed(2), (0, 10), (5, 15), tokens=[])
        times = [6, 7, 8, 9, 10], [1, 2, 3, 4, 5]
        one.records = [
            request(*at, start=start, duration=10) for start, at in zip((0, 5), times, strict=True)
        ]
        steady = steady_of(closed(2), one.records)
        assert (steady.seconds, steady.share) == (pytest.approx(5), pytest.approx(1 / 3))
        assert steady.tgs == pytest.approx(10 / 5)

    def test_batches_that_have_all_rows(self):
        """A last batch with fewer rows is not steady."""
        full = request(1, 2, batch_size=2, output_tokens=4, output_tokens_per_row=(2, 2))
        rest = request(1, 2, start=2, batch_size=1)
        steady = steady_of(closed(2, "batch"), [full, rest])
        assert (steady.seconds, steady.share) == (2, 0.5)
        assert steady.tgs == 2

    def test_none_where_it_never_was(self):
        """One after the other is not two at a time."""
        one = measured(closed(2), (0, 1), (1, 2))
        assert steady_of(closed(2), one.records) is None


class TestWaiting:
    def test_counts_from_when_a_request_was_due(self):
        """A request that came while another ran waited, though it ran as quickly."""
        level = Level(1, "threads", 2, rate=1.0)
        (found,) = evaluate([measured(level, (0, 1), (1, 2), due=(0, 0.25))], [])
        first, second = found.requests
        assert (first.queue_s, second.queue_s) == (pytest.approx(0), pytest.approx(0.75))
        assert second.ttft_s == pytest.approx(0.75 + 0.1)
        assert second.e2e_s == pytest.approx(0.75 + 0.4)
        assert second.tgs == pytest.approx(4 / 1.15)
        assert found.steady is None

    def test_a_late_generator_is_said(self):
        """What is late is the generator, and the waiting counts all the same."""
        level = Level(1, "threads", 1, rate=1.0)
        one = measured(level, (1, 2), due=(0.5,))
        one.run.jobs[0].submitted_ns = SECOND
        (found,) = evaluate([one], [])
        assert found.lag_s.max == 0.5
        assert "generator_late" in [c.code for c in found.cautions]
        assert found.requests[0].queue_s == pytest.approx(0.5)

    def test_a_level_that_never_began(self):
        """Ctrl-C may come before the first request: there are no figures, and nothing breaks."""
        one = Measured(Run(closed(2)))
        one.run.jobs = [Job(0, PROMPT)]
        one.run.interrupted = True
        (found,) = evaluate([one], [])
        assert (found.requests, found.system, found.steady, found.tgs) == ((), None, None, None)
        assert "interrupted" in [c.code for c in found.cautions]

    def test_a_level_cut_short_keeps_what_had_ended(self):
        """Requests under way have a job and perhaps a record, and take nobody else's."""
        one = measured(closed(2), (0, 1), (0.5, 1.5), (1, 2))
        one.run.jobs[1].ended_ns = None
        assert [r.job.index for r in requests_of(one)] == [0, 2]
        assert [r.record.start_unix_ns for r in requests_of(one)] == [0, SECOND]
        one.run.jobs[2].begun_ns += SECOND // 100
        one.records[2] = replace(one.records[2], start_unix_ns=SECOND + SECOND // 50)
        del one.records[1]
        assert [r.job.index for r in requests_of(one)] == [0, 2]

    def test_the_rows_of_a_batch_are_requests(self):
        """Each has its own tokens, and the batch's times."""
        one = Measured(Run(closed(2, "batch")))
        one.run.jobs = [Job(i, PROMPT, None, 0, 5, SECOND) for i in range(2)]
        one.records = [
            request(0.5, 1.0, batch_size=2, output_tokens=3, output_tokens_per_row=(2, 1))
        ]
        assert [r.output_tokens for r in requests_of(one)] == [2, 1]


class TestLoss:
    def test_parts_add_up(self):
        """Twice as slow with two at a time: nothing is gained, and decoding lost it."""
        alone = measured(closed(1), (0, 1), (1, 2))
        both = measured(closed(2), (0, 2), (0, 2))
        one, two = evaluate([alone, both], [])
        assert one.loss is None
        assert two.loss.total == pytest.approx(0.5)
        assert sum(two.loss.parts.values()) == pytest.approx(two.loss.total)
        assert two.loss.parts["prefill"] == pytest.approx(0.1 / 0.8)
        assert two.loss.parts["decode"] == pytest.approx(0.3 / 0.8)

    def test_the_hosts_share(self):
        """Where the device waited for Python, the growth of decoding is the host's."""
        alone = measured(closed(1), (0, 1))
        both = measured(closed(2), (0, 2), (0, 2))
        both.records = [replace(r, host_bound_ratio=0.75) for r in both.records]
        _, two = evaluate([alone, both], [])
        host, device = two.loss.parts["decode_host"], two.loss.parts["decode_device"]
        assert host == pytest.approx(3 * device)
        assert sum(two.loss.parts.values()) == pytest.approx(two.loss.total)

    def test_in_whatever_order(self):
        """The level with a single request need not come first."""
        alone = measured(closed(1), (0, 1), (1, 2))
        both = measured(closed(2), (0, 2), (0, 2))
        two, one = evaluate([both, alone], [])
        assert (two.loss.total, one.loss) == (pytest.approx(0.5), None)

    def test_none_without_a_single_request(self):
        """There is nothing to compare with."""
        (two,) = evaluate([measured(closed(2), (0, 2), (0, 2))], [])
        assert two.loss is None


def samples(values, name="gpu_memory_bandwidth_percent", every=0.1):
    return [{"unix_ns": round(i * every * SECOND), name: v} for i, v in enumerate(values)]


class TestResources:
    def test_over_time(self):
        """The mean of each part; a sample stands for the time before it."""
        found = resources.over_time(
            samples([0, 100], every=1), "gpu_memory_bandwidth_percent", 0, 2 * SECOND
        )
        assert len(found) == resources.BINS
        assert found[0] == 0
        assert found[resources.BINS // 2] == 100
        assert found[1] == 100
        assert found[-1] is None

    def test_correlation(self):
        """Gaps that grow as the bandwidth's use does."""
        gaps = [0.1 + 0.01 * i for i in range(60)]
        times = [0.0]
        for gap in gaps:
            times.append(times[-1] + gap)
        record = request(*[t + 0.001 for t in times])
        name = "gpu_memory_bandwidth_percent"
        rising = samples(range(240))
        assert resources.correlation(rising, [record], name) > 0.95
        assert resources.correlation(samples([5] * 240), [record], name) is None
        assert resources.correlation(rising[:20], [record], name) is None
        assert resources.correlation([], [record], name) is None

    def test_the_sampler_ends_with_its_parent(self):
        """It samples this process, and stops when its parent is another one."""
        child = subprocess.Popen(
            [sys.executable, "-m", "llmtrace.bench.tgs.sampler", str(os.getpid()), "0.01"],
            stdout=subprocess.PIPE,
            text=True,
        )
        line = child.stdout.readline()
        child.terminate()
        child.communicate(timeout=10)
        assert '"process_memory_bytes"' in line
        orphan = subprocess.run(
            [sys.executable, "-m", "llmtrace.bench.tgs.sampler", "1", "0.01"],
            capture_output=True,
            timeout=30,
            check=False,
        )
        assert orphan.returncode == 0

    def test_the_sampler_never_outlives_its_block(self, tmp_path, monkeypatch):
        """Not where Ctrl-C comes while it starts, nor where it does not listen."""
        begun, popen = [], subprocess.Popen

        def deaf(command, **more):
            code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True)"
            begun.append(popen([sys.executable, "-c", f"{code}; signal.pause()"], **more))
            return begun[-1]

        def interrupted(_):
            if (tmp_path / resources.FILE).stat().st_size:
                raise KeyboardInterrupt

        monkeypatch.setattr(resources.subprocess, "Popen", deaf)
        monkeypatch.setattr(resources.time, "sleep", interrupted)
        monkeypatch.setattr(resources, "END_S", 0.05)
        with pytest.raises(KeyboardInterrupt), resources.Sampling(tmp_path, os.getpid()):
            pass
        assert [process.returncode for process in begun] == [-signal.SIGKILL]

    def test_half_a_line_is_left_out(self, tmp_path):
        """The sampler may be ended in the middle of one."""
        with resources.Sampling(tmp_path, os.getpid()) as sampling:
            while not sampling.samples():
                time.sleep(0.01)
        whole = len(sampling.samples())
        with (tmp_path / resources.FILE).open("ab") as file:
            file.write(b'{"unix_ns": 1')
        assert len(sampling.samples()) == whole

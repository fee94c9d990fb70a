"""How several requests are run at a time: threads, one batch, or continuous batching.

Each runs the jobs of a level and notes when each was submitted, begun and ended. In an open loop
jobs come out of a queue that a dispatcher fills when they are due; in a closed loop the queue is
full from the start, and a job counts as submitted when its turn comes.
"""

from __future__ import annotations

import inspect
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from llmtrace import api
from llmtrace.bench import generation
from llmtrace.bench.models import Subject, transformers_release
from llmtrace.bench.settings import Generation
from llmtrace.bench.tgs.load import Job, Level
from llmtrace.errors import ConfigError

now = time.perf_counter_ns
POLL_S = 0.1
"""Waits are cut into such parts, so that Ctrl-C is heard."""
LONGEST_WAIT_S = 3600.0
"""There are rates whose next arrival is further away than a lock can be told to wait."""
FIRST_ON_CPU = (5, 1)
"""The first release whose continuous batching runs without a GPU."""

Ended = Callable[[Job], None]


class Mechanism(Protocol):
    """Runs the jobs of a level."""

    def run(self, level: Level, jobs: list[Job], ended: Ended) -> None:
        """Run *jobs*; call *ended* after each.

        Raises:
            RequestFailedError: One failed; no further one is begun.
            KeyboardInterrupt: Ctrl-C; no further one is begun.
        """


def mechanism_for(name: str, subject: Subject, plan: Generation) -> Mechanism:
    """Return the mechanism *name*.

    Raises:
        ConfigError: This release of transformers, or this model, does not have it.
    """
    if name == "continuous":
        return Continuous(subject, plan)
    return Batch(subject, plan) if name == "batch" else Threads(subject, plan)


class _Arrivals:
    """Jobs in the order in which they arrive, handed out when they are due."""

    def __init__(self, level: Level, jobs: list[Job]) -> None:
        self._waiting: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._open = level.rate is not None
        self._jobs = jobs
        self._dispatcher: threading.Thread | None = None

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """Let jobs arrive while this block runs."""
        if self._open:
            self._dispatcher = threading.Thread(target=self._dispatch, daemon=True)
            self._dispatcher.start()
        else:
            for job in self._jobs:
                self._waiting.put(job)
            self._waiting.put(None)
        try:
            yield
        finally:
            self.stop()
            if self._dispatcher is not None:
                self._dispatcher.join()

    def _dispatch(self) -> None:
        for job in self._jobs:
            while (left := (job.due_ns or 0) - now()) > 0 and not self._stopped.is_set():
                self._stopped.wait(min(left / 1e9, LONGEST_WAIT_S))
            if self._stopped.is_set():
                break
            job.submitted_ns = now()
            self._waiting.put(job)
        self._waiting.put(None)

    def stop(self) -> None:
        """Let nothing arrive any more."""
        self._stopped.set()

    def next(self, timeout_s: float | None = None) -> Job | None:
        """Return the next job, None when there is none left.

        Raises:
            queue.Empty: None arrived in *timeout_s*.
        """
        job = self._waiting.get(timeout=timeout_s)
        if job is None or self._stopped.is_set():
            self._waiting.put(None)  # the next one to ask is to hear it too
            return None
        if job.submitted_ns is None:
            job.submitted_ns = now()
        return job


class Threads:
    """So many threads, each with a ``generate()`` of its own."""

    def __init__(self, subject: Subject, plan: Generation) -> None:
        self._subject = subject
        self._plan = plan
        self._failure: BaseException | None = None

    def run(self, level: Level, jobs: list[Job], ended: Ended) -> None:
        """See :class:`Mechanism`."""
        self._failure = None
        arrivals = _Arrivals(level, jobs)
        workers = [
            threading.Thread(target=self._work, args=(arrivals, ended), daemon=True)
            for _ in range(level.concurrency)
        ]
        with arrivals.arriving():
            for worker in workers:
                worker.start()
            try:
                for worker in workers:
                    while worker.is_alive():
                        worker.join(POLL_S)
            finally:
                arrivals.stop()
                for worker in workers:
                    worker.join()
        if self._failure is not None:
            raise self._failure

    def _work(self, arrivals: _Arrivals, ended: Ended) -> None:
        try:
            while (job := arrivals.next()) is not None:
                run_alone(self._subject, self._plan, job)
                ended(job)
        except Exception as error:  # noqa: BLE001 - no thread is to end unheard
            self._failure = _failed("threads", error)
            arrivals.stop()


def run_alone(subject: Subject, plan: Generation, job: Job) -> None:
    """Run one job as one request."""
    given = generation.arguments(subject, plan)
    inputs = generation.inputs(subject, job.prompt)
    job.begun_ns = now()  # a text has been tokenized: that is part of the request's waiting
    ids = _generate(subject, {**inputs, **given})
    job.ended_ns = now()
    job.output_tokens = int(ids.shape[1] - inputs["input_ids"].shape[1])


def _generate(subject: Subject, given: dict[str, Any]) -> Any:
    try:
        with api.request():
            ids = subject.model.generate(**given)
            if ids.device.type == "cuda":
                import torch

                torch.cuda.current_stream(ids.device).synchronize()
    except Exception as error:
        raise _failed("generate()", error) from error
    return ids


def _failed(where: str, error: Exception) -> generation.RequestFailedError:
    """Return *error* as that of a request, in one line."""
    if isinstance(error, generation.RequestFailedError):
        return error
    reason = " ".join(str(error).split())[:300]
    return generation.RequestFailedError(f"{where}: {type(error).__name__}: {reason}")


class Batch:
    """One ``generate()`` whose rows are the requests; shorter prompts are padded on the left."""

    def __init__(self, subject: Subject, plan: Generation) -> None:
        self._subject = subject
        self._plan = plan

    def run(self, level: Level, jobs: list[Job], ended: Ended) -> None:
        """See :class:`Mechanism`."""
        arrivals = _Arrivals(level, jobs)
        with arrivals.arriving():
            while together := self._gather(arrivals, level):
                self._run(together)
                for job in together:
                    ended(job)

    def _gather(self, arrivals: _Arrivals, level: Level) -> list[Job]:
        """Return the jobs of the next batch: those that have arrived, at least one."""
        found: list[Job] = []
        while len(found) < level.concurrency:
            try:
                job = arrivals.next(0 if found else POLL_S)
            except queue.Empty:
                if found:
                    break
                continue
            if job is None:
                break
            found.append(job)
        return found

    def _run(self, jobs: list[Job]) -> None:
        given = {**_padded(self._subject, jobs), **generation.arguments(self._subject, self._plan)}
        begun = now()
        length = given["input_ids"].shape[1]
        ids = _generate(self._subject, given)
        ended = now()
        for job in jobs:
            job.begun_ns, job.ended_ns = begun, ended
            job.output_tokens = int(ids.shape[1] - length)


def _padded(subject: Subject, jobs: list[Job]) -> dict[str, Any]:
    """Return the prompts of *jobs* as one batch, padded on the left."""
    import torch

    rows = [generation.inputs(subject, job.prompt)["input_ids"][0] for job in jobs]
    longest = max(len(row) for row in rows)
    ids = torch.full((len(rows), longest), subject.model.generation_config.pad_token_id)
    mask = torch.zeros_like(ids)
    ids, mask = ids.to(subject.device), mask.to(subject.device)
    for index, row in enumerate(rows):
        ids[index, longest - len(row) :] = row
        mask[index, longest - len(row) :] = 1
    return {"input_ids": ids, "attention_mask": mask}


class Continuous:
    """transformers' continuous batching: a scheduler puts requests into shared steps."""

    def __init__(self, subject: Subject, plan: Generation) -> None:
        model = subject.model
        too_old = subject.device.type == "cpu" and transformers_release() < FIRST_ON_CPU
        if too_old or not hasattr(model, "init_continuous_batching"):
            raise ConfigError(
                "--mechanism continuous needs transformers 4.53 or newer, and 5.1 on a CPU"
            )
        if plan.cache != "dynamic" or plan.compile:
            raise ConfigError(
                "--mechanism continuous has a cache of its own: leave out --cache, --compile"
            )
        self._subject = subject
        self._plan = plan

    def run(self, level: Level, jobs: list[Job], ended: Ended) -> None:
        """See :class:`Mechanism`."""
        manager = self._manager(level, jobs)
        cut_short = True
        try:
            manager.start()
            arrivals = _Arrivals(level, jobs)
            serve = self._serve_open if level.rate is not None else self._serve_closed
            with arrivals.arriving():
                serve(manager, arrivals, level, ended)
            cut_short = False
        except Exception as error:
            raise _failed("continuous batching", error) from error
        finally:
            _stop(manager, at_once=cut_short)

    def _manager(self, level: Level, jobs: list[Job]) -> Any:
        from transformers import GenerationConfig

        plan = self._plan
        given = {
            "max_new_tokens": plan.max_new_tokens,
            "do_sample": plan.do_sample,
            "pad_token_id": self._subject.model.generation_config.pad_token_id,
            "eos_token_id": -1,
        }
        if plan.stop_at_eos:
            given["eos_token_id"] = self._subject.model.generation_config.eos_token_id
        named = {"temperature": plan.temperature, "top_p": plan.top_p, "top_k": plan.top_k}
        given |= {name: value for name, value in named.items() if value is not None}
        config = GenerationConfig(**given)
        return self._subject.model.init_continuous_batching(
            generation_config=config, **_blocks(config, level, jobs, plan)
        )

    def _serve_closed(self, manager: Any, arrivals: _Arrivals, level: Level, ended: Ended) -> None:
        running: dict[str, Job] = {}
        more = True
        while more or running:
            while more and len(running) < level.concurrency:
                job = arrivals.next()
                if job is None:
                    more = False
                else:
                    self._submit(manager, running, job)
            self._collect(manager, running, ended)

    def _serve_open(self, manager: Any, arrivals: _Arrivals, _: Level, ended: Ended) -> None:
        running: dict[str, Job] = {}
        failures: list[Exception] = []

        def submit() -> None:
            try:
                while (job := arrivals.next()) is not None:
                    self._submit(manager, running, job)
            except Exception as error:  # noqa: BLE001 - raised below
                failures.append(error)

        # A thread of its own: a job that is due must not wait until an output has been waited for.
        submitting = threading.Thread(target=submit, daemon=True)
        submitting.start()
        try:
            while submitting.is_alive() or (running and not failures):
                self._collect(manager, running, ended)
        finally:
            arrivals.stop()
            submitting.join()
        if failures:
            raise failures[0]

    def _submit(self, manager: Any, running: dict[str, Job], job: Job) -> None:
        ids = generation.inputs(self._subject, job.prompt)["input_ids"][0].tolist()
        name = f"job_{job.index}"
        running[name] = job  # before its output can be there
        job.begun_ns = now()
        manager.add_request(ids, request_id=name, max_new_tokens=self._plan.max_new_tokens)

    def _collect(self, manager: Any, running: dict[str, Job], ended: Ended) -> None:
        """Take one output, if there is one soon."""
        output = manager.get_result(timeout=POLL_S / 10)
        if output is None or output.request_id not in running:
            if not manager.is_running():
                raise RuntimeError("the scheduler has stopped")
            return
        job = running.pop(output.request_id)
        job.ended_ns = now()
        job.output_tokens = len(output.generated_tokens)
        if output.error:
            raise generation.RequestFailedError(f"continuous batching: {output.error}")
        ended(job)


def _stop(manager: Any, *, at_once: bool) -> None:
    """End the scheduler's thread; *at_once*: without what it has been given."""
    can = "hard_stop" in inspect.signature(manager.stop).parameters
    manager.stop(block=True, **({"hard_stop": True} if at_once and can else {}))


def _blocks(config: Any, level: Level, jobs: list[Job], plan: Generation) -> dict[str, Any]:
    """Say how large the scheduler's cache is: by itself it takes most of the memory there is."""
    longest = max(job.prompt.tokens for job in jobs) + plan.max_new_tokens
    at_once = len(jobs) if level.rate is not None else level.concurrency
    block = 32
    blocks = at_once * (-(-longest // block) + 1) + 8
    size = {"num_blocks": blocks, "max_batch_tokens": max(256, 2 * longest)}
    try:
        from transformers import ContinuousBatchingConfig
    except ImportError:  # older releases read it from the other one
        for name, value in {**size, "block_size": block}.items():
            setattr(config, name, value)
        return {}
    return {"continuous_batching_config": ContinuousBatchingConfig(**size)}

"""Locks in a child that was forked while another thread held them."""

import os
import signal
import threading

import pytest

from llmtrace.guard import guard
from llmtrace.locks import ForkSafeLock
from llmtrace.seams import tokenizers
from llmtrace.telemetry import server_spans


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    "lock",
    [
        ForkSafeLock(),
        guard._lock,
        tokenizers._lock,
        server_spans._lock,
    ],
    ids=["one", "failures", "tokenizer calls", "server spans"],
)
def test_a_forked_child_finds_it_free(lock):
    """Every call of a tokenizer takes one: an app that forks must not hang there."""
    held, forked = threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            forked.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        with lock:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    forked.set()
    holder.join()
    assert status == 0


def test_it_excludes_others():
    """One at a time, as any lock."""
    lock, inside, seen = ForkSafeLock(), [], []

    def work():
        for _ in range(200):
            with lock:
                inside.append(1)
                seen.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1] * 800

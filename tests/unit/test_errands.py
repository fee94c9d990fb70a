"""Work that may hang, where nobody has to wait for its end."""

import os
import threading

import pytest

from llmtrace.telemetry.errands import Errands


def test_an_errand_is_done_elsewhere_and_waited_for():
    """It runs in another thread, and is over when ``run`` says so."""
    done = []
    assert Errands().run(lambda: done.append(threading.current_thread()), 5)
    assert done[0] is not threading.current_thread()
    assert done[0].daemon


def test_an_errand_that_hangs_is_left_alone():
    """After the bound the caller goes on; what comes next is done after it."""
    errands, go = Errands(), threading.Event()
    assert not errands.run(lambda: go.wait(5), 0.02)
    go.set()
    assert errands.run(lambda: None, 5)


def test_one_thread_does_them_all():
    """Being ready twice makes no second thread."""
    errands, seen = Errands(), set()
    for _ in range(3):
        errands.start()
        errands.run(lambda: seen.add(threading.get_ident()), 5)
    assert len(seen) == 1


def test_at_exit_it_runs_in_a_thread_made_before(monkeypatch):
    """Where Python starts no more threads, one that is there does the work; none is no error."""
    ready, late = Errands(), Errands()
    ready.start()

    def refuse(_):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert ready.run(lambda: None, 5)
    assert late.run(lambda: None, 5) is False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_a_thread_of_its_own():
    """The parent's thread is not there in a child; a new one is."""
    errands = Errands()
    errands.start()
    child = os.fork()
    if child == 0:
        os._exit(0 if errands.run(lambda: None, 5) else 1)
    assert os.waitpid(child, 0)[1] == 0

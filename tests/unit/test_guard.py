"""The place where our own failures end."""

import logging
import threading

import pytest

from llmtrace.guard import MAX_FAILURES, Guard


@pytest.fixture
def own_guard():
    """A guard of the test's own."""
    return Guard()


def fail():
    raise ValueError("inside")


def test_a_result_passes_through(own_guard):
    """What does not fail is as if it had been called directly."""
    assert own_guard.call("adding", lambda a, b: a + b, 1, b=2) == 3
    assert own_guard.failures == 0


def test_an_exception_ends_here_and_is_logged_once(own_guard, caplog):
    """The first failure is logged with its traceback, a second one only counted."""
    assert own_guard.call("doing this", fail) is None
    assert own_guard.call("doing that", fail) is None
    (line,) = caplog.records
    assert "while doing this" in line.getMessage()
    assert line.exc_info[0] is ValueError
    assert line.levelno == logging.WARNING
    assert own_guard.failures == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_exception_passes(own_guard, error):
    """An interruption is the program's, even in the middle of our code."""

    def interrupted():
        raise error

    with pytest.raises(error):
        own_guard.call("working", interrupted)
    assert own_guard.failures == 0


def test_it_gives_up_after_a_few_failures(own_guard, caplog):
    """After so many failures recording is given up, which is said once."""
    for _ in range(MAX_FAILURES - 1):
        own_guard.call("working", fail)
    assert not own_guard.tripped
    for _ in range(3):
        own_guard.call("working", fail)
    assert own_guard.tripped
    said = [r.getMessage() for r in caplog.records if "turned itself off" in r.getMessage()]
    assert len(said) == 1


def test_a_warning_comes_once_per_key(own_guard, caplog):
    """The same trouble is said once, another one too."""
    for key in ("file", "file", "queue", "file"):
        own_guard.warn_once(key, f"{key} is in trouble")
    assert [r.getMessage() for r in caplog.records] == [
        "llmtrace: file is in trouble",
        "llmtrace: queue is in trouble",
    ]


def test_the_application_s_errors_are_not_ours(own_guard, caplog):
    """A function of the application's may fail any number of times: logged once, not counted."""
    for _ in range(2 * MAX_FAILURES):
        own_guard.call_users("taking a record", fail)
    assert own_guard.failures == 0
    assert not own_guard.tripped
    (line,) = caplog.records
    assert line.getMessage() == "llmtrace: fail failed while taking a record"
    assert line.exc_info[0] is ValueError


def test_failures_of_many_threads_are_all_counted(own_guard):
    """Counting is exact under concurrency, and so is what is said."""
    start = threading.Barrier(8)

    def work():
        start.wait()
        for _ in range(50):
            own_guard.call("working", fail)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert own_guard.failures == 400

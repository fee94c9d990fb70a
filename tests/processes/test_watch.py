"""``llmtrace watch`` beside a real program that generates, at a terminal and in a pipe."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import pytest

THREE = """
llmtrace.instrument(dir="traces")
for n in (3, 4, 5):
    generate(n)
"""


# Ctrl-C reaches only who has the terminal as its own.
START = """
import fcntl, runpy, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
runpy.run_module("llmtrace", run_name="__main__", alter_sys=True)
"""

CODES = re.compile(r"\x1b\[[?0-9;]*[a-zA-Z]")


def obeys_ctrl_c():
    """As in a terminal: what is started in the background inherits that it ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A program at a pseudo-terminal."""

    def __init__(self, folder, *command):
        self.master, slave = pty.openpty()
        environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, *command],
            cwd=folder,
            env=environ,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=obeys_ctrl_c,  # noqa: PLW1509
        )
        os.close(slave)
        self.said = ""

    def read_until(self, wanted, limit_s=60):
        """Read until *wanted* has been shown, colours aside."""
        deadline = time.monotonic() + limit_s
        while wanted not in CODES.sub("", self.said):
            assert time.monotonic() < deadline, self.said
            self._read(1.0)

    def _read(self, limit_s):
        if not select.select([self.master], [], [], limit_s)[0]:
            return True
        try:
            found = os.read(self.master, 65536)
        except OSError:  # the other end was closed
            return False
        self.said += found.decode(errors="replace")
        return bool(found)

    def end(self, key):
        """Press a key; return the exit code once the program has ended."""
        os.write(self.master, key)
        while self._read(60):
            pass
        os.close(self.master)
        return self.process.wait(60)


@pytest.fixture
def at_terminal(tmp_path):
    """Start llmtrace at a terminal; nothing of it is left behind."""
    started = []

    def start(*command):
        started.append(Terminal(tmp_path, *command))
        return started[-1]

    yield start
    for terminal in started:
        if terminal.process.poll() is None:
            terminal.process.kill()
            terminal.process.wait()


def test_at_a_terminal(at_terminal, program, start, tmp_path):
    """It waits for the folder, shows each of the requests, and gives the screen back at Ctrl-C."""
    watch = at_terminal("watch", "traces", "--refresh", "0.1")
    watch.read_until("not there yet")
    assert start(program(THREE)).returncode == 0
    watch.read_until("3 requests, 1 cold")
    watch.read_until("Findings")
    assert watch.end(b"\x03") == 0
    assert watch.said.count("\x1b[?1049h") == watch.said.count("\x1b[?1049l") == 1
    assert "Traceback" not in watch.said


def test_a_program_that_is_asked_to_end_gives_the_screen_back(at_terminal):
    """SIGTERM is an end like Ctrl-C."""
    watch = at_terminal("watch", "traces", "--refresh", "0.1")
    watch.read_until("not there yet")
    watch.process.send_signal(signal.SIGTERM)
    assert watch.end(b"") == 0
    assert watch.said.count("\x1b[?1049l") == 1


def test_in_a_pipe(program, start, tmp_path):
    """A line for each request as it ends; Ctrl-C is a good end."""
    watch = subprocess.Popen(
        [sys.executable, "-m", "llmtrace", "watch", "traces", "--refresh", "0.1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=obeys_ctrl_c,  # noqa: PLW1509
    )
    assert start(program(THREE)).returncode == 0
    lines = [watch.stdout.readline() for _ in range(3)]
    assert ["output 3" in lines[0], "output 4" in lines[1], "output 5" in lines[2]] == [True] * 3
    assert lines[0].rstrip().endswith("cold")
    watch.send_signal(signal.SIGINT)
    rest, errors = watch.communicate(timeout=60)
    assert (watch.returncode, rest, errors) == (0, "", "")
    again = start("-m", "llmtrace", "watch", "--once", "traces")
    assert "3 requests, 1 cold" in again.stdout

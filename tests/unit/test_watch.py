"""Following files that grow, are cut and replaced; and what is shown of them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from llmtrace.cli import main
from llmtrace.errors import SourceError
from llmtrace.watch import follow
from llmtrace.watch.follow import Follower
from llmtrace.watch.frame import Frame, request_line
from llmtrace.watch.sparkline import sparkline
from llmtrace.watch.window import Window
from tests.unit.test_cli_report import attribute, line


@pytest.fixture
def file(tmp_path):
    return tmp_path / "t.jsonl"


@pytest.fixture
def follower(file):
    found = Follower(str(file))
    yield found
    found.close()


def new(follower):
    """What was added since the last time."""
    return [line.decode() for line in follower.lines()]


def append(file, text):
    with file.open("a") as opened:
        opened.write(text)


# Following


def test_lines_are_handed_out_once(file, follower):
    """What is there already, then what is added."""
    file.write_text("a\nb\n")
    assert new(follower) == ["a", "b"]
    assert new(follower) == []
    append(file, "c\n")
    assert new(follower) == ["c"]


def test_a_file_may_come_later(file, follower):
    """It is not there, then it is."""
    assert new(follower) == []
    assert not follower.exists
    file.write_text("a\n")
    assert new(follower) == ["a"]


def test_half_a_line_waits_for_its_end(file, follower):
    """Wherever it is cut."""
    file.write_text("a\nb")
    assert new(follower) == ["a"]
    append(file, "b")
    assert new(follower) == []
    append(file, "b\nc")
    assert new(follower) == ["bbb"]


def test_a_file_that_is_cut_begins_anew(file, follower):
    """Shorter than it was; half a line of before is not half of what follows."""
    file.write_text("aaaa\nbbbb\ncc")
    assert new(follower) == ["aaaa", "bbbb"]
    file.write_text("d\n")
    assert new(follower) == ["d"]


def test_a_file_that_was_cut_and_grew_again(file, follower):
    """Longer than it was, but other bytes: it is read from its start."""
    file.write_text("aaaa\n")
    assert new(follower) == ["aaaa"]
    file.write_text("bbbb\ncccc\n")
    assert new(follower) == ["bbbb", "cccc"]


def test_rotation_loses_nothing(file, follower):
    """The last lines of the file that was moved away, then those of the one that took its name."""
    file.write_text("a\n")
    assert new(follower) == ["a"]
    append(file, "b\n")
    file.rename(file.with_suffix(".1"))
    file.write_text("c\n")
    assert new(follower) == ["b", "c"]


def test_a_file_that_is_gone_may_come_back(file, follower):
    """Meanwhile there is nothing new, and no error."""
    file.write_text("a\n")
    assert new(follower) == ["a"]
    file.unlink()
    assert new(follower) == []
    file.write_text("b\n")
    assert new(follower) == ["b"]


def test_a_folder_with_files_that_come_later(tmp_path):
    """All trace files in it, of any process; nothing else."""
    folder = tmp_path / "traces"
    follower = Follower(str(folder))
    assert new(follower) == []
    folder.mkdir()
    (folder / "a.jsonl").write_text("a\n")
    (folder / "notes.txt").write_text("n\n")
    assert new(follower) == ["a"]
    (folder / "b.jsonl").write_text("b\n")
    append(folder / "a.jsonl", "c\n")
    assert sorted(new(follower)) == ["b", "c"]
    follower.close()


def test_only_the_end_of_a_long_file_is_read(file, monkeypatch):
    """The first line, cut into, is passed over; what was left out is known."""
    monkeypatch.setattr(follow, "TAIL_BYTES", 8)
    file.write_text("aaaa\nbbbb\ncc\n")
    follower = Follower(str(file))
    assert new(follower) == ["cc"]
    assert follower.left_out_bytes == 5
    follower.close()


def test_a_line_without_end_is_passed_over(file, follower, monkeypatch):
    """It is not held in memory, and the next line is read."""
    monkeypatch.setattr(follow, "MOST_LINE_BYTES", 10)
    file.write_text("a\n" + "x" * 20)
    assert new(follower) == ["a"]
    append(file, "x\nb\n")
    assert new(follower) == ["b"]


def test_a_compressed_file_is_refused(tmp_path):
    """It does not grow; the message says what reads it."""
    with pytest.raises(SourceError, match="use llmtrace report"):
        Follower(str(tmp_path / "t.jsonl.gz"))


# Requests


def test_requests_are_taken_from_lines():
    """One request of three tokens, once, though its line comes twice."""
    window = Window()
    (record,) = window.take(line().encode())
    assert record.itl_s == [0.125, 0.25]
    assert window.take(line().encode()) == []
    assert (window.total, window.failed, window.unreadable) == (1, 0, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        '{"resourceMetrics": []}',
        line().replace('"llmtrace"', '"someone else"'),
    ],
)
def test_other_lines_are_passed_over(text):
    """They are no requests of ours, and nothing is wrong with them."""
    window = Window()
    assert window.take(text.encode()) == []
    assert window.unreadable == 0


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "\0\1",
        '{"resourceSpans": 3}',
        line().replace('"1000000000"', '"soon"'),
        line("aa", {"key": 3}).replace('"llmtrace.itl"', '"llmtrace.itl", "x": [1'),
        line().replace('{"doubleValue": 0.125}', '{"doubleValue": "NaN"}'),
    ],
)
def test_broken_lines_are_counted(text):
    """Whatever it is: no exception, and the next line is read."""
    window = Window()
    assert window.take(text.encode()) == []
    assert window.unreadable == 1
    assert len(window.take(line().encode())) == 1


@given(st.binary())
def test_any_bytes_are_survived(noise):
    """Counted or passed over; never an exception."""
    Window().take(noise)


@given(st.integers(0, len(line()) - 2), st.sampled_from(['"', "}", "[", "null", "-1", "1e999"]))
def test_a_line_damaged_anywhere_is_survived(place, damage):
    """A character replaced by something else that JSON knows."""
    text = line()
    Window().take((text[:place] + damage + text[place + 1 :]).encode())


# What is shown


def shown(*lines, width=100, height=40, now=10.0, ascii_only=False):
    window = Window()
    for text in lines:
        window.take(text.encode())
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    frame = Frame(window, ascii_only=ascii_only)
    console.print(frame.render("t.jsonl", now, width, height))
    return console.file.getvalue()


def test_a_frame():
    """250 ms to the first token, gaps of 125 and 250 ms, 3 tokens in 625 ms; ended at 1.625 s."""
    said = shown(line())
    rows = [row.split() for row in said.splitlines()]
    assert ["TTFT", *["250.00"] * 4] in rows
    assert ["ITL", "187.50", "243.75", "248.75", "250.00"] in rows
    assert ["ITL", "▅█", "2", "gaps,", "125.00", "to", "250.00", "ms"] in rows
    assert "4.80 tok/s" in said
    assert "1 request; latest 8 s ago" in said
    assert "GPU memory" in said
    assert "Findings: none" in said


def test_a_frame_counts_what_went_wrong():
    """Failed, cold and unreadable are said; the failure has its name."""
    failed = line("bb", attribute("error.type", stringValue="OutOfMemoryError"))
    cold = line("cc", attribute("llmtrace.cold", boolValue=True))
    said = shown(line(), failed, cold, "{", width=140)
    assert "3 requests, 1 failed, 1 cold, 1 unreadable" in said
    assert "OutOfMemoryError" in said


def test_a_frame_of_cold_requests_alone():
    """Their numbers, and that they are cold."""
    cold = line("cc", attribute("llmtrace.cold", boolValue=True))
    assert "only cold" in shown(cold)
    assert "only cold" not in shown(cold, line())
    assert "250.00" in shown(cold)


def test_a_frame_shows_findings_and_memory():
    """A finding with its remedy; what torch's allocator held."""
    codes = {"values": [{"stringValue": "steps_truncated"}]}
    extra = (
        attribute("llmtrace.findings", arrayValue=codes),
        attribute("llmtrace.cuda.memory.reserved", intValue=str(2**31)),
    )
    said = shown(line("aa", *extra))
    assert "info  Only the first steps were recorded singly  -> Raise max_step_spans" in said
    assert "2.00 GiB held by torch" in said


def test_the_frame_fits_the_terminal():
    """As many requests as there is room for, the latest first; ASCII where nothing else goes."""
    lines = [
        line(f"{i:02x}")
        .replace("1000000000", f"{i + 1}000000000")
        .replace("1625000000", f"{i + 1}625000000")
        for i in range(60)
    ]
    said = shown(*lines, width=80, height=40)
    assert len(said.splitlines()) <= 40
    assert max(map(len, said.splitlines())) <= 80
    assert shown(line(), ascii_only=True).isascii()


def test_no_request_yet():
    """The frame says so."""
    assert "No request yet." in shown()


def test_a_request_as_a_line():
    """Plain text with units."""
    (record,) = Window().take(line().encode())
    assert request_line(record).endswith(
        "prompt -  output 3  TTFT 250.00 ms  TPOT - ms  longest gap 250.00 ms  TGS - tok/s"
    )


def test_sparkline():
    """Bars over zero; several values share a bar by their largest."""
    assert sparkline([0, 1, 2, 4, 8], 5) == "▁▂▃▅█"
    assert sparkline([1, 1, 1, 8, 1, 1], 3) == "▂█▂"
    assert sparkline([1, 2], 5, top=4) == "▃▅"
    assert sparkline([], 5) == ""
    assert sparkline([0, 0], 5) == "▁▁"
    assert sparkline([1, 2], 2, ascii_only=True) == "+#"


# The command


def watch(*argv):
    return main(["watch", *map(str, argv)])


def test_once(file, capsys):
    """One frame, and the exit code 0."""
    file.write_text(line())
    assert watch("--once", file) == 0
    assert "1 request" in capsys.readouterr().out


def test_once_as_json(file, capsys):
    """The report of the latest requests."""
    file.write_text(line())
    assert watch("--once", "--json", file) == 0
    assert json.loads(capsys.readouterr().out)["ttft_s"]["max"] == 0.25


def test_once_without_a_file(file, capsys):
    """Exit code 2 and one line."""
    assert watch("--once", file) == 2
    assert capsys.readouterr().err == f"llmtrace watch: {file}: no such file\n"


@pytest.mark.parametrize("value", ["0", "-1", "x", "nan", "inf"])
def test_refresh_must_be_a_time(file, capsys, value):
    """Exit code 2, and what would do."""
    with pytest.raises(SystemExit) as error:
        watch(file, "--refresh", value)
    assert error.value.code == 2
    assert "0.1 or more" in capsys.readouterr().err


def test_json_needs_once(file, capsys):
    """A stream of frames is no JSON."""
    assert watch("--json", file) == 2
    assert "--once" in capsys.readouterr().err


def test_letters_that_the_output_lacks(file):
    """An error's name in other letters: question marks, and no failure."""
    file.write_text(line("aa", attribute("error.type", stringValue="Erreur\u00e9")))
    done = subprocess.run(
        [sys.executable, "-m", "llmtrace", "watch", "--once", str(file)],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0, done.stderr
    assert b"Erreur?" in done.stdout

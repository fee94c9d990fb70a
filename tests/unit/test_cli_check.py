"""``llmtrace check``: exit codes, one-line errors, and where the verdicts go."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest

from llmtrace.cli import main
from tests.unit.test_cli_report import line


@pytest.fixture
def file(tmp_path):
    """Twenty requests: TTFT 250 ms, gaps of 125 and 250 ms, on an unknown device."""
    path = tmp_path / "t.jsonl"
    path.write_text("".join(line(f"{i:02x}") for i in range(20)))
    return path


@pytest.fixture
def policy(tmp_path):
    def write(text):
        path = tmp_path / "p.toml"
        path.write_text(text)
        return path

    return write


def run(*argv):
    return main(["check", *map(str, argv)])


@pytest.mark.parametrize(
    ("text", "code", "word"),
    [
        ("[[ttft]]\np95_ms = 300", 0, "PASS"),
        ("[[ttft]]\np95_ms = 200", 1, "FAIL"),
        ("samples.min = 21\n[[ttft]]\np95_ms = 300", 3, "UNDECIDED"),
        ("samples.min = 21\n[[ttft]]\np95_ms = 300\n[itl]\np95_ms = 1", 1, "FAIL"),
    ],
)
def test_exit_codes(file, policy, capsys, text, code, word):
    """0 passes, 1 fails, 3 undecided; what fails outweighs what is undecided."""
    assert run(file, "--policy", policy(text)) == code
    out, err = capsys.readouterr()
    assert out.startswith(word)
    assert err == ""


def test_json_and_junit(file, policy, tmp_path, capsys):
    """JSON on standard output, XML in its file."""
    out = tmp_path / "j.xml"
    assert run(file, "--policy", policy("[[ttft]]\np95_ms = 200"), "--json", "--junit", out) == 1
    assert json.loads(capsys.readouterr().out)["outcome"] == "FAIL"
    assert ET.parse(out).getroot().get("failures") == "1"


@pytest.mark.parametrize("name", ["default", "fastgen", "mlperf-llama2-70b-server"])
def test_presets_by_name(file, capsys, name):
    """They need no file."""
    assert run(file, "--policy", name) in {0, 1, 3}
    assert f"policy {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[itl]\np96_ms = 1", "[itl] p96_ms: unknown key"),
        (b"[itl", "not TOML"),
        (b"[itl]\n[tgs]\nmin_system = 1", "[itl]: has no limit"),
        (b"\xff\xfe", "not text in UTF-8"),
        (None, "no such file, and no preset: default, mlperf"),
    ],
)
def test_bad_policies_are_one_line_and_exit_code_2(file, tmp_path, capsys, content, message):
    """Named before anything is read."""
    path = tmp_path / "bad.toml"
    if content is not None:
        path.write_bytes(content)
    assert run(file, "--policy", path) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"llmtrace check: {path}: ")
    assert message in err
    assert err.count("\n") == 1


def test_unreadable_input(tmp_path, capsys):
    """The same as for report."""
    path = tmp_path / "bad.jsonl"
    path.write_text("hello\n")
    assert run(path, "--policy", "default") == 2
    assert capsys.readouterr().err.startswith(f"llmtrace check: {path}:1: not JSON")


def test_junit_is_not_written_over_the_recording(file, capsys):
    """As with every output."""
    before = file.read_text()
    assert run(file, "--policy", "default", "--junit", file) == 2
    assert "one of the files read" in capsys.readouterr().err
    assert file.read_text() == before


def test_a_policy_is_required(file):
    """argparse says so."""
    with pytest.raises(SystemExit) as caught:
        run(file)
    assert caught.value.code == 2


def test_limits_and_notes_are_whole(file, policy, capsys):
    """In 100 columns: the unit of a limit, and why a rule is undecided."""
    rules = "".join(f"[[ttft]]\nmax_prompt_tokens = {n}\np95_ms = 300\n" for n in (12345, 67890))
    run(file, "--policy", policy(rules))
    out = capsys.readouterr().out
    assert out.count("<= 300.00 ms") == 2
    assert out.count("fewer than 20 samples") == 2
    assert "\u2026" not in out


def test_the_verdict_stands_when_nobody_reads_it(file, policy):
    """``llmtrace check ... | true``: a closed pipe makes no good verdict of a bad one."""
    bad = policy("[[ttft]]\np95_ms = 200")
    command = [sys.executable, "-m", "llmtrace", "check", str(file), "--policy", str(bad)]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")

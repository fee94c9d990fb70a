"""``llmtrace report``: exit codes, one-line errors, and where the report goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmtrace.cli import main


def run(*argv):
    """Run the command with *argv*; return its exit code."""
    return main(["report", *map(str, argv)])


def attribute(key, **value):
    return {"key": key, "value": value}


def line(span_id="aa", *extra):
    """One request of three tokens: 250 ms, then gaps of 125 and 250 ms."""
    gaps = [{"doubleValue": 0.125}, {"doubleValue": 0.25}]
    span = {
        "traceId": "0" * 31 + "1",
        "spanId": span_id,
        "name": "text_completion m",
        "startTimeUnixNano": "1000000000",
        "endTimeUnixNano": "1625000000",
        "attributes": [
            attribute("llmtrace.strategy", stringValue="greedy"),
            attribute("llmtrace.ttft", doubleValue=0.25),
            attribute("llmtrace.itl", arrayValue={"values": gaps}),
            attribute("gen_ai.usage.output_tokens", intValue="3"),
            *extra,
        ],
    }
    scope = {"scope": {"name": "llmtrace"}, "spans": [span]}
    return json.dumps({"resourceSpans": [{"scopeSpans": [scope]}]}) + "\n"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(line())
    return path


def test_text_by_default(file, capsys):
    """The report goes to standard output, nothing to standard error."""
    assert run(file) == 0
    out, err = capsys.readouterr()
    assert out.startswith("1 request, 1 ok")
    assert "250.00" in out
    assert err == ""


@pytest.mark.parametrize("option", [["--json"], ["--format", "json"], ["--format=json"]])
def test_json(file, capsys, option):
    """Both ways of asking for it give one JSON object."""
    assert run(file, *option) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "llmtrace.report/1"
    assert found["itl_s"]["count"] == 2
    assert found["tgs"]["system"] == pytest.approx(3 / 0.625)


def test_include_cold(tmp_path, capsys):
    """Cold requests come in when asked for."""
    path = tmp_path / "t.jsonl"
    path.write_text(line("aa", attribute("llmtrace.cold", boolValue=True)))
    assert run(path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["ttft_s"] is None
    assert run(path, "--json", "--include-cold") == 0
    assert json.loads(capsys.readouterr().out)["ttft_s"]["max"] == 0.25


def test_a_finding_of_severity_error_is_exit_code_1(file, capsys, monkeypatch):
    """The report is printed all the same."""
    from llmtrace.analysis import findings
    from llmtrace.records import Finding

    known = {"broken": Finding("broken", "error", "Broken", "", "Mend it.")}
    monkeypatch.setattr(findings, "KNOWN", known)
    codes = {"values": [{"stringValue": "broken"}]}
    file.write_text(line("aa", attribute("llmtrace.findings", arrayValue=codes)))
    assert run(file) == 1
    assert "error  Broken" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "hello\n", '{"a": 1}\n', line()[:50]])
def test_unreadable_input_is_one_line_and_exit_code_2(tmp_path, capsys, content):
    """No report, no traceback, and the line names the file."""
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    assert run(path) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"llmtrace report: {path}")
    assert err.count("\n") == 1


def test_a_file_that_is_not_there(tmp_path, capsys):
    """The commonest mistake."""
    assert run(tmp_path / "none.jsonl") == 2
    assert capsys.readouterr().err.endswith("none.jsonl: no such file\n")


def test_no_file_is_bad_usage(capsys):
    """argparse says so, with exit code 2."""
    with pytest.raises(SystemExit) as caught:
        run()
    assert caught.value.code == 2
    assert "FILE" in capsys.readouterr().err


def test_bad_lines_are_named_up_to_five_and_counted(file, capsys):
    """Eight bad lines: five named, three counted, the rest reported."""
    file.write_text("junk\n" * 8 + line())
    assert run(file) == 0
    out, err = capsys.readouterr()
    assert out.startswith("PARTIAL: 8 problems in the input; this is of what could be read.\n1 req")
    lines = err.splitlines()
    assert len(lines) == 6
    assert f"{file}:1: not JSON" in lines[0]
    assert "3 more" in lines[5]


def test_partial_input_is_marked_in_json(file, capsys):
    """What could not be read, and that it is not all."""
    file.write_text("junk\n" + line() + line())
    assert run(file, "--json") == 0
    out, err = capsys.readouterr()
    found = json.loads(out)["input"]
    assert (found["partial"], found["files"], found["problems"]["count"]) == (True, 1, 1)
    assert found["problems"]["first"][0].startswith(f"{file}:1: not JSON")
    assert found["notes"] == ["1 span(s) met again count once"]
    assert err.splitlines()[1] == "llmtrace report: 1 span(s) met again count once"


def test_whole_input_is_not_marked(file, capsys):
    """Nothing is amiss."""
    assert run(file, "--json") == 0
    assert json.loads(capsys.readouterr().out)["input"] == {
        "partial": False,
        "files": 1,
        "problems": {"count": 0, "first": []},
        "notes": [],
    }


def test_output_file(file, tmp_path, capsys):
    """Written whole, without colours, and told; written over if it is a regular file."""
    out = tmp_path / "report.txt"
    for _ in range(2):
        assert run(file, "-o", out) == 0
        assert out.read_text().startswith("1 request")
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err == f"llmtrace report: written to {out}\n"


def test_output_to_standard_output(file, capsys):
    """``-o -`` is standard output."""
    assert run(file, "-o", "-") == 0
    assert capsys.readouterr().out.startswith("1 request")


@pytest.mark.parametrize("place", ["folder", "missing/report.txt", "t.jsonl", "link"])
def test_output_that_cannot_or_must_not_be_written(file, tmp_path, capsys, place):
    """A folder, a file in no folder, and the recording itself, also by another name."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(file)
    before = file.read_text()
    assert run(file, "-o", tmp_path / place) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"llmtrace report: {tmp_path / place}: ")
    assert err.count("\n") == 1
    assert file.read_text() == before


def test_output_is_not_written_over_a_recording_of_a_folder_read(file, tmp_path, capsys):
    """The folder is read, and OUT is one of the files in it."""
    before = file.read_text()
    assert run(tmp_path, "-o", file) == 2
    assert "one of the files read" in capsys.readouterr().err
    assert file.read_text() == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_output_to_a_pipe_is_refused(file, tmp_path, capsys):
    """Only regular files are written over."""
    os.mkfifo(tmp_path / "pipe")
    assert run(file, "-o", tmp_path / "pipe") == 2
    assert "not a regular file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("missing", "option"), [("numpy", "--json"), ("orjson", "--json"), ("rich", "--format=text")]
)
def test_a_missing_package_is_one_line_with_the_remedy(file, missing, option):
    """In a process of its own, where the package cannot be imported."""
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from llmtrace.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "report", str(file), option],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    wanted = f"llmtrace report: needs {missing}: pip install 'llmtrace[report]'\n"
    assert (done.stdout, done.stderr) == ("", wanted)


def test_json_does_without_rich(file):
    """Only text needs it; and neither torch nor transformers is loaded."""
    code = (
        "import sys; sys.modules['rich'] = None\n"
        "from llmtrace.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "report", str(file), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["requests"]["total"] == 1


def test_a_terminal_with_few_letters(file):
    """An ASCII-only standard output gets question marks, not a traceback."""
    file.write_text(
        line("aa", attribute("gen_ai.request.model", stringValue="modèle")), encoding="utf-8"
    )
    done = subprocess.run(
        [sys.executable, "-m", "llmtrace", "report", str(file)],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0, done.stderr
    assert b"mod?le on unknown" in done.stdout


def test_help_names_what_there_is(capsys):
    """Every option is explained, and every format named."""
    with pytest.raises(SystemExit):
        run("--help")
    out = capsys.readouterr().out
    for option in ("FILE", "--format", "--json", "--include-cold", "-o"):
        assert option in out
    assert "{text,json,markdown,html}" in out


def test_several_files_are_one_report(file, tmp_path, capsys):
    """Files and folders add up; the same file twice does not."""
    other = tmp_path / "more" / "u.jsonl"
    other.parent.mkdir()
    other.write_text(line("bb"))
    assert run(file, Path(other).parent, file, "--json") == 0
    assert json.loads(capsys.readouterr().out)["requests"]["total"] == 2


@pytest.mark.parametrize(
    ("form", "start"), [("markdown", "### llmtrace: 1 request"), ("html", "<!doctype html>")]
)
def test_other_formats(file, tmp_path, capsys, form, start):
    """To standard output, and to a file."""
    assert run(file, "--format", form) == 0
    out = capsys.readouterr().out
    assert out.startswith(start)
    assert run(file, "--format", form, "-o", tmp_path / "out") == 0
    assert (tmp_path / "out").read_text() == out


def test_a_page_is_not_poured_into_a_terminal(file, capsys, monkeypatch):
    """Exit code 2, and what to do."""
    monkeypatch.setattr("llmtrace.cli.report._is_terminal", lambda: True)
    assert run(file, "--format", "html") == 2
    assert "-o report.html" in capsys.readouterr().err

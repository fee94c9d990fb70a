"""report, check and compare on what the real model's requests left in files."""

import contextlib
import json
import statistics
import time

import pytest
import torch

import llmtrace
from llmtrace.analysis.report import build_report
from llmtrace.cli import main
from llmtrace.reports import json_report

REQUESTS = 9
TOKENS = 4


@contextlib.contextmanager
def slowed(model, delay_s):
    """Every forward takes so much longer."""
    hook = model.register_forward_pre_hook(lambda *_: time.sleep(delay_s))
    try:
        yield
    finally:
        hook.remove()


def record(folder, smollm2, monkeypatch):
    """Return the records of some requests, and the file that they were written to."""
    model, tokenizer = smollm2
    monkeypatch.setenv("LLMTRACE_DIR", str(folder))
    with llmtrace.instrument(), llmtrace.capture() as records:
        for i in range(REQUESTS):
            text = "Water runs down the hill. " * (1 + 3 * (i % 4))
            inputs = tokenizer(text, return_tensors="pt")
            model.generate(**inputs, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False)
    (file,) = folder.iterdir()
    return records, file


@pytest.fixture(scope="module")
def recorded(smollm2, tmp_path_factory):
    """The same requests twice: as they are, and with a delay, long beside any noise."""
    folders = [tmp_path_factory.mktemp(name) for name in ("before", "after")]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as monkeypatch:
        before = record(folders[0], smollm2, monkeypatch)
        delay_s = 3 * statistics.median(gap for r in before[0] for gap in r.itl_s)
        with slowed(smollm2[0], delay_s):
            after = record(folders[1], smollm2, monkeypatch)
    torch.set_num_threads(threads)
    return before, after, delay_s


def told(capsys, *argv):
    code = main([*map(str, argv), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_report_of_the_file_is_that_of_the_records(recorded, capsys):
    """Number for number, but for the nanosecond that spans are cut to."""
    for records, file in recorded[:2]:
        code, found = told(capsys, "report", file, "--include-cold")
        assert code == 0
        assert found.pop("input")["partial"] is False
        expected = json.loads(
            json_report.render(build_report(sorted_by_start(records), include_cold=True))
        )
        assert found.keys() == expected.keys()
        for key in expected.keys() - {"findings"}:
            assert close(found[key], expected[key]), key
        assert found["requests"]["total"] == REQUESTS
        assert found["itl_s"]["count"] == REQUESTS * (TOKENS - 1)


def sorted_by_start(records):
    return sorted(records, key=lambda record: record.start_unix_ns)


def close(found, expected):
    """Whether two parts of a report are the same, with times to some nanoseconds."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            close(found[key], expected[key]) for key in expected
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(close, found, expected))
    if isinstance(expected, float):
        return found == pytest.approx(expected, rel=1e-5, abs=1e-8)
    return found == expected


def test_policies_about_what_is_known(recorded, tmp_path, capsys):
    """A limit just above what was measured is kept, one just below is not."""
    _, file = recorded[0]
    _, report = told(capsys, "report", file)
    p95 = report["itl_s"]["p95"] * 1e3
    policy = tmp_path / "p.toml"
    for limit, code in ((p95 * 1.001, 0), (p95 * 0.999, 1)):
        policy.write_text(f"[itl]\np95_ms = {limit}\n[tgs]\nrequire_conditions = true\n")
        assert told(capsys, "check", file, "--policy", policy)[0] == code
    # Eight warm requests are fewer than the twenty that the default asks for in each bucket.
    code, found = told(capsys, "check", file, "--policy", "default")
    assert code in {1, 3}
    assert {rule["outcome"] for rule in found["rules"][:3]} == {"UNDECIDED"}


def test_a_delay_of_every_forward_is_found(recorded, capsys):
    """TTFT and ITL are longer by about that, larger than noise; TGS is lower."""
    (_, before), (_, after), delay_s = recorded
    code, found = told(capsys, "compare", before, after, "--fail-on-regression", "5")
    assert code == 1
    lines = {line["name"]: line for line in found["lines"]}
    for name in ("TTFT p50", "ITL p50"):
        line = lines[name]
        assert line["outcome"] == "worse"
        assert line["after"] - line["before"] > delay_s / 2
        assert line["sentence"].endswith("larger than noise: worse")
    assert lines["TGS request mean"]["outcome"] == "worse"
    assert told(capsys, "compare", after, before, "--fail-on-regression", "5")[0] != 1


def test_a_recording_against_itself_has_not_changed(recorded, capsys):
    """Nothing is larger than noise."""
    _, file = recorded[0]
    code, found = told(capsys, "compare", file, file, "--fail-on-regression", "1")
    assert code == 0
    assert {line["outcome"] for line in found["lines"]} <= {"within noise", "undecided"}

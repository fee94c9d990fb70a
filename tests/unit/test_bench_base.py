"""What all measuring tools share, on times that a test decides; no torch."""

import csv
import gc
import json

import pytest

from llmtrace.bench import cautions, outputs, ttft
from llmtrace.bench.prompts import read_texts
from llmtrace.bench.shapes import SHAPES, shape
from llmtrace.bench.trials import Trials
from llmtrace.errors import ConfigError
from tests.unit.requests import request


def parts(total, prompt=10, **more):
    """A request whose TTFT is *total*, in the parts that make it."""
    return request(
        total,
        total + 0.01,
        prompt=prompt,
        **{
            "ttft_from_request_s": total + 0.002,
            "queue_s": 0.0005,
            "tokenize_s": 0.0015,
            "prepare_s": 0.001,
            "prefill_s": total - 0.002,
            "sampling_s": 0.001,
            **more,
        },
    )


class TestTtft:
    def test_numbers(self):
        """Mean, P95 and deviation are those of the requests that count."""
        good = [parts(0.1 + 0.001 * i) for i in range(21)]
        cold = parts(9.0, cold=True, cold_reasons=("compilation",))
        failed = parts(9.0, error="builtins.RuntimeError")
        found = ttft.evaluate(Trials(records=[*good, cold, failed]))
        assert found.ttft_s.count == 21
        assert found.ttft_s.mean == pytest.approx(0.110)
        assert found.ttft_s.p95 == pytest.approx(0.119)
        assert ttft.line(found) == "TTFT_mean=110.0ms, TTFT_p95=119.0ms, std=6.1ms"
        assert [c.code for c in found.cautions] == ["cold"]
        assert "1 requests" in found.cautions[0].text
        assert "compilation" in found.cautions[0].text

    def test_parts_add_up(self):
        """The means of the parts are the mean of TTFT from the request."""
        found = ttft.evaluate(Trials(records=[parts(0.1), parts(0.3)]))
        whole = sum(part.mean for part in found.parts.values())
        assert whole == pytest.approx(found.ttft_from_request_s.mean)

    def test_each_length_of_prompt(self):
        """A bucket for each length; lengths differ, and that is no variation."""
        records = [parts(0.1 * n, prompt=n) for n in (1, 2, 8) for _ in range(20)]
        found = ttft.evaluate(Trials(records=records))
        assert [(b.first, b.last, b.summary.count) for b in found.by_prompt] == [
            (1, 1, 20),
            (2, 2, 20),
            (8, 8, 20),
        ]
        assert found.cautions == ()

    def test_many_lengths_share(self):
        """Of many lengths, neighbours share a bucket, and none is left out."""
        found = ttft.evaluate(Trials(records=[parts(0.1, prompt=n) for n in range(1, 101)]))
        assert len(found.by_prompt) == ttft.MOST_LENGTHS
        assert sum(b.summary.count for b in found.by_prompt) == 100

    def test_doubts(self):
        """Few requests, and requests that vary, are said to be so."""
        found = ttft.evaluate(Trials(records=[parts(0.1), parts(0.3)], interrupted=True))
        assert [c.code for c in found.cautions] == ["interrupted", "few_trials", "high_variation"]

    def test_nothing_measured(self):
        """There is no number, and that is said."""
        found = ttft.evaluate(Trials())
        assert found.ttft_s is None
        assert ttft.line(found) is None
        assert [c.code for c in found.cautions] == ["nothing_measured"]

    def test_rows(self, tmp_path):
        """One line a request; what does not exist is empty."""
        found = ttft.evaluate(Trials(records=[parts(0.1), parts(0.2, tokenize_s=None, cold=True)]))
        folder = outputs.OutputFolder(str(tmp_path), "ttft")
        file = folder.write_csv(ttft.rows(found), ttft.COLUMNS)
        first, second = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
        assert float(first["ttft_s"]) == 0.1
        assert (first["counted"], second["counted"], second["tokenize_s"]) == ("1", "0", "")


class TestBusyMachine:
    def test_said(self):
        """Other programs' share of the processor, and other processes on the GPU."""
        gpus = [{"name": "x", "other_processes": 2}, {"name": "x"}]
        assert [c.code for c in cautions.busy(0.5, gpus)] == ["machine_busy", "gpu_shared"]
        assert cautions.busy(0.01, [{"name": "x", "other_processes": 0}]) == []

    def test_own_work_is_not_others(self):
        """What this process does is not counted as others' work."""
        work = cautions.OtherWork()
        end = work._begun[0] + 0.3
        while work._read()[0] < end:
            pass
        before = work._begun
        work._read = lambda: (before[0] + 1, before[1] + 0.5, before[2] + 0.5)
        assert work.share() == pytest.approx(0)


class TestOutputs:
    def test_nothing_is_written_over(self, tmp_path):
        """Results that lie there stop it, unless asked otherwise; other files never do."""
        (tmp_path / "notes.txt").write_text("mine")
        folder = outputs.OutputFolder(str(tmp_path), "ttft")
        folder.write_json({"a": 1})
        with pytest.raises(ConfigError, match=r"ttft\.json lies there already"):
            outputs.OutputFolder(str(tmp_path), "ttft")
        again = outputs.OutputFolder(str(tmp_path), "ttft", overwrite=True)
        assert (tmp_path / "ttft.json").exists(), "there is nothing yet to replace it"
        again.clear()
        assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]

    def test_files_of_others_are_kept(self, tmp_path):
        """A name that begins as the tool's does is not its own."""
        mine = {"kv.md", "kv-notes.txt", "kv_old.json", "kvm.csv"}
        for name in (*mine, "kv.csv", "kv-leaks.png", "trace.jsonl"):
            (tmp_path / name).write_text("")
        outputs.OutputFolder(str(tmp_path), "kv", overwrite=True).clear()
        assert {file.name for file in tmp_path.iterdir()} == mine

    def test_a_run_that_writes_nothing_leaves_no_folder(self, tmp_path):
        """Only what was made for it goes."""
        new, old = tmp_path / "new", tmp_path / "old"
        old.mkdir()
        folders = [outputs.OutputFolder(str(place), "ttft") for place in (new, old)]
        assert new.is_dir()
        folders.clear()
        gc.collect()
        assert old.is_dir()
        assert not new.exists()

    def test_two_runs_of_one_second_have_a_folder_each(self, tmp_path, monkeypatch):
        """Neither writes into the other's."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(outputs, "_now", lambda: "20260101-000000")
        folders = [outputs.OutputFolder(None, "ttft") for _ in range(3)]
        names = [folder.path.name for folder in folders]
        assert names == ["ttft-20260101-000000" + end for end in ("", "-2", "-3")]

    def test_a_folder_that_cannot_be_made(self, tmp_path):
        """One line."""
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match="--out"):
            outputs.OutputFolder(str(tmp_path / "file"), "ttft")

    def test_json_is_strict(self):
        """No NaN, no Infinity."""
        assert json.loads(outputs.to_json({"a": float("nan"), "b": [float("inf"), 1.5]})) == {
            "a": None,
            "b": [None, 1.5],
        }


class TestPromptFile:
    def test_one_a_line(self, tmp_path):
        """Empty lines are no prompts."""
        file = tmp_path / "p.txt"
        file.write_text("first\n\nsecond one\n", encoding="utf-8")
        assert read_texts(str(file)) == ["first", "second one"]

    def test_json_lines(self, tmp_path):
        """Under any of the usual keys, line ends inside included."""
        file = tmp_path / "p.jsonl"
        file.write_text('{"prompt": "a\\nb"}\n{"text": "c", "id": 3}\n', encoding="utf-8")
        assert read_texts(str(file)) == ["a\nb", "c"]

    def test_only_a_line_feed_ends_a_line(self, tmp_path):
        """JSON may hold U+2028, a text a form feed; a mark of the byte order is no text."""
        file = tmp_path / "p"
        file.write_bytes(b'\xef\xbb\xbf{"prompt": "a\xe2\x80\xa8b"}\r\n{"text": "c"}\r\n')
        assert read_texts(str(file)) == ["a\u2028b", "c"]
        file.write_bytes(b"one\x0ctwo\nthree\n")
        assert read_texts(str(file)) == ["one\x0ctwo", "three"]

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"", "holds no prompt"),
            (b"\xff\xfe", "is not UTF-8 text"),
            (b'{"prompt": "a"}\nno json', "line 2: is no JSON"),
            (b'{"prompt": "a"}\n{"other": 1}', "line 2: has no text under one of prompt"),
            (b'{"prompt": 3}', "line 1: has no text"),
        ],
    )
    def test_spoilt(self, tmp_path, content, says):
        """File and line are named."""
        file = tmp_path / "p"
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=says):
            read_texts(str(file))


class TestShapes:
    def test_llama2_7b(self):
        """The weights are as many as the model's name says."""
        s = SHAPES["llama2-7b"]
        d, ff, v, layers = (
            s[k] for k in ("hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers")
        )
        assert layers * (4 * d * d + 3 * d * ff + 2 * d) + 2 * v * d + d == 6_738_415_616

    @pytest.mark.parametrize(
        ("content", "says"),
        [("[1]", "no model_type"), ("{", "holds no JSON"), ('{"hidden_size": 3}', "no model_type")],
    )
    def test_no_config(self, tmp_path, content, says):
        """A file that holds none is named."""
        file = tmp_path / "config.json"
        file.write_text(content)
        with pytest.raises(ConfigError, match=says):
            shape(str(file))

"""The parts of the time to the first text, of several requests; worked out by hand."""

import pytest

from llmtrace.analysis.first_text import FORMULAS, first_text
from llmtrace.analysis.report import build_report
from llmtrace.records import RequestRecord
from llmtrace.reports import text

PARTS = {
    "queue_s": 0.050,
    "tokenize_s": 0.010,
    "prepare_s": 0.005,
    "prefill_s": 0.100,
    "sampling_s": 0.005,
    "delivery_s": 0.010,
    "hold_back_s": 0.020,
}


def record(**more):
    """A streamed request whose first text was there 200 ms after it had reached the server."""
    values = {
        "model": "llama",
        "strategy": "greedy",
        "device": "cpu",
        "clock": "host",
        "start_unix_ns": 0,
        "duration_s": 0.2,
        "ttft_s": 0.110,
        "e2e_s": 0.110,
        "first_visible_text_s": 0.140,
        "output_tokens": 1,
        **PARTS,
    }
    return RequestRecord(**{**values, **more})


def test_the_parts_add_up_to_the_total():
    """200 and 300 ms: the means of the parts add up to 250 ms, their shares to 1."""
    found = first_text([record(), record(prefill_s=0.200)])
    assert found.total_s.mean == pytest.approx(0.250)
    assert sum(part.mean for part in found.parts.values()) == pytest.approx(0.250)
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.shares["prefill"] == pytest.approx(0.300 / 0.500)
    assert list(found.parts) == list(FORMULAS)


def test_a_part_that_one_request_lacks():
    """Of 200 ms with and 150 ms without a queue, 50 ms were queue: one value, a share of both."""
    found = first_text([record(), record(queue_s=None)])
    assert found.parts["queue"].count == 1
    assert found.shares["queue"] == pytest.approx(0.050 / 0.350)
    assert sum(found.shares.values()) == pytest.approx(1)


def test_a_part_that_nobody_has_is_absent():
    """Without a server span or request() there is no queue: None, not 0."""
    found = first_text([record(queue_s=None)])
    assert found.parts["queue"] is None
    assert found.shares["queue"] is None


@pytest.mark.parametrize("unknown", [{"first_visible_text_s": None}, {"prefill_s": None}])
def test_requests_without_readers_are_left_out(unknown):
    """What nobody has read, or of which a part is not known, has no first text."""
    assert first_text([record(**unknown)]) is None
    assert first_text([record(), record(**unknown)]).total_s.count == 1
    assert first_text([]) is None


@pytest.mark.parametrize("width", [76, 80, 100])
def test_the_report_shows_them(width):
    """A table of what readers waited for, its total last; without readers there is none."""
    shown = text.render(build_report([record()]), width=width)
    lines = shown.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("First text ms"))
    rows = {line[:20].strip(): line.split() for line in lines[start + 2 : start + 10]}
    assert list(rows) == [*(name.replace("_", " ") for name in FORMULAS), "all"]
    assert (rows["prefill"][2], rows["prefill"][-1]) == ("100.00", "50.0%")
    assert (rows["all"][2], rows["all"][-1]) == ("200.00", "100.0%")
    assert max(map(len, lines)) <= width
    assert "First text ms" not in text.render(build_report([record(first_visible_text_s=None)]))

"""From marks to records: arithmetic worked out by hand, and the glossary's identities."""

import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.recording.build import build_record
from llmtrace.recording.recorder import Marks
from llmtrace.recording.request import FinishedRequest, RequestInfo
from llmtrace.recording.stream import StreamTimes
from llmtrace.records import (
    GenerationParameters,
    RequestRecord,
    first_text_phases,
    rows_per_gap,
)

MS = 1_000_000
T0 = 5_000 * MS


def at(*times_ms):
    return [T0 + round(t * MS) for t in times_ms]


def marks(tokens=(), forwards=(), *, end=1_000, **more):
    """Marks of a host-clock request: token times, and (start, end) of forwards, in ms."""
    values = {
        "start_ns": T0,
        "end_ns": at(end)[0],
        "forward_starts": at(*(a for a, _ in forwards)),
        "forward_ends": at(*(b for _, b in forwards)),
        "tokens": at(*tokens),
        "token_forwards": [min(i, len(forwards)) for i in range(1, len(tokens) + 1)],
    }
    return Marks(**{**values, **more})


def record_of(the_marks, **info):
    return build_record(FinishedRequest(RequestInfo(**info), the_marks, 10**18, None, None))


def greedy(**more):
    """Four tokens at 50, 60, 80 and 90 ms."""
    forwards = [(5, 40), (51, 58), (62, 75), (81, 89)]
    return marks([50, 60, 80, 90], forwards, end=95, **more)


def test_latencies_of_one_row():
    """TTFT, ITL, TPOT, E2E and both rates are those of the glossary."""
    record = record_of(greedy(), strategy="greedy", output_tokens_per_row=(4,))
    assert record.ttft_s == pytest.approx(0.050)
    assert record.itl_s == pytest.approx([0.010, 0.020, 0.010])
    assert record.tpot_s == pytest.approx(0.040 / 3)
    assert record.e2e_s == pytest.approx(0.090)
    assert record.tgs == pytest.approx(4 / 0.090)
    assert record.decode_tgs == pytest.approx(3 / 0.040)
    assert record.prefill_s == pytest.approx(0.035)
    assert record.duration_s == pytest.approx(0.095)
    assert record.output_tokens == 4
    assert record.clock == "host"
    assert record.findings == ()


def test_steps_of_one_row():
    """Each step runs from token to token and holds its own forward."""
    steps = record_of(greedy(), output_tokens_per_row=(4,)).steps
    assert [s.index for s in steps] == [0, 1, 2, 3]
    assert [s.phase for s in steps] == ["prefill", "decode", "decode", "decode"]
    assert [s.start_s for s in steps] == pytest.approx([0, 0.050, 0.060, 0.080])
    assert [s.end_s for s in steps] == pytest.approx([0.050, 0.060, 0.080, 0.090])
    assert [s.host_duration_s for s in steps] == pytest.approx([0.035, 0.007, 0.013, 0.008])
    assert [s.forward_start_s for s in steps] == pytest.approx([0.005, 0.051, 0.062, 0.081])
    assert [s.forward_end_s for s in steps] == pytest.approx([0.040, 0.058, 0.075, 0.089])
    assert {s.tokens for s in steps} == {1}
    assert {s.forwards for s in steps} == {1}
    assert {s.device_duration_s for s in steps} == {s.launch_lead_s for s in steps} == {None}


LATENCIES = ("ttft_s", "tpot_s", "e2e_s", "tgs", "decode_tgs", "prefill_s", "host_bound_ratio")


def test_a_request_of_no_token_has_no_latency():
    """Without a token everything that starts from one is absent."""
    record = record_of(marks(end=3))
    assert [getattr(record, name) for name in LATENCIES] == [None] * len(LATENCIES)
    assert record.itl_s == []
    assert record.output_tokens is None
    assert record.duration_s == pytest.approx(0.003)


def test_one_token_has_a_ttft_and_no_gap():
    """With n = 1 there is a TTFT and a rate, and neither ITL nor TPOT nor a decode rate."""
    record = record_of(marks([50], [(5, 40)]), output_tokens_per_row=(1,))
    assert record.ttft_s == record.e2e_s == pytest.approx(0.050)
    assert record.tgs == pytest.approx(20)
    assert record.itl_s == []
    assert record.tpot_s is None
    assert record.decode_tgs is None


def test_two_tokens_have_one_gap():
    """With n = 2 the one gap is the TPOT."""
    record = record_of(marks([50, 62], [(5, 40), (51, 60)]), output_tokens_per_row=(2,))
    assert record.itl_s == pytest.approx([0.012])
    assert record.tpot_s == pytest.approx(0.012)


def test_rows_of_a_batch_stop_where_they_stop():
    """Rows of 2 and 4 tokens count 6; the gaps are the steps', the rates those of all rows."""
    record = record_of(greedy(), batch_size=2, output_tokens_per_row=(2, 4))
    assert record.output_tokens == 6
    assert record.itl_s == pytest.approx([0.010, 0.020, 0.010])
    assert record.tgs == pytest.approx(6 / 0.090)
    assert record.decode_tgs == pytest.approx((1 + 3) / 0.040)
    assert record.tpot_s == pytest.approx(0.040 / 3)
    assert rows_per_gap(record) == [2, 1, 1]


def test_a_gap_counts_once_for_each_row_with_a_token_in_it():
    """Of three rows, the k-th gap counts for those with more than k tokens."""
    record = record_of(greedy(), batch_size=3, output_tokens_per_row=(1, 3, 4))
    assert rows_per_gap(record) == [2, 2, 1]


def test_a_gap_of_beams_counts_once():
    """Beams advance together and only some are returned: their gaps count once."""
    record = record_of(
        greedy(),
        batch_size=2,
        output_tokens_per_row=(3, 4),
        parameters=GenerationParameters(num_beams=3),
    )
    assert rows_per_gap(record) == [1, 1, 1]


def test_a_gap_of_one_row_counts_once():
    """A single row, or none known, has each gap once."""
    assert rows_per_gap(record_of(greedy(), output_tokens_per_row=(4,))) == [1, 1, 1]
    assert rows_per_gap(record_of(greedy(), batch_size=3, error="E")) == [1, 1, 1]


def test_an_assisted_step_of_k_tokens_has_k_equal_gaps():
    """Steps of 1, 3 and 2 tokens give gaps of a third and a half of their step."""
    record = record_of(
        marks([50, 80, 100], token_counts=[1, 3, 2]),
        strategy="assisted",
        output_tokens_per_row=(6,),
    )
    assert record.itl_s == pytest.approx([0.010, 0.010, 0.010, 0.010, 0.010])
    assert [s.tokens for s in record.steps] == [1, 3, 2]
    assert record.tpot_s == pytest.approx(0.050 / 5)
    assert record.decode_tgs == pytest.approx(5 / 0.050)


def test_tokens_that_come_with_the_first_have_no_gap_in_time():
    """A first step of 3 tokens has two gaps of no length: they were there at once."""
    record = record_of(
        marks([50, 80], token_counts=[3, 1]), strategy="assisted", output_tokens_per_row=(4,)
    )
    assert record.itl_s == pytest.approx([0, 0, 0.030])
    assert record.tpot_s == pytest.approx(0.010)


def test_a_chunked_prefill_is_one_step():
    """The prefill runs from its first chunk's start to its last one's end."""
    record = record_of(
        marks([50, 60], [(5, 15), (16, 26), (28, 40), (51, 58)], token_forwards=[3, 4])
    )
    prefill, decode = record.steps
    assert prefill.forwards == 3
    assert prefill.host_duration_s == pytest.approx(0.032)
    assert record.prefill_s == pytest.approx(0.035)
    assert decode.forwards == 1


def test_a_surplus_forward_is_in_no_step():
    """Five forwards and four tokens are four steps."""
    surplus = marks([50, 60, 80, 90], [(5, 40), (51, 58), (62, 75), (81, 89), (91, 99)])
    record = record_of(surplus, strategy="greedy", output_tokens_per_row=(4,))
    assert sum(s.forwards for s in record.steps) == 4
    assert record.e2e_s == pytest.approx(0.090)


def test_a_token_that_was_undone_is_in_no_step():
    """A loop that checks for its end one step late loses that step again."""
    record = record_of(greedy(), strategy="greedy", output_tokens_per_row=(3,))
    assert len(record.steps) == 3
    assert record.e2e_s == pytest.approx(0.080)
    assert len(record.itl_s) == 2


def test_steps_of_beams_are_all_kept():
    """Beams that are returned shorter than the loop ran keep its steps."""
    record = record_of(greedy(), strategy="beam", output_tokens_per_row=(2,))
    assert len(record.steps) == 4


def device(**more):
    """Four tokens on a device that is ahead of nobody."""
    return greedy(
        clock="cuda",
        clock_error_ns=9_000,
        device_prefill_start=at(6)[0],
        device_forward_ends=at(48, 58.1, 78, 89.1999),
        **more,
    )


def test_device_durations_run_from_the_step_s_start():
    """A decode step begins on the device with the token before, a prefill with its own mark."""
    record = record_of(device(), output_tokens_per_row=(4,))
    assert [s.device_duration_s for s in record.steps] == pytest.approx(
        [0.042, 0.0081, 0.018, 0.0091999]
    )
    assert record.prefill_s == pytest.approx(0.042)
    assert record.steps[0].forward_start_s == pytest.approx(0.006)
    assert [s.forward_end_s for s in record.steps] == pytest.approx(
        [0.048, 0.0581, 0.078, 0.0891999]
    )
    assert record.clock == "cuda"
    assert record.clock_error_s == pytest.approx(9e-6)


def test_a_compiled_forward_begins_on_the_device_at_its_replay():
    """Where a CUDA graph was replayed; not before the token before, on which it waits."""
    replays = [(1, at(55)[0]), (2, at(59)[0])]
    record = record_of(device(replays=replays), output_tokens_per_row=(4,))
    starts = [step.forward_start_s for step in record.steps]
    assert starts == pytest.approx([0.006, 0.055, 0.060, 0.081])


def test_launch_lead_is_device_end_minus_host_return():
    """Leads of 0.1, 3 and 0.1999 ms: two of the three decode steps waited for Python."""
    record = record_of(device(), output_tokens_per_row=(4,))
    assert [s.launch_lead_s for s in record.steps] == pytest.approx([0.008, 1e-4, 3e-3, 1.999e-4])
    assert record.host_bound_ratio == pytest.approx(2 / 3)


def test_the_prefill_s_lead_is_no_decode_step_s():
    """A request of one token has no decode step, so no host-bound ratio."""
    one = marks([50], [(5, 40)], device_prefill_start=at(6)[0], device_forward_ends=at(40.01))
    record = record_of(one)
    assert record.steps[0].launch_lead_s == pytest.approx(1e-5)
    assert record.host_bound_ratio is None


def test_a_forward_not_seen_to_begin_has_no_duration():
    """Where only a forward's end is known, host duration and prefill are absent."""
    seen = marks([50, 60], [(40, 40), (58, 58)])
    record = record_of(seen, output_tokens_per_row=(2,))
    assert [s.host_duration_s for s in record.steps] == [None, None]
    assert [s.forward_start_s for s in record.steps] == [None, None]
    assert [s.forward_end_s for s in record.steps] == pytest.approx([0.040, 0.058])
    assert record.prefill_s is None
    assert record.ttft_s == pytest.approx(0.050)


def test_queue_leaves_tokenizing_out_and_ttft_from_request_does_not():
    """Of 30 ms before the request, 8 were tokenizing: 22 ms of queue, 80 ms to the first token."""
    record = record_of(
        greedy(),
        queued_since_ns=T0 - 30 * MS,
        tokenize_ns=8 * MS,
        tokenize_begun_ns=T0 - 20 * MS,
        output_tokens_per_row=(4,),
    )
    assert record.queue_s == pytest.approx(0.022)
    assert record.tokenize_s == pytest.approx(0.008)
    assert record.ttft_from_request_s == pytest.approx(0.080)


def test_without_an_enclosing_request_there_is_no_queue():
    """Queue and TTFT from the request are absent, tokenizing is not."""
    record = record_of(greedy(), tokenize_ns=8 * MS)
    assert record.queue_s is None
    assert record.ttft_from_request_s is None
    assert record.tokenize_s == pytest.approx(0.008)


def test_no_first_token_no_ttft_from_request():
    """A queue is known before anything was generated; a TTFT is not."""
    record = record_of(marks(), queued_since_ns=T0 - 30 * MS, error="ValueError")
    assert record.queue_s == pytest.approx(0.030)
    assert record.ttft_from_request_s is None


def test_tokenizing_before_the_enclosing_request_is_not_taken_off_its_queue():
    """Tokenizing that began 9 ms before, 4 ms before the enclosing request: all 5 ms are queue."""
    record = record_of(
        greedy(),
        queued_since_ns=T0 - 5 * MS,
        tokenize_ns=3 * MS,
        tokenize_begun_ns=T0 - 9 * MS,
    )
    assert record.queue_s == pytest.approx(0.005)


def test_the_parts_add_up_to_the_first_visible_text():
    """From the request's arrival: 22 + 8 ms before, then 5, 35, 10, 7 and 13 ms to text."""
    stream = StreamTimes(pull=True, delivered_ns=at(57)[0], visible_ns=at(70)[0])
    record = record_of(
        greedy(),
        queued_since_ns=T0 - 30 * MS,
        tokenize_ns=8 * MS,
        tokenize_begun_ns=T0 - 20 * MS,
        stream=stream,
        output_tokens_per_row=(4,),
    )
    parts = first_text_phases(record)
    assert list(parts.values()) == pytest.approx([0.022, 0.008, 0.005, 0.035, 0.010, 0.007, 0.013])
    assert sum(list(parts.values())[:5]) == pytest.approx(record.ttft_from_request_s)
    assert sum(parts.values()) == pytest.approx(0.030 + record.first_visible_text_s)


def test_parts_that_do_not_exist_are_absent():
    """No streamer, no server span: only what ``generate()`` itself did is known."""
    parts = first_text_phases(record_of(greedy()))
    assert [name for name, value in parts.items() if value is not None] == [
        "prepare",
        "prefill",
        "sampling",
    ]
    assert set(first_text_phases(record_of(marks())).values()) == {None}


def test_deliveries_count_from_the_start():
    """First delivery and first visible text are times after the request's start."""
    stream = StreamTimes(pull=True, delivered_ns=at(55)[0], visible_ns=at(70)[0])
    record = record_of(greedy(), stream=stream)
    assert record.first_delivery_s == pytest.approx(0.055)
    assert record.first_visible_text_s == pytest.approx(0.070)


def test_a_streamer_that_nobody_read_delivered_nothing():
    """Without a consumer first delivery is absent."""
    record = record_of(greedy(), stream=StreamTimes(pull=True))
    assert record.first_delivery_s is None


def test_a_step_has_the_first_put_after_its_forward():
    """Of two puts in a step the first counts; a step without a put has none."""
    record = record_of(greedy(puts=at(52, 54, 92), put_forwards=[1, 1, 4]))
    assert record.steps[0].put_s == pytest.approx(0.052)
    assert [s.put_s for s in record.steps[1:3]] == [None, None]
    assert record.steps[3].put_s == pytest.approx(0.092)


def test_a_failed_request_keeps_what_it_had():
    """The tokens until the error are counted and timed; the rows are the steps' where ids lack."""
    record = record_of(greedy(), error="ValueError", finish_reasons=("error",))
    assert record.error == "ValueError"
    assert record.output_tokens == 4
    assert record.ttft_s == pytest.approx(0.050)


def test_a_request_that_fails_at_once_made_no_token():
    """An error before the first token is 0 output tokens in every row, and no latency."""
    record = record_of(marks(end=2), error="ValueError", batch_size=3)
    assert record.output_tokens == 0
    assert record.output_tokens_per_row == (0, 0, 0)
    assert [getattr(record, name) for name in LATENCIES] == [None] * len(LATENCIES)


def test_rows_of_a_failed_batch_are_not_guessed():
    """How far each row of a failed batch had come is not known without its ids."""
    record = record_of(greedy(), error="ValueError", batch_size=3)
    assert record.output_tokens is None
    assert record.tgs is None


def test_an_own_loop_without_marks_counts_forwards():
    """Each forward call is one token, selected when the call ended; a finding says so."""
    record = record_of(marks((), [(5, 40), (45, 55), (60, 70)]), own_loop=True)
    assert record.ttft_s == pytest.approx(0.040)
    assert record.itl_s == pytest.approx([0.015, 0.015])
    assert record.output_tokens == 3
    assert [f.code for f in record.findings] == ["tokens_from_forwards"]


def test_an_own_loop_without_marks_uses_the_device_s_ends():
    """On a device the forward's end there is the token's time."""
    record = record_of(
        marks(
            (),
            [(5, 40), (45, 55)],
            device_prefill_start=at(6)[0],
            device_forward_ends=at(48, 61),
            clock="cuda",
        ),
        own_loop=True,
    )
    assert record.ttft_s == pytest.approx(0.048)
    assert record.itl_s == pytest.approx([0.013])


def test_an_own_loop_with_marks_counts_marks():
    """Where ``token()`` was called, forward calls are not tokens."""
    record = record_of(
        marks([50, 70], [(5, 40), (45, 55), (60, 68)], token_forwards=[1, 3], token_counts=[1, 2]),
        own_loop=True,
        batch_size=2,
    )
    assert record.output_tokens_per_row == (3, 3)
    assert record.itl_s == pytest.approx([0.010, 0.010])
    assert [s.forwards for s in record.steps] == [1, 2]
    assert record.findings == ()


def test_forwards_alone_are_no_tokens_of_generate():
    """Only an own loop's forwards may stand for tokens."""
    assert record_of(marks((), [(5, 40)])).steps == []


def test_a_truncated_request_keeps_exact_totals():
    """With two steps kept of ten tokens, TPOT, E2E and the rates are those of all ten."""
    record = record_of(
        marks([50, 60], [(5, 40), (51, 58)], more_tokens=8, more_forwards=8, last_mark=at(140)[0]),
        strategy="greedy",
        output_tokens_per_row=(10,),
    )
    assert record.steps_truncated
    assert len(record.steps) == 2
    assert record.itl_s == pytest.approx([0.010])
    assert record.e2e_s == pytest.approx(0.140)
    assert record.tpot_s == pytest.approx(0.090 / 9)
    assert record.tgs == pytest.approx(10 / 0.140)
    assert record.decode_tgs == pytest.approx(9 / 0.090)
    (finding,) = record.findings
    assert finding.code == "steps_truncated"
    assert finding.evidence == "2 recorded, 8 more tokens counted"


def test_a_truncated_loop_without_marks_keeps_exact_totals():
    """Forwards past the limit count as tokens too."""
    record = record_of(
        marks((), [(5, 40), (45, 55)], more_forwards=3, last_mark=at(90)[0]), own_loop=True
    )
    assert record.output_tokens == 5
    assert record.e2e_s == pytest.approx(0.090)
    assert record.tpot_s == pytest.approx(0.050 / 4)
    assert record.steps_truncated


def test_input_tokens_are_those_without_padding():
    """Rows of 3 and 8 tokens in a tensor of 2 x 8 are 11 tokens, 16 with padding."""
    record = record_of(
        greedy(), batch_size=2, input_length=8, input_tokens_per_row=(3, 8), input_tokens_cached=2
    )
    assert record.input_tokens == 11
    assert record.input_tokens_padded == 16
    assert record.input_tokens_cached == 2


def test_unknown_input_is_absent():
    """Without ids or mask there is no count of input tokens, rather than 0."""
    record = record_of(greedy())
    assert record.input_tokens is None
    assert record.input_tokens_padded is None


@st.composite
def generations(draw, rows=1):
    """Random courses of a request: its marks, and tokens per step."""
    n = draw(st.integers(1, 30))
    gaps = draw(st.lists(st.integers(1, 10**9), min_size=n, max_size=n))
    counts = draw(st.lists(st.integers(1, 5), min_size=n, max_size=n))
    assisted = draw(st.booleans())
    on_device = draw(st.booleans())
    starts, ends, device_ends, tokens, now = [], [], [], [], T0
    for gap in gaps:
        starts.append(now)
        ends.append(now + gap // 3)
        device_ends.append(now + gap // 2)
        now += gap
        tokens.append(now)
    made = Marks(
        start_ns=T0,
        end_ns=now + draw(st.integers(0, 10**8)),
        forward_starts=starts,
        forward_ends=ends,
        tokens=tokens,
        token_forwards=list(range(1, n + 1)),
        token_counts=counts if assisted else None,
    )
    if on_device:
        made.clock = "cuda"
        made.device_prefill_start = T0
        made.device_forward_ends = device_ends
    return made, counts if assisted else [1] * n


@given(generations())
def test_the_identities_hold(generation):
    """E2E is TTFT and all gaps; the mean gap is the TPOT; there are n - 1 gaps."""
    made, counts = generation
    n = sum(counts)
    record = record_of(made, output_tokens_per_row=(n,))
    assert record.output_tokens == n
    assert len(record.itl_s) == n - 1
    assert record.ttft_s + sum(record.itl_s) == pytest.approx(record.e2e_s, rel=1e-9)
    if n > counts[0]:
        assert math.fsum(record.itl_s) / (n - 1) == pytest.approx(record.tpot_s, rel=1e-9)
    assert record.tgs == pytest.approx(n / record.e2e_s)


@given(generations())
def test_steps_tile_the_request(generation):
    """Steps begin at 0, each where the one before ended, and end with the last token."""
    record = record_of(generation[0])
    assert record.steps[0].start_s == 0
    for before, step in zip(record.steps, record.steps[1:], strict=False):
        assert step.start_s == before.end_s
        assert step.end_s > step.start_s
    assert record.steps[-1].end_s == record.e2e_s
    assert record.steps[0].end_s == record.ttft_s
    assert record.e2e_s <= record.duration_s


def numbers_of(value):
    if isinstance(value, bool):
        return
    if isinstance(value, (int, float)):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from numbers_of(item)
    elif hasattr(value, "__dataclass_fields__"):
        for field in fields(value):
            yield from numbers_of(getattr(value, field.name))


@given(generations(), st.lists(st.integers(1, 40), min_size=1, max_size=4))
def test_no_value_is_negative_or_no_number(generation, rows):
    """Whatever the course, nothing in a record is NaN, infinite or below 0."""
    record = record_of(generation[0], output_tokens_per_row=tuple(rows), batch_size=len(rows))
    for number in numbers_of(record):
        assert math.isfinite(number)
        assert number >= 0


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_gaps_weighted_by_rows_are_the_tokens_after_the_first(rows):
    """Each row's tokens after its first are counted in exactly one gap each."""
    longest = max(rows)
    record = RequestRecord(
        model="m",
        strategy="greedy",
        device="cpu",
        clock="host",
        start_unix_ns=0,
        duration_s=1.0,
        output_tokens_per_row=tuple(rows),
        itl_s=[0.01] * (longest - 1),
    )
    assert sum(rows_per_gap(record)) == sum(n - 1 for n in rows)

"""The ITL tool's figures, on requests whose every part is known."""

import json
from itertools import accumulate, pairwise

import numpy as np
import pytest

from llmtrace.bench import outputs
from llmtrace.bench.floor import Floor
from llmtrace.bench.itl import evaluation, output
from llmtrace.bench.pauses import Pause, overlap
from llmtrace.bench.texts import itl as text
from llmtrace.bench.trials import Trials
from llmtrace.recording.utilization import KvLayers, ModelCost, Row, decode_bytes
from llmtrace.records import RequestRecord, StepRecord

START = 1_700_000_000_000_000_000
PROMPT = 100
TTFT = 0.1
GAP = 0.010
BETWEEN = 0.002
LEAD = 0.004
LAG = 0.003


def request(between, forward, lead=None, lag=None, *, trial=0, **changes):
    """A request whose gaps are the sums of what its host did; on a device, it is behind.

    Args:
        between: Seconds between the forward calls, for each gap.
        forward: Seconds inside of them.
        lead: Seconds that the device is behind Python at the forward's end; None: no device.
        lag: The same at the token.
    """
    host = list(accumulate([TTFT, *(a + b for a, b in zip(between, forward, strict=True))]))
    ends = host if lag is None else [h + late for h, late in zip(host, [LAG, *lag], strict=True)]
    steps = [
        StepRecord(
            index=i,
            phase="decode" if i else "prefill",
            start_s=ends[i - 1] if i else 0.0,
            end_s=end,
            tokens=1,
            forwards=1,
            host_duration_s=forward[i - 1] if i else 0.09,
            device_duration_s=None if lead is None else end - (ends[i - 1] if i else 0) - 1e-4,
            launch_lead_s=None if lead is None else [LEAD, *lead][i],
            host_end_s=None if lead is None else host[i],
        )
        for i, end in enumerate(ends)
    ]
    facts = {
        "model": "m", "strategy": "greedy", "device": "cpu",
        "clock": "host" if lead is None else "cuda",
        "start_unix_ns": START + trial * 10**11, "duration_s": ends[-1], "batch_size": 1,
        "input_tokens": PROMPT, "output_tokens": len(ends),
        "input_tokens_per_row": (PROMPT,), "output_tokens_per_row": (len(ends),),
        "ttft_s": ends[0], "e2e_s": ends[-1], "trace_id": f"{trial:032x}",
        "itl_s": [b - a for a, b in pairwise(ends)], "steps": steps,
    }  # fmt: skip
    return RequestRecord(**(facts | changes))


def noise(seed, length):
    """A per cent or two, as a quiet machine has it."""
    return 1 + np.abs(np.random.default_rng(seed).normal(0, 0.01, length))


def run(trials=20, length=127, *, lead=None, change=None, pauses=(), floor=None, **changes):
    """The result of a run; *change* is given each request's parts before it is made."""
    records = []
    for trial in range(trials):
        random = noise(trial, length)
        parts = {
            "between": BETWEEN * random,
            "forward": (GAP - BETWEEN) * random,
            "lead": None if lead is None else lead * noise(trial + 1000, length),
            "lag": None if lead is None else lead * 0.75 * noise(trial + 2000, length),
        }
        if change is not None:
            change(trial, parts)
        lists = {k: None if v is None else v.tolist() for k, v in parts.items()}
        records.append(request(**lists, trial=trial, **changes))
    return evaluation.evaluate(Trials(records=records), pauses, floor)


def at(position):
    """The index of the gap that ends with a token."""
    return position - 2


class TestSpikes:
    def test_in_every_request_between_the_forwards(self):
        """A halt before token 65 is one position, seen in all, and not the model's time."""

        def halt(_trial, parts):
            parts["between"][at(65)] += 0.05

        found = run(change=halt).shifts
        (spike,) = found.spikes
        assert (spike.kind, spike.position, spike.cause) == ("spike", 65, "between_forwards")
        assert spike.trials == tuple(range(20))
        assert spike.after_s - spike.before_s == pytest.approx(0.05, rel=0.02)
        assert (found.lasting, found.singles) == ((), ())

    def test_in_one_request(self):
        """What happened once is told apart from what happens always."""

        def halt(trial, parts):
            if trial == 7:
                parts["forward"][at(40)] += 0.02

        found = run(change=halt).shifts
        assert found.each == ()
        (single,) = found.singles
        assert (single.kind, single.position, single.trials) == ("single", 40, (7,))
        assert single.cause == "forward"

    def test_in_most_requests(self):
        """Requests in which it is missing are not among those it is seen in."""

        def halt(trial, parts):
            if trial % 4:
                parts["between"][at(9)] += 0.05

        (spike,) = run(change=halt).shifts.spikes
        assert spike.trials == tuple(t for t in range(20) if t % 4)

    def test_two_requests_do_not_tell(self):
        """With two requests nothing is said to be in most."""

        def halt(_trial, parts):
            parts["between"][at(65)] += 0.05

        found = run(trials=2, change=halt).shifts
        assert found.spikes == ()
        assert sorted((s.position, s.trials) for s in found.singles) == [(65, (0,)), (65, (1,))]

    def test_the_one_after_a_halt_comes_of_it(self):
        """Cold caches are named, not taken for a fault of their own."""

        def halt(_trial, parts):
            parts["between"][at(65)] += 0.05
            parts["forward"][at(66)] += 0.004

        found = run(change=halt).shifts
        assert [(s.position, s.cause) for s in found.spikes] == [
            (65, "between_forwards"),
            (66, "halt_before"),
        ]

    @pytest.mark.parametrize("position", [2, 128])
    def test_at_the_ends(self, position):
        """The first and the last gap are looked at as all others."""

        def halt(_trial, parts):
            parts["forward"][at(position)] += 0.01

        assert [s.position for s in run(change=halt).shifts.spikes] == [position]

    def test_noise_is_nothing(self):
        """A quiet run has no steps; nor has one with wild gaps here and there."""
        assert run().shifts.each == ()

        def wild(trial, parts):
            random = np.random.default_rng(trial)
            parts["forward"] += random.exponential(0.004, 127) * (random.random(127) < 0.05)

        found = run(change=wild).shifts
        assert found.each == ()
        assert all(s.after_s > 1.5 * s.before_s for s in found.singles)


def slower_device(_trial, parts):
    """The device takes 50 ms longer for token 65; Python waits for it after the token."""
    parts["lead"][at(65)] += 0.05
    parts["lag"][at(65)] += 0.05
    parts["between"][at(66)] += 0.05


class TestOnADevice:
    """The device is 4 ms behind Python, or Python is what it waits for."""

    def test_its_gaps_and_the_hosts_are_kept_apart(self):
        """One column each, both from their own clock."""
        found = run(lead=LEAD, change=slower_device)
        here = found.table.position == 65
        assert found.table.median("itl_s", here) == pytest.approx(GAP + 0.05, rel=0.05)
        assert found.table.median("host_gap_s", here) == pytest.approx(GAP, rel=0.05)
        later = found.table.position == 66
        assert found.table.median("itl_s", later) == pytest.approx(GAP, rel=0.05)
        assert found.table.median("host_gap_s", later) == pytest.approx(GAP + 0.05, rel=0.05)
        assert found.on_device
        assert "on the host's clock" in text.render(found, HEADER)

    def test_it_takes_longer(self):
        """The device is done later after the forward call has returned."""
        (spike,) = run(lead=LEAD, change=slower_device).shifts.spikes
        assert (spike.position, spike.cause) == (65, "device")

    def test_it_takes_longer_and_python_waits_for_it_before_the_token(self):
        """As with a streamer, which gets each token: waiting is not what the host does."""

        def slower(_trial, parts):
            parts["lead"][at(65)] += 0.05
            parts["between"][at(65)] += 0.05

        (spike,) = run(lead=LEAD, change=slower).shifts.spikes
        assert (spike.position, spike.cause) == (65, "device")

    def test_python_halts_between_the_forwards(self):
        """The device is no further behind than before."""

        def halt(_trial, parts):
            parts["between"][at(65)] += 0.05

        (spike,) = run(lead=LEAD, change=halt).shifts.spikes
        assert (spike.position, spike.cause) == (65, "between_forwards")

    def test_python_halts_while_it_launches(self):
        """Inside of the forward call, and the device waits."""

        def halt(_trial, parts):
            parts["forward"][at(65)] += 0.05

        (spike,) = run(lead=5e-5, change=halt).shifts.spikes
        assert (spike.position, spike.cause) == (65, "forward_on_host")


class TestLasting:
    def test_jump(self):
        """From token 70 on each forward takes longer."""

        def up(_trial, parts):
            parts["forward"][at(70) :] += 0.006

        found = run(change=up).shifts
        (jump,) = found.lasting
        assert (jump.kind, jump.position, jump.cause) == ("jump", 70, "forward")
        assert jump.after_s - jump.before_s == pytest.approx(0.006, rel=0.1)
        assert found.spikes == ()

    def test_growth(self):
        """20 us per token of context more, in the forward: the cache."""

        def grow(_trial, parts):
            parts["forward"] += 20e-6 * np.arange(127)

        (growth,) = run(change=grow).shifts.lasting
        assert (growth.kind, growth.cause) == ("growth", "cache_growth")
        assert growth.slope_s_per_token == pytest.approx(20e-6, rel=0.1)

    def test_growth_between_the_forwards_is_not_the_caches(self):
        """A processor that looks at all tokens so far."""

        def grow(_trial, parts):
            parts["between"] += 20e-6 * np.arange(127)

        (growth,) = run(change=grow).shifts.lasting
        assert growth.cause == "between_forwards"

    def test_a_jump_is_no_growth_but_may_come_after_one(self):
        """Growth is looked for before the jump."""

        def both(_trial, parts):
            parts["forward"] += 20e-6 * np.arange(127)
            parts["forward"][at(80) :] += 0.01

        growth, jump = run(change=both).shifts.lasting
        assert growth.slope_s_per_token == pytest.approx(20e-6, rel=0.1)
        assert jump.position == 80


class TestPauses:
    def test_a_collection_is_named(self):
        """Where a collection of garbage falls into a gap, the gap is its."""

        def halt(trial, parts):
            if trial == 3:
                parts["forward"][at(50)] += 0.03

        begun = TTFT + 48.5 * GAP
        pause = Pause("garbage_collection", START + 3 * 10**11 + round(begun * 1e9), 0.03)
        found = run(change=halt, pauses=[pause])
        (single,) = found.shifts.singles
        assert (single.position, single.cause) == (50, "garbage_collection")
        gaps, time_s = found.paused("garbage_collection")
        assert gaps in {1, 2}
        assert time_s == pytest.approx(0.03)

    def test_each_interval_gets_its_part(self):
        """A pause over two intervals is in both, and outside of all it is in none."""
        pauses = [
            Pause("compilation", START + 15 * 10**8, 1.0),
            Pause("compilation", START - 10**9, 0.5),
            Pause("garbage_collection", START, 9.0),
        ]
        edges = np.array([0.0, 1.0, 2.0, 3.0])
        assert overlap(pauses, "compilation", START, edges).tolist() == [0.0, 0.5, 0.5]

    def test_compilations_are_found_in_requests_that_do_not_count(self):
        """In a gap, in the prefill, or only known to have been somewhere."""
        cold = {"cold": True, "cold_reasons": ("compilation",)}
        gaps = ([BETWEEN] * 20, [GAP - BETWEEN] * 20)
        records = [request(*gaps, trial=t, **(cold if t < 3 else {})) for t in range(6)]
        pauses = [
            Pause("compilation", START + round((TTFT + 10.1 * GAP) * 1e9), 0.008),
            Pause("compilation", START + 10**11 + 10**7, 0.05),
        ]
        found = evaluation.evaluate(Trials(records=records), pauses, None)
        assert [(s.trials, s.position) for s in found.shifts.compilations] == [
            ((0,), 12),
            ((1,), 1),
            ((2,), None),
        ]
        assert found.itl_s.count == 3 * 20
        said = text.render(found, HEADER)
        assert "request 0, before token 12, 8.0 ms: compiled anew" in said
        assert "request 2, somewhere: compiled anew" in said


class TestFloor:
    KV = (KvLayers(2, 64.0, None), KvLayers(1, 32.0, 110))

    def test_is_what_the_records_count(self):
        """Its mean over a request's contexts is the record's ``decode_bytes``."""
        floor = Floor(5000, self.KV, 1e6)
        cost = ModelCost(5000, 0, 0, 0, None)
        contexts = range(PROMPT + 1, PROMPT + 32)
        expected = decode_bytes(cost, self.KV, [Row(PROMPT, 0, 32)])
        assert np.mean([floor.bytes_at(c) for c in contexts]) == pytest.approx(expected)
        assert floor.seconds_at(200) == pytest.approx((5000 + 200 * 64 + 110 * 32) / 1e6)

    def test_of_each_gap(self):
        """The gap before token i is of the prompt and i - 1 tokens."""
        found = run(trials=3, floor=Floor(0, (KvLayers(1, 10.0, None),), 1e6))
        first = output.rows(found)[0]
        assert (first["position"], first["context"]) == (2, PROMPT + 1)
        assert first["floor_s"] == pytest.approx((PROMPT + 1) * 1e-5)
        assert found.usual_floor_s() == pytest.approx((PROMPT + 64) * 1e-5)

    def test_no_peak_no_floor(self):
        """The bytes are there, the time is not."""
        found = run(trials=3, floor=Floor(10**6, self.KV, None))
        made = output.as_object(found, HEADER)
        assert made["floor"]["weight_bytes"] == 10**6
        assert made["floor"]["at_median_context_s"] is None
        assert {row["floor_s"] for row in output.rows(found)} == {None}
        assert "peak is not known" in text.render(found, HEADER)

    def test_below_it_something_is_wrong(self):
        """No step reads faster than the memory can."""
        found = run(trials=3, floor=Floor(10**6, self.KV, 1e6))
        assert "below_floor" in {c.code for c in found.cautions}


HEADER = {
    "model": {"name": "m", "random_weights": "x", "device": "cpu", "quantization": "none"},
    "environment": {"gpus": [], "cpu": {"model": "c"}, "versions": {}},
    "generation": {"cache": "dynamic", "compile": False},
}


class TestOutput:
    def test_a_line_for_each_request_and_position(self):
        """Gap, host's parts and what stands out."""

        def halt(trial, parts):
            parts["between"][at(65)] += 0.05
            if trial == 1:
                parts["forward"][at(9)] += 0.05

        found = run(trials=4, change=halt)
        rows = output.rows(found)
        assert len(rows) == 4 * 127
        assert set(rows[0]) == set(output.COLUMNS)
        assert {r["position"] for r in rows if r["stands_out"] == "in most"} == {65}
        assert [(r["trial"], r["position"]) for r in rows if r["stands_out"] == "in one"] == [
            (1, 9)
        ]
        for row in rows:
            assert row["host_forward_s"] + row["between_s"] == pytest.approx(row["itl_s"])
            assert row["launch_lead_s"] is None

    def test_json_is_strict_and_says_what_the_text_says(self):
        """No NaN; the last line is for scripts."""
        found = run(trials=4)
        made = json.loads(outputs.to_json(output.as_object(found, HEADER)))
        assert made["itl_s"]["count"] == 4 * 127
        assert made["parts_s"]["device_duration"] is None
        assert [b["from"] for b in made["itl_by_position"]] == [1, 11, 51, -10]
        assert len(made["curve"]["p50_s"]) == 127
        assert made["report"]["tgs"]["conditions"]["prompt_tokens"]["max"] == PROMPT
        p50 = made["itl_s"]["p50"] * 1e3
        said = text.render(found, HEADER)
        assert said.rstrip().splitlines()[-1].startswith(f"ITL_p50={p50:.2f}ms, ITL_p95=")

    def test_nothing_measured(self):
        """No figure, no picture, no invented number."""
        found = evaluation.evaluate(Trials(), [], None)
        made = json.loads(outputs.to_json(output.as_object(found, HEADER)))
        assert (made["itl_s"], made["curve"], made["trend"]) == (None, None, None)
        assert output.rows(found) == []
        assert output.line(found) is None
        assert "nothing_measured" in text.render(found, HEADER)

    def test_steps_of_several_tokens_have_no_parts(self):
        """Their gaps are shares of a step."""
        record = request([BETWEEN] * 4, [GAP - BETWEEN] * 4)
        several = request(
            [BETWEEN] * 4, [GAP - BETWEEN] * 4, trial=1, itl_s=[0.01] * 8, output_tokens=9
        )
        found = evaluation.evaluate(Trials(records=[record, several]), [], None)
        assert found.itl_s.count == 12
        assert found.parts["host_forward_s"].count == 4

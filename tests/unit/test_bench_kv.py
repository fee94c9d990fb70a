"""The KV cache tool's arithmetic and verdicts, on layers that a test decides; no torch."""

from dataclasses import replace

import pytest

from llmtrace.bench.kv import anomalies, findings, leaks, output
from llmtrace.bench.kv.due import due
from llmtrace.bench.kv.geometry import Geometry
from llmtrace.bench.kv.memory import Sample
from llmtrace.bench.kv.running import Run
from llmtrace.bench.kv.steps import Allocator, Watched
from llmtrace.bench.texts import kv as text
from llmtrace.reports.printing import printed
from llmtrace.seams.kv_layers import KvLayer

LLAMA2 = Geometry(4, 32, 32, 128, "float16", 2, {})
GROUPED = Geometry(4, 32, 8, 128, "bfloat16", 2, {})
MIB = 2**20


def layer(tokens, needs=LLAMA2, kind="full", **more):
    """A layer of *tokens* tokens."""
    shape = (1, needs.kv_heads, tokens, needs.head_dim)
    size = needs.token_bytes * tokens
    made = {"keys": shape, "values": shape, "tokens": tokens, "size": size, "held": size,
            "dtype": needs.dtype, "device": "cuda:0", "element_size": 2}  # fmt: skip
    return KvLayer(kind, **{**made, **more})


def watched(rows, needs=LLAMA2, prompt=64, new=8):
    """A request whose layers after each step are *rows*."""
    found = Watched(needs, prompt, new, kind="dynamic")
    for layers in rows:
        found.seen(tuple(layers), None)
    return found


class TestDue:
    def test_a_llama2_token_takes_half_a_mebibyte(self):
        """2 x 32 heads x 128 x 2 bytes x 32 layers."""
        assert LLAMA2.token_bytes * 32 == 524_288
        assert due(layer(65), LLAMA2, 65).size == 65 * 16_384

    def test_heads_of_keys_count_not_those_of_queries(self):
        """8 for 32 queries: a quarter."""
        found = due(layer(65, GROUPED), GROUPED, 65, rows=3)
        assert found.shape == (3, 8, 65, 128)
        assert found.size == 2 * 8 * 128 * 65 * 2 * 3

    def test_fixed_sizes_are_due_their_capacity(self):
        """However few tokens there are; with a window no more than that."""
        static = layer(1088, kind="static", capacity=1088)
        assert due(static, LLAMA2, 65).tokens == 1088
        sliding = layer(32, kind="static_sliding", capacity=1088, window=32)
        assert due(sliding, LLAMA2, 65).tokens == 32

    @pytest.mark.parametrize(("tokens", "held"), [(20, 20), (31, 31), (32, 31), (500, 31)])
    def test_a_window_that_grows(self, tokens, held):
        """One less than the window: the token that comes is in it too."""
        assert due(layer(31, kind="sliding", window=32), LLAMA2, tokens).tokens == held

    def test_packed_numbers_scales_and_the_rest(self):
        """Of 65 tokens 60 at 4 bits with a scale and a shift for each 64 numbers, 5 as they are."""
        packed = layer(65, kind="quantized", residual=5, bits=4)
        numbers = 2 * 32 * 128 * 60
        expected = numbers // 2 + numbers // 64 * 2 * 2 + 5 * 16_384
        assert due(packed, LLAMA2, 65).size == expected

    def test_what_is_not_known_is_absent(self):
        """Attention of an unusual form is due a length alone; a state-space layer nothing."""
        latent = replace(LLAMA2, kv_heads=None, head_dim=None)
        found = due(layer(65), latent, 65)
        assert (found.tokens, found.shape, found.size) == (65, None, None)
        assert due(KvLayer("other", None, None, 0, 0, 0), LLAMA2, 65).tokens is None


class TestAnomalies:
    def test_none(self):
        """All layers grow by a token a step."""
        assert anomalies.find(watched([[layer(64 + i)] * 4 for i in range(5)])) == []

    def test_the_field_reports_layer(self):
        """The third has [1,32,128,128] where [1,32,65,128] is due."""
        rows = [[layer(n), layer(n), layer(128), layer(n)] for n in (64, 65, 66)]
        length, growth = anomalies.find(watched(rows))
        assert (length.code, length.layers, length.steps) == ("length", (2,), 3)
        assert (length.found, length.due) == ("[1,32,128,128]", "[1,32,64,128]")
        assert (growth.code, growth.found, growth.due) == ("growth", "0 tokens", "1")
        assert "layer 2: [1,32,128,128] where [1,32,64,128] is due" in length.text

    def test_growth_that_is_not_linear(self):
        """Two tokens in one step: in every layer, so it is told once."""
        found = anomalies.find(watched([[layer(n)] * 4 for n in (64, 65, 67, 68)]))
        by_code = {one.code: one for one in found}
        assert by_code["growth"].layers == (0, 1, 2, 3)
        assert by_code["growth"].first_step == by_code["growth"].last_step == 2
        assert by_code["growth"].text == (
            "layers 0-3: growth of 2 tokens where 1 is due after step 2"
        )
        assert by_code["length"].first_step == 2

    def test_heads_repeated_before_they_are_kept(self):
        """32 heads are held where 8 are due."""
        repeated = replace(GROUPED, kv_heads=32)
        found = anomalies.find(watched([[layer(64, GROUPED), layer(64, repeated)]], GROUPED))
        assert [(one.code, one.layers) for one in found] == [("shape", (1,))]
        assert "a head for each query" in found[0].text

    def test_place_and_type(self):
        """A layer on the host among those on a GPU, and one of another type."""
        rows = [[layer(64), layer(64, device="cpu"), layer(64, dtype="float32"), layer(64)]]
        found = anomalies.find(watched(rows))
        assert [(one.code, one.layers, one.found) for one in found] == [
            ("device", (1,), "cpu"),
            ("dtype", (2,), "float32"),
        ]

    def test_places_that_differ_on_purpose(self):
        """Offloaded layers, and layers whose weights are elsewhere."""
        rows = [[layer(64), layer(64, device="cuda:1")]]
        spread = watched(rows, replace(LLAMA2, devices={0: "cuda:0", 1: "cuda:1"}))
        assert anomalies.find(spread) == []
        offloaded = watched([[layer(64, device="cpu"), layer(64)]])
        offloaded.offloaded = True
        assert anomalies.find(offloaded) == []

    def test_nothing_held(self):
        """A layer that is made to hold nothing may; one that has nothing yet may not."""
        rows = [[layer(64), KvLayer("other", None, None, 0, 0, 0)]]
        assert anomalies.find(watched(rows)) == []
        rows = [[layer(64), KvLayer("empty", None, None, 0, 0, 0)]]
        assert [one.code for one in anomalies.find(watched(rows))] == ["missing"]

    def test_too_small(self):
        """A fixed size that the asked-for tokens do not fit in."""
        rows = [[layer(70, kind="static", capacity=70)]]
        found = anomalies.find(watched(rows, new=8))
        assert [(one.code, one.found, one.due) for one in found] == [
            ("capacity", "70 tokens", "71"),
        ]

    def test_layers_in_words(self):
        """Neighbours are a range."""
        assert anomalies.named([0, 1, 2, 5]) == "layers 0-2, 5"
        assert anomalies.named([3]) == "layer 3"


class TestUnused:
    def test_room_for_tokens_that_never_came(self):
        """Asked for 1024, got 200: 264 of 1087 tokens were run."""
        fixed = layer(1087, kind="static", capacity=1087)
        last = watched([[fixed] * 4], prompt=263, new=1024).steps[-1]
        found = findings.unused(last)
        assert (found.capacity, found.used) == (1087, 263)
        assert found.size == 4 * LLAMA2.token_bytes * (1087 - 263)

    def test_a_cache_that_grows_has_none(self):
        """It holds what was run."""
        assert findings.unused(watched([[layer(64)]]).steps[-1]) is None


class TestAllocator:
    def test_shares(self):
        """Of 100 reserved 60 are in tensors and 30 in split blocks."""
        state = Allocator(allocated=60, reserved=100, split=30)
        assert state.unused == pytest.approx(0.4)
        assert state.fragmentation == pytest.approx(0.3)


def samples(values, on_gpu=True, **more):
    """Memory after each request: *values* in tensors, reserved and resident memory growing."""
    return [
        Sample(
            request=i,
            allocated=value if on_gpu else None,
            reserved=10**9 + i * MIB if on_gpu else None,
            tensors=100 + i * more.get("tensors", 0),
            tensor_bytes=value,
            rss=2 * 10**9,
            classes={"lib.DynamicCache": 1 + i * more.get("caches", 0)},
        )
        for i, value in enumerate(values)
    ]


class TestLeaks:
    @pytest.mark.parametrize(
        ("values", "verdict"),
        [
            ([100 + i for i in range(9)], leaks.LEAK),
            ([100 + i // 10 for i in range(50)], leaks.LEAK),
            ([100 + 10 * i + (i % 2) * 15 for i in range(30)], leaks.LEAK),
            ([100] * 50, leaks.CLEAN),
            ([100] * 11 + [612], leaks.CLEAN),
            ([100, 300, 200] * 10, leaks.CLEAN),
            ([100 + min(i, 10) for i in range(50)], leaks.CLEAN),
            ([300 - i for i in range(20)], leaks.CLEAN),
            ([100 + min(i, 39) for i in range(50)], leaks.UNDECIDED),
            ([100 + i for i in range(8)], leaks.UNDECIDED),
            ([100] * 40 + [101] * 10, leaks.UNDECIDED),
            ([], leaks.UNDECIDED),
        ],
        ids=["steady", "each tenth", "up and down", "none", "one still held", "of many lengths",
             "filled up", "falling", "filling up", "too few", "once, late", "no request"],
    )  # fmt: skip
    def test_verdict(self, values, verdict):
        """What grows to the end leaks; what fills up does not; what cannot be told is not."""
        assert leaks.judge(samples(values)).verdict == verdict

    def test_reserved_memory_is_no_leak(self):
        """The allocator takes more from the driver, and tensors take no more."""
        found = leaks.judge(samples([100] * 20))
        assert found.samples[-1].reserved > found.samples[0].reserved
        assert (found.verdict, found.bytes_per_request) == (leaks.CLEAN, 0)

    def test_what_stays(self):
        """Bytes per request, and the classes of which more are alive; caches first."""
        found = leaks.judge(samples([100 + 7 * i for i in range(20)], caches=1, tensors=8))
        assert found.bytes_per_request == 7
        assert found.growing == (("lib.DynamicCache", 1.0), ("torch.Tensor", 8.0))

    def test_of_no_gpu_the_live_tensors_count(self):
        """Their storages' bytes."""
        found = leaks.judge(samples([100 + i for i in range(9)], on_gpu=False))
        assert (found.verdict, found.measured) == (
            leaks.LEAK, "storages of live tensors",
        )  # fmt: skip


HEADER = {
    "model": {"name": "m", "random_weights": None, "quantization": "none", "device": "cuda"},
    "environment": {"gpus": [{"name": "G"}], "cpu": {"model": "c"}, "versions": {}},
    "generation": {"cache": "dynamic", "compile": False},
}


class TestResult:
    def run(self, rows, leak=None, **more):
        found = watched(rows, **more)
        return findings.evaluate(Run(watched=found, leaks=leak))

    def test_good_bad_undecided(self):
        """A leak or an anomaly is bad; too few requests leave it open."""
        good = [[layer(64)] * 4, [layer(65)] * 4]
        clean, leak, few = (leaks.judge(samples(v)) for v in ([9] * 9, range(9), range(3)))
        results = [self.run(good, test) for test in (None, clean, leak, few)]
        assert [r.bad for r in results] == [False, False, True, False]
        assert [r.undecided for r in results] == [False, False, False, True]
        assert self.run([[layer(64), layer(60)]], few).bad

    def test_text(self):
        """Layers that are alike share a row; the one that differs is named with what is wrong."""
        rows = [[layer(n), layer(n), layer(128), layer(n)] for n in (64, 65)]
        said = text.render(self.run(rows, leaks.judge(samples([5] * 9))), HEADER, width=120)
        lines = said.splitlines()
        assert any(line.strip().startswith("0-1 ") and "[1,32,65,128]" in line for line in lines)
        assert any(
            line.strip().startswith("2 ") and "[1,32,128,128]" in line and "length" in line
            for line in lines
        )
        assert "Leak test: no leak" in said
        assert "not as it should be" in said

    @pytest.mark.parametrize(("most_rows", "rows"), [(4, 4), (3, 3), (None, 3)])
    def test_live(self, most_rows, rows):
        """A row for each layer where there is room, else neighbours that are alike share one."""
        found = watched([[layer(64), layer(64), layer(128), layer(64)]])
        said = printed([text.live(found, found.steps[0], most_rows)], 120, color=False)
        assert sum("[1,32," in line for line in said.splitlines()) == rows
        assert "dynamic cache after 64 tokens (64 of the prompt)" in said

    def test_the_allocators_state_is_shown(self):
        """On CUDA, below the cache's own size."""
        found = Watched(LLAMA2, 64, 8, kind="dynamic")
        step = found.seen((layer(64),), Allocator(60 * MIB, 100 * MIB, 30 * MIB))
        said = printed([text.live(found, step, None)], 120, color=False)
        assert "60.00 MiB allocated of 100.00 MiB reserved; 40.0% unused, 30.0% in split" in said

    def test_a_long_answer_is_thinned(self):
        """No more steps than are of use, the last one among them, and rows alike."""
        rows = [[layer(64 + i)] * 40 for i in range(4096)]
        found = self.run(rows, new=5000)
        made = output.as_object(found, HEADER)
        assert len(made["steps"]) <= output.MOST_STEPS + 1
        assert made["steps"][-1]["step"] == 4095
        assert len(made["layers"][0]["tokens_by_step"]) == len(made["steps"])
        assert len(output.rows(found)) <= output.MOST_ROWS + 80

    def test_doubts(self):
        """A cache in another type than the model, and tensors that are parts of larger ones."""
        rows = [[layer(64, dtype="float32", held=10**9)] * 4]
        assert [c.code for c in self.run(rows).cautions] == ["other_dtype", "larger_storage"]

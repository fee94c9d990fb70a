"""MBU and MFU: LLaMA-2-7B's published constants, and sums done the long way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.hardware import Peaks, parse_peaks, peaks_of
from llmtrace.recording.request import RequestInfo
from llmtrace.recording.request_utilization import utilization
from llmtrace.recording.utilization import KvLayers, ModelCost, Row, decode_bytes, prefill_flops
from llmtrace.records import GenerationParameters, StepRecord

LLAMA = ModelCost(
    weight_bytes=2 * 6_607_343_616,
    linear_weights=6_476_005_376,
    output_weights=4096 * 32_000,
    attention_width=4096,
    operand="bfloat16",
)
KV = (KvLayers(32, 2 * 32 * 4096 * 2, None),)
"""Half a MiB a token."""


@pytest.mark.parametrize(
    ("tokens", "tera"), [(128, 1.66), (256, 3.33), (512, 6.70), (1024, 13.54), (2048, 27.6)]
)
def test_prefill_operations_of_llama_2_7b(tokens, tera):
    """Causal attention, logits of the last position only."""
    done = prefill_flops(LLAMA, KV, [Row(tokens, 0, 1)])
    assert done / 1e12 == pytest.approx(tera, rel=4e-3)


@pytest.mark.parametrize(("context", "gigabytes"), [(512, 13.48), (2048, 14.29), (4096, 15.36)])
def test_decode_bytes_of_llama_2_7b(context, gigabytes):
    """Weights without the input embedding, and the cache at that length."""
    read = decode_bytes(LLAMA, KV, [Row(context - 1, 0, 2)])
    assert read / 1e9 == pytest.approx(gigabytes, rel=1e-3)


def test_rows_share_the_weights():
    """Eight rows read the weights once and eight caches."""
    one = decode_bytes(LLAMA, KV, [Row(100, 0, 11)])
    eight = decode_bytes(LLAMA, KV, [Row(100, 0, 11)] * 8)
    assert eight - LLAMA.weight_bytes == pytest.approx(8 * (one - LLAMA.weight_bytes))


def test_a_cached_prompt_needs_no_operations_again():
    """The second half of a prompt costs its own products and its looks at the first half."""
    whole = prefill_flops(LLAMA, KV, [Row(512, 0, 1)])
    first = prefill_flops(LLAMA, KV, [Row(256, 0, 1)])
    second = prefill_flops(LLAMA, KV, [Row(512, 256, 1)])
    assert first + second == pytest.approx(whole + 2 * LLAMA.output_weights)


@given(
    prompt=st.integers(1, 60),
    cached=st.integers(0, 59),
    generated=st.integers(2, 40),
    window=st.one_of(st.none(), st.integers(1, 80)),
)
def test_windows_against_counting_one_by_one(prompt, cached, generated, window):
    """Closed forms are sums over positions."""
    cached = min(cached, prompt - 1)
    layers = (KvLayers(1, 10.0, window),)
    unit = ModelCost(1000, 0, 0, 1, "bfloat16")
    seen = range(prompt + 1, prompt + generated)
    by_hand = sum(10.0 * (c if window is None else min(c, window)) for c in seen)
    read = decode_bytes(unit, layers, [Row(prompt, 0, generated)])
    assert read == pytest.approx(1000 + by_hand / (generated - 1))
    # Twice the pairs, the diagonal's counted half: p^2 = 2 * sum of (position - 1/2).
    looks = sum(min(p, window or p) - 0.5 for p in range(cached + 1, prompt + 1))
    if window is None:
        assert prefill_flops(unit, layers, [Row(prompt, cached, 1)]) == pytest.approx(4 * looks)


def steps(count, prefill_s=0.5, step_s=0.01):
    """Steps of a request whose prefill takes from 0.1 s on."""
    ends = [0.7 + i * step_s for i in range(count)]
    return [
        StepRecord(0, "prefill", 0, ends[0], 1, 1, 0.1, 0.1 + prefill_s),
        *(StepRecord(i, "decode", ends[i - 1], ends[i], 1, 1) for i in range(1, count)),
    ]


def info(**more):
    facts = {
        "strategy": "greedy",
        "cost": LLAMA,
        "kv_layers": KV,
        "input_tokens_per_row": (512,),
        "device_name": "NVIDIA H200",
    }
    return RequestInfo(**{**facts, **more})


def test_shares_of_an_h200s_peaks():
    """MBU = bytes / (step x 4.8 TB/s); MFU = operations / (prefill x 989.4 TFLOP/s)."""
    use = utilization(info(), [11], steps(11))
    assert use.mbu == pytest.approx(use.decode_bytes / (0.01 * 4.8e12))
    assert use.mfu == pytest.approx(use.prefill_flops / (0.5 * 989.4e12))
    assert use.decode_bytes == pytest.approx(LLAMA.weight_bytes + 524_288 * 517.5)
    assert use.findings == ()


def test_the_users_own_peaks_come_first():
    """Measured rates stand in for the datasheet's; without a rate of operations there is no MFU."""
    use = utilization(info(peaks=parse_peaks("2.4e12")), [11], steps(11))
    assert use.mbu == pytest.approx(use.decode_bytes / (0.01 * 2.4e12))
    assert use.mfu is None


def test_more_than_the_peak_is_a_finding_and_not_cut_off():
    """A share above 1 is told as it is, with what to check."""
    use = utilization(info(), [11], steps(11, prefill_s=0.005, step_s=0.001))
    assert use.mbu > 1
    assert use.mfu > 1
    assert [f.code for f in use.findings] == ["mbu_above_one", "mfu_above_one"]
    assert use.findings[0].evidence == f"{use.mbu:.2f} of the peak"


@pytest.mark.parametrize(
    "more",
    [
        {"strategy": "assisted"},
        {"cost": None},
        {"input_tokens_per_row": None},
        {"input_tokens_per_row": (3, 3)},
    ],
)
def test_what_cannot_be_told_is_absent(more):
    """Another model's passes, unknown weights or rows that do not match: nothing is said."""
    use = utilization(info(**more), [11], steps(11))
    assert (use.mbu, use.mfu, use.decode_bytes, use.prefill_flops) == (None,) * 4


def test_an_unknown_device_leaves_needs_without_shares():
    """What is needed does not hang on the device's peaks."""
    use = utilization(info(device_name="Some Device 9000"), [11], steps(11))
    assert (use.mbu, use.mfu) == (None, None)
    assert use.decode_bytes
    assert use.prefill_flops


def test_one_token_has_no_decoding():
    """A request of one token has a prefill only."""
    use = utilization(info(), [1], steps(1))
    assert use.mbu is None
    assert use.mfu is not None


def test_a_beam_search_reads_the_cache_of_every_beam():
    """Two prompts and four beams are eight sequences, although two are returned."""
    beams = GenerationParameters(num_beams=4)
    two = info(strategy="beam", parameters=beams, input_tokens_per_row=(512, 512))
    use = utilization(two, [11, 9], steps(11))
    assert use.decode_bytes == pytest.approx(LLAMA.weight_bytes + 8 * 524_288 * 517.5)


@pytest.mark.parametrize(
    ("name", "gb", "tera"),
    [
        ("NVIDIA H200", 4800, 989.4),
        ("NVIDIA H200 NVL", 4800, 835.5),
        ("NVIDIA H100 80GB HBM3", 3350, 989.4),
        ("NVIDIA H100 PCIe", 2000, 756),
        ("NVIDIA A100-SXM4-80GB", 2039, 312),
        ("NVIDIA A100-SXM4-40GB", 1555, 312),
        ("NVIDIA A100 80GB PCIe", 1935, 312),
        ("NVIDIA A10G", 600, 70),
        ("NVIDIA A10", 600, 125),
        ("NVIDIA GeForce RTX 4090", 1008, 165.2),
        ("NVIDIA L40S", 864, 362),
        ("NVIDIA L4", 300, 121),
        ("NVIDIA GH200 480GB", 4000, 989.4),
    ],
)
def test_devices_by_the_names_their_drivers_give(name, gb, tera):
    """Names that begin alike are told apart."""
    peaks = peaks_of(name)
    assert peaks.bandwidth == gb * 1e9
    assert peaks.flops_of("bfloat16") == pytest.approx(tera * 1e12)


def test_peaks_not_listed_are_not_guessed():
    """A device or a type that is not in the table has no peak."""
    assert peaks_of("NVIDIA A1000") is None
    assert peaks_of(None) is None
    assert peaks_of("Tesla T4").flops_of("bfloat16") is None
    assert peaks_of("NVIDIA H200").flops_of("float8_e4m3fn") is None
    assert Peaks(1.0, {}).flops_of(None) is None

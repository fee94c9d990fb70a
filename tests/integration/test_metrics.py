"""Metrics: names, units, boundaries, labels and counts."""

import pytest
import torch

from tests.integration.test_spans import EOS, forced

SERVER_TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
)
SERVER_TPOT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
LABELS = {
    "gen_ai.operation.name": "text_completion",
    "gen_ai.provider.name": "huggingface.transformers",
    "gen_ai.request.model": "llama",
}


def points(metrics, name):
    return list(metrics[name].data.data_points)


def test_names_units_and_boundaries(tiny, prompt, telemetry):
    """Each metric of one streamless request, with its unit and boundaries."""
    tiny.generate(prompt, max_new_tokens=6)
    metrics = telemetry.metrics()
    assert {name: metric.unit for name, metric in metrics.items()} == {
        "gen_ai.server.time_to_first_token": "s",
        "gen_ai.server.time_per_output_token": "s",
        "gen_ai.server.request.duration": "s",
        "gen_ai.client.token.usage": "{token}",
        "llmtrace.inter_token_latency": "s",
        "llmtrace.prefill.duration": "s",
        "llmtrace.first_text.phase.duration": "s",
        "llmtrace.tgs": "{token}/s",
        "llmtrace.tokens.generated": "{token}",
        "llmtrace.requests": "{request}",
        "llmtrace.requests.active": "{request}",
        "llmtrace.kv_cache.usage": "By",
    }
    bounds = {
        "gen_ai.server.time_to_first_token": SERVER_TTFT,
        "gen_ai.server.time_per_output_token": SERVER_TPOT,
        "gen_ai.server.request.duration": DURATION,
    }
    for name, expected in bounds.items():
        (point,) = points(metrics, name)
        assert point.explicit_bounds == expected, name
        assert dict(point.attributes) == LABELS
    (gaps,) = points(metrics, "llmtrace.inter_token_latency")
    assert gaps.explicit_bounds[0] == 0.0005


def test_values_are_those_of_the_span(tiny, prompt, telemetry):
    """TTFT, TPOT, gaps and tokens of the metrics are the request span's."""
    tiny.generate(prompt, max_new_tokens=6)
    (request,) = telemetry.requests()
    metrics = telemetry.metrics()
    for name, attribute in (
        ("gen_ai.server.time_to_first_token", "llmtrace.ttft"),
        ("gen_ai.server.time_per_output_token", "llmtrace.tpot"),
        ("llmtrace.prefill.duration", "llmtrace.prefill"),
        ("llmtrace.tgs", "llmtrace.tgs"),
    ):
        (point,) = points(metrics, name)
        assert point.count == 1
        assert point.sum == request.attributes[attribute]
    (gaps,) = points(metrics, "llmtrace.inter_token_latency")
    assert gaps.count == 5
    assert gaps.sum == pytest.approx(sum(request.attributes["llmtrace.itl"]))
    usage = {
        p.attributes["gen_ai.token.type"]: p.sum
        for p in points(metrics, "gen_ai.client.token.usage")
    }
    assert usage == {"input": 5, "output": 6}
    assert [p.value for p in points(metrics, "llmtrace.requests.active")] == [0]


def test_histogram_points_link_to_the_trace(tiny, prompt, telemetry):
    """The exemplar of a TTFT point is the request's trace."""
    tiny.generate(prompt, max_new_tokens=2)
    (request,) = telemetry.requests()
    (point,) = points(telemetry.metrics(), "gen_ai.server.time_to_first_token")
    assert [e.trace_id for e in point.exemplars] == [request.context.trace_id]


def test_a_gap_counts_for_each_row_that_got_a_token(tiny, telemetry):
    """Rows of 3 and 7 tokens have 2 + 6 gaps; the record lists each step's gap once."""
    prompt = torch.tensor([[5, 6, 7], [7, 8, 9]])
    tiny.generate(
        prompt,
        max_new_tokens=10,
        eos_token_id=EOS,
        pad_token_id=0,
        logits_processor=forced(prompt, 3, 7),
    )
    (request,) = telemetry.requests()
    assert len(request.attributes["llmtrace.itl"]) == 6
    (gaps,) = points(telemetry.metrics(), "llmtrace.inter_token_latency")
    assert gaps.count == 8


def test_beams_count_their_gaps_once(tiny, prompt, telemetry):
    """Three beams of one row are one row."""
    tiny.generate(prompt, max_new_tokens=5, num_beams=3, num_return_sequences=2)
    (gaps,) = points(telemetry.metrics(), "llmtrace.inter_token_latency")
    assert gaps.count == 4


def test_failures_have_an_error_type_and_no_latency(tiny, prompt, telemetry):
    """A failed request counts with its error, and is in neither TTFT nor TPOT."""
    with pytest.raises(ValueError, match="max_new_tokens"):
        tiny.generate(prompt, max_new_tokens=0)
    metrics = telemetry.metrics()
    assert "gen_ai.server.time_to_first_token" not in metrics
    assert "gen_ai.server.time_per_output_token" not in metrics
    for name in ("llmtrace.requests", "gen_ai.server.request.duration"):
        (point,) = points(metrics, name)
        assert point.attributes["error.type"] == "ValueError"
    assert [p.value for p in points(metrics, "llmtrace.requests.active")] == [0]


def test_short_and_long_gaps_fall_into_different_buckets(tiny, prompt, telemetry):
    """8 ms and 40 ms are told apart: seconds do not end in buckets made for milliseconds."""
    import time

    steps = iter([0.0, 0.008, 0.04])
    tiny.model.register_forward_pre_hook(lambda *_: time.sleep(next(steps)))
    tiny.generate(prompt, max_new_tokens=3)
    (gaps,) = points(telemetry.metrics(), "llmtrace.inter_token_latency")
    filled = [i for i, count in enumerate(gaps.bucket_counts) if count]
    assert len(filled) == 2
    assert filled[0] > 0

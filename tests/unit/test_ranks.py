"""Ranks of a distributed run: requests by a common name, spans in one trace, and the skew."""

import json
from types import SimpleNamespace

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from llmtrace.analysis.report import build_report
from llmtrace.recording.request import RequestInfo
from llmtrace.records import ModelFacts
from llmtrace.reports import json_report, text
from llmtrace.seams import ranks
from llmtrace.telemetry.spans import LiveSpan
from tests.unit.requests import request


@pytest.fixture
def on_rank(monkeypatch):
    """Return what a request of a rank's looks like to that rank."""

    def on_rank(rank, size=4, group=2, ordinal=0, shape=(1, 5), run="a" * 36):
        for name, value in {"RANK": rank, "WORLD_SIZE": size, "TORCHELASTIC_RUN_ID": run}.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(ranks, "_requests", iter([ordinal]))
        info = RequestInfo(model=ModelFacts(name="m"))
        ranks.read_ranks(info, SimpleNamespace(tp_size=group), shape)
        return info

    return on_rank


def test_ranks_of_a_group_name_a_request_alike(on_rank):
    """The same on both ranks of a group; another in another group, run, place or shape."""
    name = on_rank(0).ranks_request
    assert on_rank(1).ranks_request == name
    others = [
        on_rank(2),
        on_rank(0, ordinal=1),
        on_rank(0, shape=(2, 5)),
        on_rank(0, run="b" * 36),
    ]
    assert len({name, *(other.ranks_request for other in others)}) == 5
    assert [on_rank(rank).first_rank for rank in range(4)] == [True, False, True, False]


@pytest.mark.parametrize(("size", "group"), [(1, 1), (2, 1), (2, None)])
def test_a_model_that_is_not_spread_has_requests_of_its_own(on_rank, size, group):
    """One process alone has no rank; replicas have one, and no common name."""
    info = on_rank(0, size=size, group=group)
    assert info.ranks_request is None
    assert info.rank == (None if size == 1 else 0)


def test_their_spans_are_one_trace(on_rank):
    """Each rank opens its span on its own provider; the first one's is the others' parent."""
    found = []
    for rank in (0, 1):
        exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        tracer = provider.get_tracer("llmtrace")
        live = LiveSpan(tracer, on_rank(rank), 1, None)
        live.leave()
        live.span.end()
        found.append(exporter.get_finished_spans()[0])
        with tracer.start_as_current_span("the app's own") as own:
            assert own.get_span_context().trace_id != found[0].context.trace_id
    first, second = found
    assert first.parent is None
    assert second.parent.span_id == first.context.span_id
    assert second.context.trace_id == first.context.trace_id


def test_a_request_with_a_parent_stays_under_it(on_rank):
    """A server's span on the first rank is the request's parent there."""
    tracer = TracerProvider().get_tracer("llmtrace")
    with tracer.start_as_current_span("server") as server:
        live = LiveSpan(tracer, on_rank(0), 1, None)
        live.leave()
    assert live.span.parent.span_id == server.get_span_context().span_id


def test_ranks_count_once_and_are_told_apart():
    """Two ranks' records of two requests are two requests; the ranks' skew is its own table."""
    records = [
        request(0.10, 0.15, start=1.000, rank=0, world_size=2, ranks_request="x"),
        request(0.10, 0.15, start=1.002, rank=1, world_size=2, ranks_request="x"),
        request(0.13, 0.15, start=2.001, rank=1, world_size=2, ranks_request="y"),
        request(0.10, 0.15, start=2.000, rank=0, world_size=2, ranks_request="y"),
        request(0.10, 0.15, start=3.000, rank=1, world_size=2, ranks_request="z"),
    ]
    report = build_report(records)
    assert report.requests.total == 3
    assert report.ttft_s.count == 3
    assert report.ttft_s.max == pytest.approx(0.10)
    found = json.loads(json_report.render(report))["ranks"]
    assert (found["requests"], found["ranks"], found["incomplete"]) == (3, 2, 1)
    assert found["start_skew_s"]["max"] == pytest.approx(0.002)
    assert found["first_token_skew_s"]["max"] == pytest.approx(0.031)
    assert "3 requests on 2 ranks, each counted once" in text.render(report, width=100, color=False)


def test_a_failure_on_one_rank_is_the_requests():
    """A request that failed on a rank has failed, whatever the other one says."""
    good = request(0.1, 0.2, rank=0, world_size=2, ranks_request="x")
    bad = request(0.1, rank=1, world_size=2, ranks_request="x", error="RuntimeError")
    assert build_report([good, bad]).requests.error == 1
    assert build_report([request(0.1, 0.2)]).ranks is None

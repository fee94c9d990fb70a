"""Trace files back to records: ours and a collector's, whole and damaged."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from llmtrace import names
from llmtrace.analysis.report import build_report
from llmtrace.errors import MissingExtraError, SourceError
from llmtrace.recording.request import RequestInfo
from llmtrace.records import (
    Finding,
    GenerationParameters,
    Leg,
    ModelFacts,
    RequestRecord,
    StepRecord,
)
from llmtrace.reports import json_report
from llmtrace.sources.otlp_json import read
from llmtrace.telemetry.local_file import BufferedProcessor, LocalFileExporter
from llmtrace.telemetry.spans import LiveSpan, write_spans

START = 1_700_000_000_000_000_000


# Hand-written OTLP/JSON


def value(x):
    if isinstance(x, bool):
        return {"boolValue": x}
    if isinstance(x, int):
        return {"intValue": str(x)}
    if isinstance(x, float):
        return {"doubleValue": x}
    if isinstance(x, list):
        return {"arrayValue": {"values": [value(y) for y in x]}}
    return {"stringValue": x}


def attributes(given):
    return [{"key": key, "value": value(x)} for key, x in given.items()]


def span(name, span_id, start_s, end_s, given, parent=None, **more):
    return {
        "traceId": "0af7651916cd43dd8448eb211c80319c",
        "spanId": span_id,
        **({"parentSpanId": parent} if parent else {}),
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(START + round(start_s * 1e9)),
        "endTimeUnixNano": str(START + round(end_s * 1e9)),
        "attributes": attributes(given),
        "status": {},
        **more,
    }


def line(*spans, scope="llmtrace", service="app"):
    return json.dumps(
        {
            "resourceSpans": [
                {
                    "resource": {"attributes": attributes({"service.name": service})},
                    "scopeSpans": [{"scope": {"name": scope}, "spans": list(spans)}],
                }
            ]
        }
    )


REQUEST = span(
    "text_completion m",
    "00000000000000aa",
    0.0,
    0.75,
    {
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 3,
        "llmtrace.strategy": "greedy",
        "llmtrace.batch_size": 1,
        "llmtrace.ttft": 0.25,
        "llmtrace.itl": [0.125, 0.25],
        "llmtrace.e2e": 0.625,
        "llmtrace.clock": "host",
        "llmtrace.step.host_durations": [0.2, 0.1, 0.2],
    },
)
STEPS = [
    span("prefill", "00000000000000b0", 0.05, 0.2, {"llmtrace.step.index": 0}, "00000000000000aa"),
    span(
        "first_token", "00000000000000b1", 0, 0.25, {"llmtrace.step.index": 0}, "00000000000000aa"
    ),
    span(
        "decode",
        "00000000000000b2",
        0.25,
        0.375,
        {
            "llmtrace.step.index": 1,
            "llmtrace.host.duration": 0.1,
            "llmtrace.legs.devices": ["cuda:0", "cuda:1"],
            "llmtrace.legs.offsets": [0.0, 0.0625],
            "llmtrace.legs.durations": [0.03125, 0.03125],
        },
        "00000000000000aa",
    ),
    span(
        "decode",
        "00000000000000b3",
        0.375,
        0.625,
        {
            "llmtrace.step.index": 2,
            "llmtrace.host.duration": 0.2,
            "llmtrace.forward.offset": 0.0625,
        },
        "00000000000000aa",
    ),
]


@pytest.fixture
def file(tmp_path):
    """Write lines to a file and return its path."""

    def write(*lines, name="t.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return str(path)

    return write


def only(recording):
    (record,) = recording.records
    return record


def problems(recording):
    return recording.problems.lines


def test_a_request_and_its_steps(file):
    """One line holds it all; step times count from the request's start."""
    recording = read([file(line(*STEPS, REQUEST))])
    record = only(recording)
    assert problems(recording) == []
    assert (record.model, record.ttft_s, record.itl_s) == ("m", 0.25, [0.125, 0.25])
    assert record.duration_s == pytest.approx(0.75)
    assert (record.input_tokens_per_row, record.output_tokens_per_row) == ((12,), (3,))
    assert [(s.index, s.phase) for s in record.steps] == [
        (0, "prefill"),
        (1, "decode"),
        (2, "decode"),
    ]
    assert [s.end_s for s in record.steps] == pytest.approx([0.25, 0.375, 0.625])
    assert record.steps[0].forward_start_s == pytest.approx(0.05)
    assert record.steps[2].host_duration_s == 0.2
    assert record.steps[1].forward_start_s is None
    assert record.steps[1].legs == (
        Leg("cuda:0", 0.25, 0.28125),
        Leg("cuda:1", 0.3125, 0.34375),
    )
    assert record.steps[2].legs == ()
    assert record.steps[2].forward_start_s == pytest.approx(0.375 + 0.0625)
    assert recording.resources == ({"service.name": "app"},)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_order_and_place_of_spans_do_not_matter(file, order):
    """Steps before, after and apart from their request, in three files, in any order."""
    files = [
        file(line(*STEPS[:2]), name="a.jsonl"),
        file(line(REQUEST), name="b.jsonl"),
        file(line(*reversed(STEPS[2:])), name="c.jsonl"),
    ]
    recording = read([files[i] for i in order])
    assert [s.index for s in only(recording).steps] == [0, 1, 2]
    assert problems(recording) == []


def test_spans_sent_twice_count_once(file):
    """An exporter that retries writes spans again."""
    path = file(line(*STEPS, REQUEST), line(*STEPS, REQUEST))
    assert len(only(read([path, path])).steps) == 3


def test_without_step_spans_the_arrays_tell(file):
    """With steps="none" the request's arrays make the steps; nothing is amiss."""
    recording = read([file(line(REQUEST))])
    steps = only(recording).steps
    assert [s.start_s for s in steps] == pytest.approx([0, 0.25, 0.375])
    assert [s.end_s for s in steps] == pytest.approx([0.25, 0.375, 0.625])
    assert [s.host_duration_s for s in steps] == [0.2, 0.1, 0.2]
    assert problems(recording) == []


@pytest.mark.parametrize("lost", range(1, 4))
def test_lost_step_spans_are_told_and_the_arrays_used(file, lost):
    """A full export queue dropped one step's span."""
    steps = [s for i, s in enumerate(STEPS) if i != lost]
    recording = read([file(line(*steps, REQUEST))])
    assert len(only(recording).steps) == 3
    assert "1 request(s) lack some of their step spans" in problems(recording)[0]
    assert recording.partial


def test_steps_of_several_tokens_are_not_made_up(file):
    """Two steps gave three tokens: the array of gaps does not tell which gave two."""
    speculative = json.loads(json.dumps(REQUEST))
    speculative["attributes"][-1] = attributes({"llmtrace.step.host_durations": [0.2, 0.3]})[0]
    assert only(read([file(line(speculative))])).steps == []


def test_steps_without_their_request_are_told(file):
    """The process died before the request's span was written."""
    other = span("first_token", "c1", 0, 1, {"llmtrace.step.index": 0}, "00000000000000cc")
    recording = read([file(line(REQUEST, other))])
    assert (
        "1 step span(s) belong to 1 request(s) that are not in the input" in problems(recording)[0]
    )


def test_foreign_spans_are_passed_over(file):
    """Other scopes, tokenize spans and request() groups are not requests."""
    recording = read(
        [
            file(
                line(span("GET /", "01", 0, 1, {"llmtrace.strategy": "greedy"}), scope="fastapi"),
                line(span("tokenize", "02", 0, 1, {}), span("llmtrace.request", "03", 0, 1, {})),
                line(REQUEST),
                '{"resourceMetrics":[]}',
                "",
            )
        ]
    )
    assert only(recording).span_id == "00000000000000aa"
    assert problems(recording) == []


def test_a_request_may_bear_any_name(file):
    """What makes a request is its strategy: request(name="decode") is none of the steps."""
    assert only(read([file(line({**REQUEST, "name": "decode"}))])).ttft_s == 0.25


@pytest.mark.parametrize("key", [None, 5, True, 1.5])
def test_what_has_no_text_for_a_key_is_no_attribute(file, key):
    """Of a resource too, whose keys a comparison sorts and prints."""
    bad = {"key": key, "value": {"stringValue": "app"}}
    described = json.loads(line({**REQUEST, "attributes": [bad, *REQUEST["attributes"]]}, *STEPS))
    for resource in described["resourceSpans"]:
        resource.setdefault("resource", {}).setdefault("attributes", []).append(bad)
    recording = read([file(json.dumps(described))])
    assert only(recording).ttft_s == 0.25
    assert all(isinstance(name, str) for held in recording.resources for name in held)


def test_a_collectors_ways_of_writing(file):
    """Numbers for strings and whole numbers for doubles, enums by name, empty values, no status."""
    written = {
        **REQUEST,
        "startTimeUnixNano": START,
        "endTimeUnixNano": START + 10**9,
        "kind": "SPAN_KIND_INTERNAL",
        "status": {"code": "STATUS_CODE_ERROR", "message": "x"},
        "flags": 256,
        "attributes": [
            {"key": "llmtrace.strategy", "value": {"stringValue": "greedy"}},
            {"key": "gen_ai.usage.input_tokens", "value": {"intValue": 7}},
            {"key": "llmtrace.ttft", "value": {"doubleValue": 1}},
            {"key": "llmtrace.tpot", "value": {"doubleValue": "NaN"}},
            {"key": "llmtrace.itl", "value": {"arrayValue": {"values": [{"intValue": "2"}]}}},
            {"key": "llmtrace.dtype", "value": {}},
            {"key": "llmtrace.findings", "value": {"arrayValue": {}}},
        ],
    }
    record = only(read([file(line(written))]))
    assert (record.input_tokens, record.ttft_s, record.itl_s) == (7, 1.0, [2.0])
    assert (record.tpot_s, record.dtype, record.findings) == (None, None, ())
    assert record.error == "_OTHER"


def test_spans_that_end_before_they_begin_are_told(file):
    """A request is kept without a duration; a step is not, so the arrays are used."""
    backwards = {"startTimeUnixNano": str(START + 10**9), "endTimeUnixNano": str(START)}
    recording = read([file(line(*STEPS, {**REQUEST, **backwards}))])
    assert only(recording).duration_s == 0
    assert problems(recording)[0].endswith(
        ":1: request 00000000000000aa ends before it begins: no duration"
    )
    recording = read([file(line(*STEPS[:3], {**STEPS[3], **backwards}, REQUEST))])
    assert len(only(recording).steps) == 3
    assert "malformed span: it ends before it begins" in problems(recording)[0]


def test_durations_below_zero_do_not_exist(file):
    """A clock set back makes no negative latencies."""
    broken = json.loads(line(REQUEST).replace("0.625", "-0.625"))
    assert only(read([file(json.dumps(broken))])).e2e_s is None


# Damage


def test_bad_lines_are_told_and_the_rest_is_read(file):
    """Cut off, foreign and malformed lines: each with file, line and reason."""
    path = file(
        line(REQUEST)[:200],
        '{"data":[]}',
        "[1, 2]",
        line({**REQUEST, "spanId": "bb", "startTimeUnixNano": "soon"}),
        line({k: v for k, v in REQUEST.items() if k != "endTimeUnixNano"}),
        '{"resourceSpans":[7, {"scopeSpans":[{"scope":{"name":"llmtrace"},"spans":5}]}]}',
        line(*STEPS, REQUEST),
    )
    recording = read([path])
    assert len(only(recording).steps) == 3
    assert [text.removeprefix(path).split(" ")[0] for text in problems(recording)] == [
        ":1:",
        ":2:",
        ":3:",
        ":4:",
        ":5:",
        ":6:",
        ":6:",
    ]
    assert "not JSON" in problems(recording)[0]
    assert "endTimeUnixNano is missing" in problems(recording)[4]


def test_a_file_still_being_written(file):
    """The last line has no end yet: it is told so, and all before it is read."""
    path = file(line(*STEPS, REQUEST))
    with Path(path).open("a") as more:
        more.write(line({**REQUEST, "spanId": "bb"})[:300])
    recording = read([path])
    assert only(recording).span_id == "00000000000000aa"
    assert problems(recording)[0].startswith(f"{path}:2: not JSON")
    assert problems(recording)[0].endswith("it was cut off, or is still being written")


def test_spans_met_again_are_told(file):
    """The request, prefill, first token and one step, twice."""
    recording = read([file(line(*STEPS, REQUEST), line(*STEPS[:3], REQUEST))])
    assert len(only(recording).steps) == 3
    assert recording.notes == ("4 span(s) met again count once",)
    assert not recording.partial


@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("llmtrace.ttft", {"doubleValue": 1e300}),
        ("llmtrace.ttft", {"doubleValue": -1.0}),
        ("llmtrace.e2e", {"doubleValue": "Infinity"}),
        ("gen_ai.usage.output_tokens", {"intValue": "9" * 40}),
        ("gen_ai.usage.output_tokens", {"intValue": "-3"}),
        ("gen_ai.usage.output_tokens", {"intValue": True}),
    ],
)
def test_numbers_beyond_reason_do_not_exist(file, key, written):
    """Neither huge nor negative ones; the rest of the request is read."""
    kept = [a for a in REQUEST["attributes"] if a["key"] != key]
    changed = {**REQUEST, "attributes": [*kept, {"key": key, "value": written}]}
    recording = read([file(line(changed))])
    record = only(recording)
    assert {record.ttft_s, record.e2e_s, record.output_tokens} >= {None}
    assert record.itl_s == [0.125, 0.25]
    json.loads(json_report.render(build_report(recording.records)))


@pytest.mark.parametrize("time", ["-1", str(1 << 63), "1" * 30, 1e30])
def test_times_beyond_reason_are_told(file, time):
    """Such a span cannot be placed."""
    bad = {**REQUEST, "spanId": "bb", "startTimeUnixNano": time}
    recording = read([file(line(bad), line(REQUEST))])
    assert only(recording).span_id == "00000000000000aa"
    assert "malformed span: no time: " in problems(recording)[0]


@pytest.mark.parametrize("bad", [-0.1, 1e13])
def test_an_array_with_a_number_that_is_no_duration_is_told(file, bad):
    """An array with a hole tells nothing."""
    spoilt = json.loads(line(REQUEST).replace("0.125", str(bad)))
    with pytest.raises(SourceError, match="malformed span: an array holds a"):
        read([file(json.dumps(spoilt))])


def test_a_line_of_ten_megabytes(file):
    """Of somebody else's spans with long texts, then one of ours."""
    others = [span("x", f"{i:016x}", 0, 1, {"text": "y" * 1000}) for i in range(9000)]
    path = file(line(*others, scope="other"), line(*STEPS, REQUEST))
    assert Path(path).stat().st_size > 10_000_000
    assert len(only(read([path])).steps) == 3


def test_a_step_without_a_parent_is_told(file):
    """A decode span belongs to some request; which, it must say."""
    orphan = {k: v for k, v in STEPS[2].items() if k != "parentSpanId"}
    recording = read([file(line(orphan, REQUEST))])
    assert "malformed span: parentSpanId is missing" in problems(recording)[0]


@pytest.mark.parametrize("packed", [False, True])
def test_protobuf_is_told(tmp_path, packed):
    """The collector's file exporter with format: proto, plain and with compression."""
    message = b"\n\x05hello"
    if packed:
        message = pytest.importorskip("zstandard").ZstdCompressor().compress(message)
    path = tmp_path / "t.bin"
    path.write_bytes(len(message).to_bytes(4, "big") + message)
    with pytest.raises(SourceError, match="holds OTLP as protobuf") as caught:
        read([str(path)])
    assert "set format: json" in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n",
        b"hello\n",
        b"\x00\xff\xfe" * 50,
        b"{",
        b"null\n",
        b'{"resourceSpans": null}\n',
        b'{"resourceSpans": []}\n',
        b'{"resourceSpans": [[]]}\n',
        b"[" * 5000,
        gzip.compress(b"hello\n"),
        gzip.compress(b"x" * 1000)[:20],
        line(span("x", "01", 0, 1, {}), scope="other").encode(),
    ],
)
def test_nothing_readable_is_one_line_of_error(tmp_path, content):
    """Whatever the file holds: no traceback, and the message names the file."""
    path = tmp_path / "f.jsonl"
    path.write_bytes(content)
    with pytest.raises(SourceError) as caught:
        read([str(path)])
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_control_characters_of_the_input_do_not_reach_the_terminal(file):
    """A message may quote the input; it must not clear the reader's screen."""
    key = "\x1b[2J"
    bad = json.loads(line(REQUEST))
    bad["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["startTimeUnixNano"] = key
    recording = read([file(json.dumps(bad), line({**REQUEST, "spanId": "dd"}))])
    assert recording.problems.count == 1
    assert "\x1b" not in problems(recording)[0]


def test_missing_files_are_one_line_of_error(tmp_path):
    """A file that is not there, and a folder without traces."""
    with pytest.raises(SourceError, match="no such file"):
        read([str(tmp_path / "none.jsonl")])
    with pytest.raises(SourceError, match=r"no \.jsonl or \.json file"):
        read([str(tmp_path)])


def test_an_unreadable_file_among_good_ones_is_told(file):
    """The good one is read."""
    recording = read([file("junk", name="a.json"), file(line(REQUEST), name="b.json")])
    assert only(recording).model == "m"
    assert recording.problems.count == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda children: (
        st.lists(children, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["key", "value", "arrayValue", "values", "doubleValue", "intValue", "stringValue"]
            ),
            children,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_part_may_be_anything(data, tmp_path_factory):
    """Whatever stands in the place of any part: one of our errors, or a record, never another."""
    document = json.loads(line(*STEPS, REQUEST))
    resource = document["resourceSpans"][0]
    scope = resource["scopeSpans"][0]
    spans = scope["spans"]
    place = data.draw(
        st.sampled_from(
            [document, resource, resource["resource"], scope, scope["scope"], *spans]
            + [item for one in spans for item in one["attributes"]]
            + [item["value"] for item in spans[-1]["attributes"]]
        )
    )
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(JSON)
    path = tmp_path_factory.mktemp("any") / "t.jsonl"
    path.write_text(json.dumps(document) + "\n")
    try:
        recording = read([str(path)])
    except SourceError:
        return
    json.loads(json_report.render(build_report(recording.records)))


# Files


def test_folders_and_packed_files(file, tmp_path):
    """Every trace file under a folder, gzip by its first bytes whatever its name."""
    file(line(REQUEST), name="deep/a.jsonl")
    packed = gzip.compress(line({**REQUEST, "spanId": "bb"}).encode())
    (tmp_path / "deep" / "b.json.gz").write_bytes(packed)
    (tmp_path / "c.jsonl").write_bytes(gzip.compress(line({**REQUEST, "spanId": "cc"}).encode()))
    file("not ours", name="notes.txt")
    recording = read([str(tmp_path)])
    assert sorted(r.span_id for r in recording.records) == ["00000000000000aa", "bb", "cc"]
    assert problems(recording) == []


def test_gzip_cut_off(tmp_path):
    """What was packed before the cut is read."""
    noise = [line({**REQUEST, "spanId": f"{i * 7919:016x}"}) for i in range(500)]
    packed = gzip.compress("\n".join(noise).encode())
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(packed[: len(packed) // 2])
    recording = read([str(path)])
    assert 50 < len(recording.records) < 450
    assert "breaks off" in problems(recording)[0]


def test_one_object_over_many_lines(file):
    """A file that was laid out for people to read."""
    assert only(read([file(json.dumps(json.loads(line(*STEPS, REQUEST)), indent=2))])).model == "m"


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("before", ["\ufeff", "\n\n", "\n\ufeff"])
def test_what_editors_put_before_a_document(file, before, indent):
    """A byte order mark and empty lines hide nothing."""
    found = read([file(before + json.dumps(json.loads(line(*STEPS, REQUEST)), indent=indent))])
    assert only(found).model == "m"
    assert not found.partial


def test_standard_input(tmp_path):
    """``-`` reads what is piped in."""
    code = "from llmtrace.sources.otlp_json import read; print(read(['-']).records[0].model)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=line(REQUEST),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "m\n"


ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def test_zstd_needs_a_package(tmp_path, monkeypatch):
    """Without it, the message says what to install."""
    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = tmp_path / "t.jsonl.zst"
    path.write_bytes(ZSTD_MAGIC + b"...")
    with pytest.raises(MissingExtraError, match="needs zstandard: pip install"):
        read([str(path)])


@pytest.mark.parametrize("framing", ["stream", "frames", "messages"])
def test_zstd(tmp_path, framing):
    """One stream, a frame per line, and the collector's length before each packed message."""
    zstandard = pytest.importorskip("zstandard")
    lines = [line(REQUEST) + "\n", line({**REQUEST, "spanId": "bb"}) + "\n"]
    pack = zstandard.ZstdCompressor().compress
    frames = [pack(text.encode()) for text in lines]
    content = {
        "stream": pack("".join(lines).encode()),
        "frames": b"".join(frames),
        "messages": b"".join(len(f).to_bytes(4, "big") + f for f in frames),
    }[framing]
    path = tmp_path / "t.json.zst"
    path.write_bytes(content)
    assert len(read([str(path)]).records) == 2
    path.write_bytes(content[:-9])
    if framing != "stream":
        recording = read([str(path)])
        assert len(recording.records) == 1
        assert recording.problems.count == 1


def test_progress_ends_at_the_files_size(file):
    """What is reported as read never exceeds the file, and reaches its end."""
    path = file(*[line({**REQUEST, "spanId": f"{i:016x}"}) for i in range(20)])
    seen: list[int] = []
    read([path], seen.append)
    assert seen[-1] == Path(path).stat().st_size
    assert seen == sorted(seen)


# Records written by our own exporter


def written(folder, records, steps="spans"):
    """Write *records* through the SDK to our local file; return its path."""
    exporter = LocalFileExporter(str(folder), "svc")
    provider = TracerProvider(resource=Resource({"service.name": "svc"}), shutdown_on_exit=False)
    provider.add_span_processor(BufferedProcessor(exporter))
    tracer = provider.get_tracer(names.SCOPE, "0")
    kept = []
    for record in records:
        info = RequestInfo(model=ModelFacts(name=record.model), operation=record.operation)
        live = LiveSpan(tracer, info, record.start_unix_ns, None)
        live.leave()
        write_spans(tracer, live, record, info, steps, lambda _: None)
        kept.append(dataclasses.replace(record, trace_id=live.trace_id, span_id=live.span_id))
        provider.force_flush()
    return str(exporter.path), kept


FULL = RequestRecord(
    model="llama",
    strategy="sample",
    device="cuda:0",
    clock="cuda",
    start_unix_ns=START,
    duration_s=1.0,
    operation="chat",
    batch_size=1,
    input_tokens=40,
    output_tokens=3,
    input_tokens_padded=48,
    input_tokens_cached=8,
    input_tokens_per_row=(40,),
    output_tokens_per_row=(3,),
    finish_reasons=("stop",),
    ttft_s=0.25,
    ttft_from_request_s=0.35,
    itl_s=[0.125, 0.25],
    tpot_s=0.1875,
    e2e_s=0.625,
    tgs=4.8,
    decode_tgs=5.3333,
    prefill_s=0.125,
    queue_s=0.0625,
    ttft_from_admission_s=0.1875,
    preemptions=1,
    tokenize_s=0.03125,
    first_delivery_s=0.26,
    first_visible_text_s=0.27,
    steps=[
        StepRecord(0, "prefill", 0.0, 0.25, 1, 2, 0.0625, 0.1875, 0.1, 0.125, 0.05, 0.2505),
        StepRecord(1, "decode", 0.25, 0.375, 1, 1, None, None, 0.05, 0.1, 0.0001, 0.3755),
        StepRecord(2, "decode", 0.375, 0.625, 1, 1, None, None, 0.06, 0.2, -0.00005, 0.6255),
    ],
    cold=True,
    compiled=True,
    cold_reasons=("first_request", "compilation"),
    parameters=GenerationParameters(
        max_tokens=64,
        temperature=0.7,
        top_p=0.9,
        top_k=50,
        do_sample=True,
        choice_count=1,
        stop_sequences=("END",),
        stream=True,
    ),
    dtype="bfloat16",
    quantization="nf4",
    attn_implementation="sdpa",
    cache_implementation="static",
    host_bound_ratio=0.5,
    clock_error_s=1e-6,
    kv_cache_bytes=4096,
    memory_allocated_bytes=1 << 30,
    memory_reserved_bytes=1 << 31,
    memory_peak_bytes=3 << 29,
    attributes={"tenant": "a", "tries": 2, "ratio": 0.5, "paid": True},
)


def assert_same(found, expected):
    """Equal, with times to the nanosecond, which is what spans hold."""
    assert type(found) is type(expected)
    for field in dataclasses.fields(expected):
        a, b = getattr(found, field.name), getattr(expected, field.name)
        if field.name == "steps":
            assert len(a) == len(b)
            for one, other in zip(a, b, strict=True):
                assert_same(one, other)
        elif isinstance(b, float):
            assert a == pytest.approx(b, abs=1.1e-9), field.name
        else:
            assert a == b, field.name


def test_a_record_comes_back_whole(tmp_path):
    """Every field of a record with everything in it."""
    path, (kept,) = written(tmp_path, [FULL])
    assert_same(only(read([path])), kept)


def test_a_record_with_nothing_in_it_comes_back_with_nothing(tmp_path):
    """What does not exist is absent afterwards too."""
    empty = RequestRecord("m", "greedy", "cpu", "host", START, 0.5)
    path, (kept,) = written(tmp_path, [empty])
    assert_same(only(read([path])), kept)


def test_a_failed_batch_comes_back(tmp_path):
    """Rows, error and status."""
    failed = RequestRecord(
        "m",
        "greedy",
        "cpu",
        "host",
        START,
        0.5,
        batch_size=3,
        input_tokens=12,
        input_tokens_per_row=(3, 4, 5),
        error="builtins.RuntimeError",
    )
    path, (kept,) = written(tmp_path, [failed])
    assert_same(only(read([path])), kept)


def test_findings_come_back_by_code(tmp_path):
    """A file holds codes and evidence; the report has the same words as in the process."""
    finding = Finding(
        "steps_truncated",
        "info",
        "Only the first steps were recorded singly",
        "2 recorded, 5 more tokens counted",
        "Raise max_step_spans (LLMTRACE_MAX_STEP_SPANS).",
    )
    path, kept = written(tmp_path, [dataclasses.replace(FULL, cold=False, findings=(finding,))])
    before = build_report(kept).findings
    after = build_report(read([path]).records).findings
    assert after == before


@st.composite
def records(draw):
    """Requests of one or several rows, with steps, some of them failed or cold."""
    n = draw(st.integers(1, 12))
    gaps = draw(st.lists(st.integers(1, 10**8), min_size=n, max_size=n))
    ends = [e / 1e9 for e in itertools.accumulate(gaps)]
    steps = [
        StepRecord(
            i,
            "decode" if i else "prefill",
            ends[i - 1] if i else 0.0,
            ends[i],
            1,
            1,
            host_duration_s=gaps[i] / 2e9,
        )
        for i in range(n)
    ]
    rows = draw(st.lists(st.integers(1, n), max_size=3).map(lambda more: (n, *more)))
    prompts = draw(st.lists(st.integers(1, 3000), min_size=len(rows), max_size=len(rows)))
    last = ends[-1]
    return RequestRecord(
        model="m",
        strategy="greedy",
        device="cpu",
        clock="host",
        start_unix_ns=START + draw(st.integers(0, 10**9)),
        duration_s=(sum(gaps) + 1000) / 1e9,
        batch_size=len(rows),
        input_tokens=sum(prompts),
        output_tokens=sum(rows),
        input_tokens_per_row=tuple(prompts),
        output_tokens_per_row=rows,
        ttft_s=ends[0],
        itl_s=[b - a for a, b in itertools.pairwise(ends)],
        tpot_s=(last - ends[0]) / (n - 1) if n > 1 else None,
        e2e_s=last,
        tgs=sum(rows) / last,
        prefill_s=ends[0] / 2,
        steps=steps,
        cold=draw(st.booleans()),
        error=draw(st.sampled_from([None, None, "builtins.ValueError"])),
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(records(), min_size=1, max_size=5), st.sampled_from(["spans", "none"]))
def test_a_file_gives_the_report_that_its_records_give(tmp_path_factory, made, steps):
    """Through SDK, file and reader not a number of the report changes, with or without steps."""
    path, kept = written(tmp_path_factory.mktemp("trip"), made, steps)
    kept.sort(key=lambda record: record.start_unix_ns)
    recording = read([path])
    assert not recording.partial
    found = build_report(recording.records, include_cold=True)
    expected = build_report(kept, include_cold=True)
    assert json_report.render(found) == json_report.render(expected)
    assert (found.phases is None) == (expected.phases is None)
    if expected.phases is not None:
        shares = [part.share for part in expected.phases.parts]
        assert [part.share for part in found.phases.parts] == pytest.approx(shares)

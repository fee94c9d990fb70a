"""Whatever a file holds: a report of it, or one line of error; never another exception.

``make test`` tries some thousand inputs, always the same; ``make fuzz`` more than a hundred
thousand, other ones each time (FUZZ_INPUTS=N for another number).
"""

from __future__ import annotations

import gzip
import json
import os
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmtrace.analysis.comparison import compare
from llmtrace.analysis.differences import differences
from llmtrace.analysis.policy_toml import PRESETS, parse, preset
from llmtrace.analysis.report import build_report, counted_requests
from llmtrace.analysis.verdicts import check
from llmtrace.errors import PolicyError, SourceError
from llmtrace.reports import check_json, check_text, compare_json, compare_text, json_report, junit
from llmtrace.reports import text as text_report
from llmtrace.sources.documents import read_documents
from llmtrace.sources.otlp_json import read
from llmtrace.sources.recording import Problems
from llmtrace.telemetry.otlp_message import messages
from tests.unit.test_sources import REQUEST, STEPS, attributes, line, span

INPUTS = int(os.environ.get("FUZZ_INPUTS", "3200"))
SHARES = {"bytes": 0.35, "structure": 0.4, "packed": 0.1, "messages": 0.1, "policy": 0.05}


def inputs(kind):
    """So many inputs of the kind; the same ones unless a number is asked for."""
    return settings(
        max_examples=round(INPUTS * SHARES[kind]),
        deadline=None,
        derandomize="FUZZ_INPUTS" not in os.environ,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


BATCH = span(
    "text_completion m",
    "00000000000000ba",
    1.0,
    2.5,
    {
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.response.finish_reasons": ["stop", "length", "length"],
        "llmtrace.strategy": "sample",
        "llmtrace.do_sample": True,
        "gen_ai.request.temperature": 0.7,
        "llmtrace.batch_size": 3,
        "llmtrace.input_tokens.per_row": [5, 10, 15],
        "llmtrace.output_tokens.per_row": [3, 2, 2],
        "llmtrace.ttft": 0.5,
        "llmtrace.ttft.from_request": 0.6,
        "llmtrace.itl": [0.125, 0.25],
        "llmtrace.tpot": 0.1875,
        "llmtrace.e2e": 0.875,
        "llmtrace.tgs": 8.0,
        "llmtrace.decode_tgs": 10.0,
        "llmtrace.prefill": 0.25,
        "llmtrace.queue": 0.125,
        "llmtrace.step.launch_leads": [0.1, -0.1, 0.0],
        "llmtrace.step.device_durations": [0.2, 0.1, 0.2],
        "llmtrace.step.puts": [0.51, 0.64, 0.9],
        "llmtrace.cuda.memory.peak": 1 << 30,
        "llmtrace.host_bound_ratio": 0.5,
        "llmtrace.cold": False,
        "llmtrace.findings": ["steps_truncated"],
        "tenant": "a",
    },
)
FAILED = {
    **span(
        "chat m",
        "00000000000000fa",
        2.0,
        3.0,
        {"llmtrace.strategy": "greedy", "error.type": "builtins.E", "llmtrace.cold": True},
    ),
    "status": {"code": 2},
}
MANY = [
    {**REQUEST, "spanId": f"{i:016x}", "startTimeUnixNano": str(1_700_000_000_000_000_000 + i)}
    for i in range(12)
]
FILES = [
    "\n".join([line(*STEPS, REQUEST), line(BATCH), line(FAILED)]) + "\n",
    line(*STEPS[1:], BATCH, REQUEST, *STEPS) + "\n",
    line(*MANY) + "\n" + line(span("GET /", "0f", 0, 1, {}), scope="other") + "\n",
    json.dumps(json.loads(line(*STEPS, REQUEST)), indent=1),
]

WORDS = [
    b"null", b"true", b"-1", b"0", b"1e309", b"-1e300", b"9" * 40, b"NaN", b"Infinity", b"\xff",
    b"\x00", b"\n", b'"', b"{", b"}", b"[", b"]", b",", b":", b"{}", b"[]", b'""', b"0.1",
    b'"intValue"', b'"doubleValue"', b'"stringValue"', b'"arrayValue"', b'"llmtrace.itl"',
    b'"llmtrace.strategy"', b'"decode"', b'"first_token"', b"\x1b[2J", b"[" * 600, b"\\u0000",
    b"\xf0\x9f\x92\xa9",
]  # fmt: skip


@st.composite
def spoilt(draw, contents):
    """One of *contents* after some cuts, doublings and insertions."""
    content = draw(st.sampled_from(contents))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = min(start + draw(st.sampled_from([0, 0, 1, 2, 8, 40, 400])), len(content))
        middle = draw(st.sampled_from([b"", content[start:end] * 2, *WORDS]))
        content = content[:start] + middle + content[end:]
    return content


SCALARS = (
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers()
    | st.sampled_from(
        ["", "NaN", "Infinity", "-1", "9" * 40, "1e308", str(1 << 53), "x\x1b[2J", "decode", "aa"]
    )
    | st.sampled_from([0, -1, 10**9, 1 << 53, 1 << 63, 1 << 70, 1e12, 1e308, -1e308, 5e-324])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["key", "value", "values", "intValue", "doubleValue", "arrayValue"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


def paths(node, above=()):
    """Every place in a document, as the keys that lead there."""
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        yield (*above, key)
        if isinstance(node[key], (dict, list)):
            yield from paths(node[key], (*above, key))


DOCUMENTS = ["[" + ",".join(file.splitlines()) + "]" for file in FILES[:3]]
PATHS = [list(paths(json.loads(document))) for document in DOCUMENTS]
CHANGES = st.sampled_from(["value", "value", "value", "gone", "double"])


def follow(documents, path):
    """Return the container and the key that *path* leads to, as far as it still does."""
    node = documents
    for key in path[:-1]:
        try:
            below = node[key]
        except (KeyError, IndexError, TypeError):
            break
        if not below or not isinstance(below, (dict, list)):
            return node, key
        node = below
    keys = list(node) if isinstance(node, dict) else range(len(node))
    return node, path[-1] if path[-1] in keys else keys[0]


@st.composite
def restructured(draw):
    """Lines of JSON in which some parts are something else, or gone, or doubled."""
    which = draw(st.integers(0, len(DOCUMENTS) - 1))
    documents = json.loads(DOCUMENTS[which])
    places = st.integers(0, len(PATHS[which]) - 1)
    for place in draw(st.lists(places, min_size=1, max_size=4)):
        if not documents:
            break
        node, key = follow(documents, PATHS[which][place])
        change = draw(CHANGES)
        if change == "gone":
            del node[key]
        elif change == "double" and isinstance(node, list):
            node.insert(key, node[key])
        else:
            node[key] = draw(VALUES)
    return "\n".join(json.dumps(document) for document in documents).encode()


def strict(text):
    """Read JSON as a strict reader does."""
    return json.loads(text, parse_constant=pytest.fail)


def in_json(recording, report, include_cold):
    strict(json_report.render(report, recording))


def in_text(recording, report, include_cold):
    said = text_report.render(report, problems=recording.problems.count)
    assert "\x1b" not in said


def checked(recording, report, include_cold):
    failed = [r for r in recording.records if r.error is not None]
    counted = counted_requests(recording.records, include_cold=include_cold)
    for name in PRESETS:
        found = check(preset(name), counted, failed, report)
        strict(check_json.render(found, recording))
        junit.render(found)
    assert "\x1b" not in check_text.render(found)


def compared(recording, report, include_cold):
    records = recording.records
    found = compare(records, records[::-1], include_cold=include_cold)
    assert found.verdict(0) in {"PASS", "UNDECIDED"}
    changed = differences(report, found.after, recording.resources, ())
    strict(compare_json.render(found, changed, "PASS"))
    assert "\x1b" not in compare_text.render(found, changed)


def whole(recording, report, include_cold):
    """Every step of every request can be had."""
    for record in recording.records:
        assert len(list(record.steps)) == len(record.steps)


def exercise(path, use, include_cold):
    """Read the file and use what was read; one line of error is as good."""
    recording = said = None
    try:
        recording = read([str(path)])
    except SourceError as error:
        said = str(error)
    if recording is None:
        assert said.splitlines() == [said]
        assert str(path) in said
        return
    assert recording.records
    assert all(text.isprintable() for text in recording.problems.lines)
    use(recording, build_report(recording.records, include_cold=include_cold), include_cold)


uses = st.sampled_from([in_json, in_json, in_text, checked, compared, whole])


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "t.jsonl"


@inputs("bytes")
@given(spoilt([file.encode() for file in FILES]), uses, st.booleans())
def test_spoilt_bytes(path, content, use, include_cold):
    """Cut, doubled, overwritten."""
    path.write_bytes(content)
    exercise(path, use, include_cold)


@inputs("structure")
@given(restructured(), uses, st.booleans())
def test_spoilt_structure(path, content, use, include_cold):
    """Good JSON, in which parts are not what they should be."""
    path.write_bytes(content)
    exercise(path, use, include_cold)


def packings():
    zstandard = pytest.importorskip("zstandard")
    pack = zstandard.ZstdCompressor().compress
    plain = FILES[0].encode()
    frames = [pack(text) for text in plain.splitlines(keepends=True)]
    return [
        gzip.compress(plain),
        pack(plain),
        b"".join(frames),
        b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames),
        (7).to_bytes(4, "big") + b"\n\x05hello",
        zlib.compress(plain),
    ]


@inputs("packed")
@given(data=st.data(), use=uses)
def test_spoilt_packings(path, data, use):
    """Bytes of gzip and zstd, whole and framed."""
    path.write_bytes(data.draw(spoilt(packings())))
    exercise(path, use, True)


@inputs("messages")
@given(restructured())
def test_spoilt_input_of_export(path, content):
    """What can be sent is made into messages; what cannot is told with its place."""
    path.write_bytes(content)
    problems = Problems()
    documents = read_documents(str(path), problems)
    for message, spans in messages(documents, problems.add):
        assert message.SerializeToString()
        assert spans > 0
    assert all(text.startswith(str(path)) for text in problems.lines)


POLICY = b"""
samples.min = 7
[[ttft]]
max_prompt_tokens = 128
p95_ms = 300
[[ttft]]
from = "request"
prompt_tokens_per_s = 512
min_share = 0.9
[itl]
p95_ms = 50
[rate]
min_tokens_per_s = 4
[tgs]
require_conditions = true
min_system = 60.0
[goodput]
min_requests_per_s = 2
"""


@inputs("policy")
@given(spoilt([POLICY]))
def test_spoilt_policies(content):
    """A policy, or one line of error."""
    try:
        said = parse(content.decode(errors="replace"), "p").name
    except PolicyError as error:
        said = str(error)
    assert said.splitlines() == [said]


def test_the_files_spoilt_here_are_good_ones(path):
    """Before they are spoilt, nothing is amiss with them."""
    for content, requests in zip(FILES, (3, 2, 12, 1), strict=True):
        path.write_text(content)
        recording = read([str(path)])
        assert len(recording.records) == requests
        assert recording.problems.lines == []
    assert attributes({"a": 1}) == [{"key": "a", "value": {"intValue": "1"}}]

"""What goes into spans and labels is text that every backend can take."""

from dataclasses import replace

from llmtrace.records import GenerationParameters
from llmtrace.telemetry.attributes import request_attributes
from llmtrace.telemetry.metrics import labels_of
from tests.unit.requests import request


def test_half_characters_become_question_marks():
    """One in a message of OTLP makes its exporter drop the whole message."""
    record = replace(
        request(1.0, 2.0),
        attributes={"user": "a\ud800", "n": 3, "words": ["\udcff", "\u00e9"]},
        parameters=GenerationParameters(stop_sequences=("\udce9",)),
    )
    found = request_attributes(record)
    assert (found["user"], found["n"], list(found["words"])) == ("a?", 3, ["?", "\u00e9"])
    assert list(found["gen_ai.request.stop_sequences"]) == ["?"]
    assert labels_of("chat", "we\udce9ird")["gen_ai.request.model"] == "we?ird"
    for value in found.values():
        repr(value).encode()

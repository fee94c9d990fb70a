"""Settings: where they come from, and what is said of bad ones."""

import argparse
import json

import pytest

from llmtrace.cli import config as command
from llmtrace.config import SETTINGS, Config, load, resolve
from llmtrace.errors import ConfigError

GOOD = {
    "steps": ("none", "spans"),
    "max_step_spans": ("7", "8"),
    "dir": ("one", "two"),
    "content": ("span_only", "event_only"),
    "flush_timeout_s": ("1.5", "2"),
    "peaks": ("4.3e12,7.9e14", "1e12"),
    "disabled": ("1", "0"),
}
VALUES = {
    "none": "none",
    "7": 7,
    "one": "one",
    "span_only": "span_only",
    "1.5": 1.5,
    "4.3e12,7.9e14": "4.3e12,7.9e14",
    "1": True,
}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.field)
def test_an_argument_goes_before_a_variable_before_the_default(setting):
    """The nearest source decides, and is named."""
    first, second = GOOD[setting.field]
    environ = {setting.variable: second}

    def one(arguments, environ):
        return next(r for r in resolve(arguments, environ) if r.setting is setting)

    chosen = one({setting.field: first}, environ)
    assert (chosen.value, chosen.source) == (VALUES[first], "argument")
    chosen = one({setting.field: None}, {setting.variable: first})
    assert (chosen.value, chosen.source) == (VALUES[first], "variable")
    chosen = one({}, {})
    assert (chosen.value, chosen.source) == (getattr(Config(), setting.field), "default")


def test_every_setting_is_a_field_and_the_other_way_round():
    """The table of settings and the configuration hold the same names."""
    assert {s.field for s in SETTINGS} == set(Config.__dataclass_fields__)
    assert len({s.variable for s in SETTINGS}) == len(SETTINGS)


def test_an_empty_variable_is_no_value():
    """A variable set to nothing is as one that is not set."""
    assert load(environ={s.variable: "" for s in SETTINGS}) == Config()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LLMTRACE_STEPS", "some"),
        ("LLMTRACE_STEPS", " "),
        ("LLMTRACE_MAX_STEP_SPANS", "0"),
        ("LLMTRACE_MAX_STEP_SPANS", "-3"),
        ("LLMTRACE_MAX_STEP_SPANS", "many"),
        ("LLMTRACE_MAX_STEP_SPANS", "1.5"),
        ("LLMTRACE_FLUSH_TIMEOUT_S", "nan"),
        ("LLMTRACE_FLUSH_TIMEOUT_S", "inf"),
        ("LLMTRACE_FLUSH_TIMEOUT_S", "soon"),
        ("LLMTRACE_FLUSH_TIMEOUT_S", "0"),
        ("LLMTRACE_DISABLED", "maybe"),
        ("LLMTRACE_STEPS", "two\nlines"),
    ],
)
def test_a_bad_variable_is_named_in_one_line(variable, value):
    """The message says which variable, its value and what it is for."""
    with pytest.raises(ConfigError) as caught:
        load(environ={variable: value})
    message = str(caught.value)
    assert message.startswith(f"{variable}={value!r} is ")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("steps", "some"),
        ("max_step_spans", 0),
        ("max_step_spans", 1.5),
        ("max_step_spans", True),
        ("dir", ""),
        ("content", "everything"),
        ("flush_timeout_s", -1),
        ("flush_timeout_s", "soon"),
        ("peaks", "fast"),
        ("peaks", "0"),
        ("peaks", "1e12,inf"),
        ("peaks", "1,2,3"),
    ],
)
def test_a_bad_argument_is_named_in_one_line(argument, value):
    """The message says which argument and its value."""
    with pytest.raises(ConfigError) as caught:
        load({argument: value}, {})
    message = str(caught.value)
    assert message.startswith(f"{argument}={value!r} is ")
    assert "\n" not in message


def test_an_unknown_argument_is_named():
    """A misspelt setting is not ignored."""
    with pytest.raises(ConfigError, match="unknown setting: step, stepz"):
        load({"stepz": 1, "step": 2}, {})


@pytest.mark.parametrize("text", ["true", "YES", " on ", "1"])
def test_a_flag_may_be_said_in_words(text):
    """1, true, yes and on mean the same."""
    assert load(environ={"LLMTRACE_DISABLED": text}).disabled is True


def test_capital_letters_do_not_matter():
    """The conventions write ``SPAN_ONLY``, users what they like."""
    variable = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
    assert load(environ={variable: "SPAN_ONLY"}).content == "span_only"


def test_the_configuration_is_frozen():
    """What is in force cannot be changed from outside."""
    with pytest.raises(AttributeError):
        Config().steps = "none"


def run_command(*arguments):
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    parsed = parser.parse_args(["config", *arguments])
    return parsed.run(parsed)


def test_the_command_prints_every_setting_with_its_source(monkeypatch, capsys):
    """Two lines a setting: value and source, then variable and meaning."""
    monkeypatch.setenv("LLMTRACE_MAX_STEP_SPANS", "12")
    assert run_command() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * len(SETTINGS)
    assert "max_step_spans = 12  (variable)" in lines
    assert "steps = spans  (default)" in lines
    for setting in SETTINGS:
        assert f"    {setting.variable}: {setting.meaning}" in lines


def test_the_command_prints_json(monkeypatch, capsys):
    """``--json`` gives the same as an object by setting."""
    monkeypatch.setenv("LLMTRACE_STEPS", "none")
    assert run_command("--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == [s.field for s in SETTINGS]
    assert printed["steps"] == {
        "value": "none",
        "source": "variable",
        "variable": "LLMTRACE_STEPS",
        "meaning": SETTINGS[0].meaning,
    }
    assert printed["disabled"]["value"] is False


def test_a_shared_variable_with_a_foreign_value_is_one_warning(caplog):
    """What other packages may understand is no error of ours: nothing is captured."""
    shared = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
    for _ in range(2):
        assert load(environ={shared: "true"}).content == "no_content"
    assert [shared in r.getMessage() for r in caplog.records] == [True]


def test_the_command_says_a_bad_value_in_one_line(monkeypatch, capsys):
    """A bad variable is exit code 2 and one line on stderr."""
    from llmtrace.cli import main

    monkeypatch.setenv("LLMTRACE_STEPS", "some")
    assert main(["config"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("llmtrace config: LLMTRACE_STEPS='some' is none of spans, none")
    assert printed.err.count("\n") == 1

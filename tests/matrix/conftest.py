"""Tiny models, and the collection of each test's result into a cell of the compatibility table."""

import json
import os
from pathlib import Path

import pytest
import torch
import transformers
from harness import NOT_HERE, NOT_OBSERVABLE, NOTE, tiny_llama

import llmtrace
from llmtrace.guard import guard
from llmtrace.session import session

_cells = {}


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread():
    """Threads of torch's own make tiny models slower, not faster."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def clean():
    """No test leaves a patch, a running request or an internal failure behind."""
    yield
    llmtrace.uninstrument()
    assert session().pipeline.running == 0
    assert guard.failures == 0


@pytest.fixture
def tiny():
    """A Llama of 2 layers, 64 words, random weights."""
    return tiny_llama()


@pytest.fixture
def prompt():
    """Token ids ``[1, 5]``."""
    return torch.tensor([[5, 6, 7, 8, 9]])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Note what a test says about its cell."""
    report = yield
    marker = item.get_closest_marker("cell")
    if marker is not None and (report.when == "call" or report.outcome != "passed"):
        _note(marker.args[0], item, report)
    return report


def _note(mode, item, report):
    group = item.path.stem.removeprefix("test_")
    cell = _cells.setdefault(mode, {"group": group, "results": [], "notes": []})
    properties = dict(item.user_properties)
    note = properties.get(NOTE, "")
    if report.outcome == "failed":
        result, note = "wrong", f"{item.name} failed"
    elif report.outcome == "skipped":
        result = NOT_HERE
        note = str(report.longrepr[-1] if isinstance(report.longrepr, tuple) else "")
        note = note.removeprefix("Skipped: ")
    else:
        result = properties.get("result", "right")
    cell["results"].append(result)
    if note and note not in cell["notes"]:
        cell["notes"].append(note)


_WORST_FIRST = ("wrong", NOT_OBSERVABLE, "right", NOT_HERE)


def pytest_sessionfinish(session):
    """Write the cells of this version, where it was asked for."""
    path = os.environ.get("LLMTRACE_MATRIX_JSON")
    if not path:
        return
    cells = {}
    for mode, cell in _cells.items():
        result = next(r for r in _WORST_FIRST if r in cell["results"])
        note = "; ".join(cell["notes"])
        cells[mode] = {"group": cell["group"], "result": result, "note": note}
    data = {"version": transformers.__version__, "torch": torch.__version__, "cells": cells}
    Path(path).write_text(json.dumps(data, indent=1) + "\n")

# Each target does its own set-up: a virtual environment in .venv, filled once.
PYTHON ?= python3
VENV := .venv
FUZZ_INPUTS ?= 110000

.PHONY: demo test check unit fuzz matrix matrix-ends overhead report-speed serving clean

demo: $(VENV)/demo-ready  ## A small real model, traced, on this machine
	$(VENV)/bin/llmtrace demo

test: $(VENV)/test-ready  ## Every test that needs no GPU
	$(VENV)/bin/python -m pytest

unit: $(VENV)/test-ready  ## The tests that need no torch: seconds
	$(VENV)/bin/python -m pytest tests/unit

fuzz: $(VENV)/test-ready  ## The readers of files, with more than 100,000 spoilt inputs: minutes
	FUZZ_INPUTS=$(FUZZ_INPUTS) $(VENV)/bin/python -m pytest tests/unit/test_fuzz.py --timeout=0

check: $(VENV)/test-ready  ## Format, lint, types, import rules
	scripts/check

matrix: $(VENV)/test-ready  ## Every generation mode under ten releases of transformers
	scripts/matrix

matrix-ends: $(VENV)/test-ready  ## The same under the oldest and the newest
	scripts/matrix 4.38.2 5.24.0

report-speed: $(VENV)/demo-ready  ## Time and memory of a report on up to a million spans
	$(VENV)/bin/python benchmarks/report_speed.py

overhead: $(VENV)/demo-ready  ## Host time that llmtrace adds to a decode step
	$(VENV)/bin/python benchmarks/overhead.py

serving: $(VENV)/test-ready  ## A streaming server under load, with and without llmtrace
	$(VENV)/bin/python benchmarks/serving.py

$(VENV)/demo-ready: pyproject.toml constraints.txt scripts/install
	scripts/install $(PYTHON) demo
	touch $@

$(VENV)/test-ready: pyproject.toml constraints.txt requirements-dev.txt scripts/install
	scripts/install $(PYTHON) test
	touch $@ $(VENV)/demo-ready

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache

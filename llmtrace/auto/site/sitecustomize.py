"""Run by Python at start-up under ``llmtrace run``: turns tracing on before the program begins.

This folder is put first on ``PYTHONPATH``, so the program and its child processes run exactly as
they would without us, with their own ``__main__``, exit code and signals.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100,PTH120 - before anything else


def _run_the_shadowed_one() -> None:
    """Run the ``sitecustomize`` of this machine, which ours hides."""
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != _HERE]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_run_the_shadowed_one()

try:
    # Not there in another Python that the program starts: that one runs as ever.
    if importlib.util.find_spec("llmtrace") is not None:
        from llmtrace.auto.start import start

        start(os.environ)
except Exception as _error:  # noqa: BLE001 - the program runs, untraced
    print(f"llmtrace: tracing could not be turned on: {_error}", file=sys.stderr)  # noqa: T201

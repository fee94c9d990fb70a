"""A function of the user's own that is run on the model before it is examined."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmtrace.errors import ConfigError


def function(named: str) -> Callable[[Any], None]:
    """Return the function that ``FILE.py:FUNCTION`` names; if it fails, it raises ConfigError.

    Raises:
        ConfigError: There is no such file or function, or the file cannot be run.
    """
    file, _, name = named.rpartition(":")
    if not file or not Path(file).is_file():
        raise ConfigError(f"--prepare {named}: there is no such file; it is FILE.py:FUNCTION")
    try:
        found = getattr(_module(file), name, None)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"--prepare {named}: cannot be run: {reason}") from error
    if not callable(found):
        raise ConfigError(f"--prepare {named}: {file} has no function {name}")

    def prepare(model: Any) -> None:
        try:
            found(model)
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ConfigError(f"--prepare {named}: failed: {reason}") from error

    return prepare


def _module(file: str) -> Any:
    """Run a file and return its module, under its own name as if it had been imported."""
    path = Path(file).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError("is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module

"""What has been imported, wholly: another thread may be in the middle of it."""

from __future__ import annotations

import sys
from types import ModuleType


def imported(name: str) -> ModuleType | None:
    """Return the module *name*; None where nobody has imported it, or not to its end yet.

    A module is in ``sys.modules`` from the beginning of its import on, when it has no names yet.
    """
    module = sys.modules.get(name)
    # The interpreter's own mark, which its import statement waits by.
    begun = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return None if begun else module

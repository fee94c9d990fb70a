"""``torch.compile(model)``: the module around a model, called in own decode loops.

Inside the compiled region the model's own call is traced once and never seen again, so the call
from outside is what is marked. ``generate()`` does not come this way: it belongs to the original
model.
"""

from __future__ import annotations

from typing import Any

from llmtrace.recording.active import active
from llmtrace.seams.forward import recorded
from llmtrace.seams.patching import PatchSet


def install(patches: PatchSet) -> None:
    """Mark calls of compiled modules; dynamo has been imported."""
    from torch._dynamo.eval_frame import OptimizedModule

    # Where an older torch's class has no __call__ of its own, such a loop's forwards are not seen
    # and its record has the tokens that it marks itself.
    patches.wrap(OptimizedModule, "__call__", _called)


def _called(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    recorder = active.get()
    if recorder is None or not recorder.own_loop:
        return wrapped(*args, **kwargs)
    inner = instance._orig_mod  # noqa: SLF001 - its one name for what it compiles
    if recorder.model is None:
        recorder = recorder.adopted(inner)
    if recorder.model is not inner:
        return wrapped(*args, **kwargs)
    return recorded(recorder, wrapped, args, kwargs)

"""The model's forward call: ``PreTrainedModel.__call__`` and ``get_compiled_call``.

``PreTrainedModel`` defines no ``__call__`` in any release from 4.38 to 5.24, so ours is a new
class attribute and undoing it deletes it. Instances keep nothing of it: deep copies, pickles and
hooks of other libraries see the model they always saw.
"""

from __future__ import annotations

from functools import wraps
from types import MethodType
from typing import Any

import wrapt

from llmtrace.recording.active import active
from llmtrace.recording.recorder import Recorder
from llmtrace.seams.kv_cache import CACHE_NAMES
from llmtrace.seams.patching import PatchSet


def install(patches: PatchSet) -> None:
    """Put the forward seam in place; transformers has been imported."""
    from transformers.modeling_utils import PreTrainedModel

    patches.add(PreTrainedModel, "__call__", _make_call())
    patches.wrap(PreTrainedModel, "get_compiled_call", _get_compiled_call)


def _make_call() -> Any:
    """Return the new ``__call__``.

    A plain function that looks up ``nn.Module.__call__`` each time: torch.fx replaces that while
    it traces, and a wrapt wrapper would go on calling the one it was made with
    (``tests/integration/test_coexistence.py``). It also runs twice per step, and costs 0.4 us
    less each time. Under dynamo ``is_compiling`` is a constant, so nothing of ours gets into the
    graph.
    """
    import torch

    is_compiling = torch.compiler.is_compiling
    module = torch.nn.Module
    current = active.get

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if is_compiling():
            return module.__call__(self, *args, **kwargs)
        recorder = current()
        if recorder is None:
            return module.__call__(self, *args, **kwargs)
        if recorder.model is not self:
            if recorder.model is not None:
                if not recorder.forward_starts and not recorder.own_loop:
                    # An encoder's: the prefill has begun.
                    recorder.encoder_started()
                return module.__call__(self, *args, **kwargs)
            recorder = recorder.adopted(self)
        return recorded(recorder, MethodType(module.__call__, self), args, kwargs)

    return __call__


def recorded(recorder: Recorder, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make a model's call and mark it; not one within a call that is marked already."""
    within = len(recorder.forward_starts) != len(recorder.forward_ends)
    if within or (recorder.own_loop and recorder.capturing()):
        return call(*args, **kwargs)
    if recorder.cache is None:
        _note_call(recorder, args, kwargs)
    recorder.forward_started()
    try:
        result = call(*args, **kwargs)
    except BaseException:
        recorder.forward_failed()
        raise
    recorder.forward_ended()
    return result


def install_chunks(patches: PatchSet) -> None:
    """Watch prefill in chunks (4.51 to 4.57), which 4.52 and later run past ``__call__``."""
    from transformers.generation.utils import GenerationMixin

    patches.wrap(GenerationMixin, "_prefill_chunking", _prefill_chunking)


def _prefill_chunking(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    recorder = active.get()
    function = getattr(wrapped, "__func__", None)
    if recorder is None or recorder.model is not instance or function is None:
        return wrapped(*args, **kwargs)
    return function(_Chunking(instance), *args, **kwargs)


_PROMPT = ("input_ids", "inputs_embeds", "attention_mask")


_ObjectProxy: Any = wrapt.ObjectProxy


class _Chunking(_ObjectProxy):  # type: ignore[misc]
    """Stands for the model while it is given chunks: each call of ``forward`` is one."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        model = self.__wrapped__
        recorder = active.get()
        if recorder is None:
            return model.forward(*args, **kwargs)
        return recorded(recorder, model.forward, args, kwargs)


def _get_compiled_call(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    compiled = wrapped(*args, **kwargs)
    recorder = active.get()
    if recorder is None or recorder.model is not instance:
        return compiled
    recorder.compiled = True
    return _before_compiled(compiled, instance)


def _before_compiled(compiled: Any, model: Any) -> Any:
    """Return what stands before the compiled call: a wrapper inside it would see nothing.

    A closure: through a proxy of wrapt's each call would take half as long again, at the one
    place in a compiled loop where the device waits for it.
    """
    current = active.get

    @wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        recorder = current()
        if recorder is None or recorder.model is not model:
            return compiled(*args, **kwargs)
        return recorded(recorder, compiled, args, kwargs)

    return call


def _note_call(recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Keep the request's KV cache, and an own loop's prompt, at hand until the request ends."""
    if recorder.own_loop and recorder.first_call is None and not recorder.forward_ends:
        prompt = {name: kwargs[name] for name in _PROMPT if name in kwargs}
        recorder.first_call = (args[:1], prompt)
    for name in CACHE_NAMES:
        cache = kwargs.get(name)
        if cache is not None:
            recorder.cache = cache
            return

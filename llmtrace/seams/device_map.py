"""Models whose layers lie on several devices: accelerate's hooks move the data between them.

``AlignDevicesHook.pre_forward`` runs before each hooked module and sends its inputs to the device
that the module's weights are on.
"""

from __future__ import annotations

from typing import Any

from llmtrace.recording.active import active
from llmtrace.seams.patching import PatchSet


def install(patches: PatchSet) -> None:
    """Wrap the moves; accelerate's hooks have been imported."""
    from accelerate.hooks import AlignDevicesHook

    patches.wrap(AlignDevicesHook, "pre_forward", _pre_forward)


def several_cuda_devices(model: Any) -> tuple[int, ...]:
    """Return the CUDA devices that a model's layers lie on, in their order; none if it is one."""
    places = getattr(model, "hf_device_map", None) or {}
    found = dict.fromkeys(index for index in map(_index, places.values()) if index is not None)
    return tuple(found) if len(found) > 1 else ()


def execution_device(model: Any) -> Any:
    """Return where accelerate runs a model that it has put hooks on, or None.

    The weights of an offloaded model may be anywhere; ``model.device`` says where the first is.
    """
    return getattr(getattr(model, "_hf_hook", None), "execution_device", None)


def _index(place: Any) -> int | None:
    """Return the index of a CUDA device, however it is written; None for another device."""
    if isinstance(place, int):
        return place
    kind, _, index = str(place).partition(":")
    return int(index or 0) if kind == "cuda" else None


def _pre_forward(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    recorder: Any = active.get()
    if not getattr(recorder, "follows_devices", False):
        return wrapped(*args, **kwargs)
    device = _index(instance.execution_device)
    if device is None or device == recorder.place or device not in recorder.timers:
        return wrapped(*args, **kwargs)
    recorder.leaves()
    result = wrapped(*args, **kwargs)
    recorder.comes_to(device)
    return result

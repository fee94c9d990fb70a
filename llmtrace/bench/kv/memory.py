"""Memory after a request: what torch has of the GPU, which tensors and caches are alive."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from llmtrace.bench.kv.steps import Allocator


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory after one completed request, garbage collected."""

    request: int
    allocated: int | None
    """Bytes in tensors on CUDA devices; None: there is none."""
    reserved: int | None
    """Bytes that torch has taken from the driver: they grow without any leak."""
    tensors: int
    """Tensors alive that Python knows."""
    tensor_bytes: int
    """Bytes of the storages under them, each counted once."""
    rss: int
    """Resident memory of the process: no proof, since freed memory need not go back."""
    classes: Mapping[str, int]
    """Instances alive, by class, of caches and of classes made of Python."""

    @property
    def bytes(self) -> int:
        """What the verdict is made of: bytes in tensors."""
        return self.tensor_bytes if self.allocated is None else self.allocated


def allocator() -> Allocator | None:
    """Return what torch's allocator has on all CUDA devices; asks no device."""
    import torch

    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    stats = [torch.cuda.memory_stats(i) for i in range(torch.cuda.device_count())]

    def whole(name: str) -> int:
        return sum(one.get(f"{name}.all.current", 0) for one in stats)

    return Allocator(
        whole("allocated_bytes"), whole("reserved_bytes"), whole("inactive_split_bytes")
    )


def sample(request: int) -> Sample:
    """Collect garbage and return what is alive; takes as long as a look at all objects."""
    gc.collect()
    on_gpu = allocator()
    classes: Counter[str] = Counter()
    storages: dict[int, int] = {}
    tensors = 0
    is_tensor: dict[type, bool] = {}
    for thing in gc.get_objects():
        # Not isinstance: proxies would run code of their own.
        kind = type(thing)
        if kind not in is_tensor:
            is_tensor[kind] = any(c.__module__ == "torch" and c.__name__ == "Tensor"
                                  for c in kind.__mro__)  # fmt: skip
        if is_tensor[kind]:
            tensors += 1
            storages.update(_storage(thing))
        elif kind.__module__ != "builtins":
            classes[f"{kind.__module__}.{kind.__qualname__}"] += 1
    return Sample(
        request=request,
        allocated=on_gpu.allocated if on_gpu else None,
        reserved=on_gpu.reserved if on_gpu else None,
        tensors=tensors,
        tensor_bytes=sum(storages.values()),
        rss=psutil.Process().memory_info().rss,
        classes=dict(classes),
    )


def _storage(tensor: Any) -> Iterator[tuple[int, int]]:
    """Yield address and bytes of a tensor's storage; of one without a storage, nothing."""
    try:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
    except (RuntimeError, NotImplementedError, AttributeError):
        return  # sparse, a compiler's, or made of other tensors, which are counted themselves
    if address:
        yield address, storage.nbytes()

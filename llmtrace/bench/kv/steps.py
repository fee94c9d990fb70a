"""What was seen of a cache after each step of one request."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmtrace.bench.kv.due import Due, due
from llmtrace.bench.kv.geometry import Geometry
from llmtrace.records import RequestRecord
from llmtrace.seams.kv_layers import KvLayer


@dataclass(frozen=True, slots=True)
class Allocator:
    """What torch's allocator has of the CUDA devices of a model, in bytes."""

    allocated: int
    """In tensors."""
    reserved: int
    """Taken from the driver."""
    split: int
    """Free, but in pieces of blocks that are in use: no other program and no larger tensor can
    have it."""

    @property
    def unused(self) -> float:
        """Share of what is reserved that no tensor is in."""
        return 1 - self.allocated / self.reserved if self.reserved else 0.0

    @property
    def fragmentation(self) -> float:
        """Share of what is reserved that lies in split blocks."""
        return self.split / self.reserved if self.reserved else 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """The cache after one step: 0 is the prefill."""

    index: int
    tokens: int
    """That each row has had run so far, counted from the prompt's and the steps."""
    layers: tuple[KvLayer, ...]
    dues: tuple[Due, ...]
    allocator: Allocator | None
    """None: there is no CUDA device."""

    @property
    def size(self) -> int:
        """Bytes of all layers."""
        return sum(layer.size for layer in self.layers)

    @property
    def held(self) -> int:
        """Bytes of the storages under them."""
        return sum(layer.held for layer in self.layers)

    @property
    def due(self) -> int | None:
        """Bytes that all layers are due; None where one of them is not known."""
        sizes = [d.size for d in self.dues]
        known = [size for size in sizes if size is not None]
        return sum(known) if known and len(known) == len(sizes) else None


@dataclass(slots=True)
class Watched:
    """One request, and its cache after each step."""

    needs: Geometry
    prompt_tokens: int
    max_new_tokens: int
    steps: list[Step] = field(default_factory=list)
    kind: str | None = None
    """The cache in the words of ``cache_implementation``."""
    offloaded: bool = False
    looking_s: float = 0.0
    """Host time that looking took, over all steps."""
    record: RequestRecord | None = None

    def seen(self, layers: tuple[KvLayer, ...], allocator: Allocator | None) -> Step:
        """Add what was seen after the next step."""
        index = len(self.steps)
        tokens = self.prompt_tokens + index
        dues = tuple(due(layer, self.needs, tokens) for layer in layers)
        step = Step(index, tokens, self._shared(layers), dues, allocator)
        self.steps.append(step)
        return step

    def _shared(self, layers: tuple[KvLayer, ...]) -> tuple[KvLayer, ...]:
        """Return the last step's views where nothing has changed: fixed sizes never do."""
        last = self.steps[-1].layers if self.steps else ()
        return last if last == layers else layers

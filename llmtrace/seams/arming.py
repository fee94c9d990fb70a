"""Turning the seams on and off, whenever transformers is imported."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping

import wrapt

from llmtrace.guard import guard
from llmtrace.recording.pipeline import Pipeline
from llmtrace.seams import (
    compiled_modules,
    cuda_graphs,
    device_map,
    forward,
    loop,
    pipelines,
    serving,
    streamers,
    tokenizers,
)
from llmtrace.seams.batching import PACKAGE, BatchingSeam
from llmtrace.seams.generate import GenerateSeam
from llmtrace.seams.patching import PatchSet


class Arming:
    """The wrappers of one process: armed, they go in as soon as their module is imported.

    ``others`` are installers of the same kind for modules that are not transformers'.
    """

    def __init__(
        self, pipeline: Pipeline, patches: PatchSet, others: Mapping[str, Callable[[], None]]
    ) -> None:
        self.patches = patches
        self._lock = threading.RLock()
        self._hooked = False
        generate = GenerateSeam(self.patches, pipeline)
        batching = BatchingSeam(self.patches, pipeline)
        telemetry = pipeline.telemetry
        self._installers: dict[str, Callable[[], None]] = {
            "transformers.generation.utils": generate.install,
            "transformers.modeling_utils": lambda: forward.install(self.patches),
            "transformers.generation.stopping_criteria": lambda: loop.install_criteria(
                self.patches
            ),
            "transformers.generation.beam_search": lambda: loop.install_beam_scorers(self.patches),
            "transformers.generation.streamers": lambda: streamers.install(
                self.patches, telemetry.here
            ),
            "transformers.tokenization_utils_base": lambda: tokenizers.install(
                self.patches, telemetry
            ),
            "transformers.pipelines.text_generation": lambda: pipelines.install(
                self.patches, telemetry
            ),
            PACKAGE: batching.install,
            serving.MODULE: lambda: serving.install(self.patches),
            "torch._dynamo.eval_frame": lambda: compiled_modules.install(self.patches),
            "accelerate.hooks": lambda: device_map.install(self.patches),
            "torch.cuda.graphs": lambda: cuda_graphs.install(self.patches),
            **others,
        }

    @property
    def armed(self) -> bool:
        """Whether wrappers are in place, or will be once transformers is imported."""
        return self.patches.enabled

    def arm(self) -> None:
        """Wrap what is imported now, and the rest when it is imported. Idempotent."""
        with self._lock:
            self.patches.enabled = True
            for module in self._installers:
                if module in sys.modules:
                    self._install(module)
                elif not self._hooked:
                    # wrapt keeps a hook for good: it looks whether we are armed when it fires.
                    wrapt.register_post_import_hook(self._imported, module)
            self._hooked = True

    def disarm(self) -> None:
        """Put every attribute back."""
        with self._lock:
            self.patches.restore()

    def _imported(self, module: object) -> None:
        name = getattr(module, "__name__", "")
        with self._lock:
            if self.patches.enabled:
                self._install(name)

    def _install(self, module: str) -> None:
        guard.call(f"wrapping {module}", self._installers[module])

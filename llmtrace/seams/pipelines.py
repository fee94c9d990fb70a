"""``pipeline("text-generation")``: what it does to the answer after ``generate()`` has returned.

Its tokenizing is seen where every tokenizer's is (``llmtrace.seams.tokenizers``).
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import Any

from llmtrace.guard import guard
from llmtrace.recording.active import latest
from llmtrace.recording.pipeline import Telemetry
from llmtrace.seams.patching import PatchSet
from llmtrace.timing.host import now

_made: ContextVar[tuple[Any, list[Any]] | None] = ContextVar("llmtrace_pipeline", default=None)
"""The latest request that a pipeline made here, and the prompts that it carried."""


def install(patches: PatchSet, telemetry: Telemetry) -> None:
    """Watch ``TextGenerationPipeline``; transformers has been imported."""
    from transformers.pipelines.text_generation import TextGenerationPipeline

    def forward(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001 - wrapt's shape
        latest.set(None)
        _made.set(None)
        result = wrapped(*args, **kwargs)
        guard.call("remembering a pipeline's request", _remember, result)
        return result

    def postprocess(
        wrapped: Any,
        instance: Any,  # noqa: ARG001 - wrapt's shape
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if not patches.enabled:
            return wrapped(*args, **kwargs)
        begun, begun_unix = now(), time.time_ns()
        result = wrapped(*args, **kwargs)
        ended_unix = begun_unix + now() - begun
        request = guard.call("finding a pipeline's request", _request_of, args, kwargs)
        guard.call(
            "noting a postprocess call", telemetry.postprocessed, begun_unix, ended_unix, request
        )
        return result

    patches.wrap(TextGenerationPipeline, "_forward", forward)
    patches.wrap(TextGenerationPipeline, "postprocess", postprocess)


def _remember(outputs: Any) -> None:
    request = latest.get()
    if request is not None:
        prompts = outputs["prompt_text"]
        _made.set((request, prompts if isinstance(prompts, list) else [prompts]))


def _request_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the request that made what is processed, if that was in this place."""
    made = _made.get()
    outputs = args[0] if args else kwargs.get("model_outputs")
    if made is None or outputs is None:
        return None
    request, prompts = made
    given = outputs["prompt_text"]
    given = given[0] if isinstance(given, list) and given else given
    return request if any(prompt is given for prompt in prompts) else None

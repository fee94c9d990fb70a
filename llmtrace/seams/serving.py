"""``transformers serve`` (5.5 and later): what its handlers have run by its inference thread.

Each model has one thread that runs what the handlers give it, and the handlers wait on the event
loop. So what is run there is run in the context of the handler that asked for it: the HTTP
request's span is then its parent, and the tokenizer's calls are known to be its own. Earlier
releases start a thread for each request, where the streamer knows where it was built; what runs
by continuous batching is submitted by the handlers themselves.
"""

from __future__ import annotations

import contextvars
from typing import Any

from llmtrace.seams.patching import PatchSet

MODULE = "transformers.cli.serving.utils"


def install(patches: PatchSet) -> None:
    """Wrap the inference thread's two doors; the module has been imported."""
    from transformers.cli.serving import utils

    def carry(wrapped: Any, thread: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
        if not args or not patches.enabled:
            return wrapped(*args, **kwargs)
        return wrapped(contextvars.copy_context().run, *args, **kwargs)

    inference = getattr(utils, "InferenceThread", None)
    if inference is not None:
        patches.wrap(inference, "submit", carry)
        patches.wrap(inference, "async_submit", carry)

"""Running one request while its cache is looked at between its steps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from llmtrace.bench.generation import ask
from llmtrace.bench.kv.geometry import geometry
from llmtrace.bench.kv.memory import allocator
from llmtrace.bench.kv.steps import Step, Watched
from llmtrace.bench.models import Subject
from llmtrace.bench.prompts import Prompt
from llmtrace.bench.settings import Generation
from llmtrace.errors import ConfigError, LlmtraceError
from llmtrace.seams.cache_watch import watching
from llmtrace.seams.kv_cache import cache_kind
from llmtrace.seams.kv_layers import is_offloaded, look


def watch(
    subject: Subject,
    prompt: Prompt,
    plan: Generation,
    *,
    stop_after: int | None = None,
    show: Callable[[Watched, Step], None],
    seed: int = 0,
) -> Watched:
    """Run one request and return what was seen; *show* is called after each step.

    Ctrl-C ends it early and keeps what was seen: the record is missing then.

    Raises:
        LlmtraceError: It failed, or there was no cache to be seen.
    """
    found = Watched(geometry(subject.model), prompt.tokens, plan.max_new_tokens)

    def see(cache: Any) -> None:
        begun = time.perf_counter()
        if cache is None:
            return
        if not found.steps:
            found.kind = cache_kind(cache[0] if isinstance(cache, list) else cache)
            found.offloaded = is_offloaded(cache)
        step = found.seen(_looked_at(cache), allocator())
        found.looking_s += time.perf_counter() - begun
        show(found, step)

    with watching(subject.model, see), interruptible(found):
        found.record = ask(subject, prompt, plan, seed=seed, **ending(prompt, stop_after))
    if not found.steps:
        raise LlmtraceError("no KV cache was seen: does this model use one?")
    return found


@contextlib.contextmanager
def interruptible(found: Watched) -> Iterator[None]:
    """Keep what was seen when Ctrl-C comes, if anything was."""
    try:
        yield
    except KeyboardInterrupt:
        if not found.steps:
            raise


def _looked_at(cache: Any) -> Any:
    try:
        return look(cache)
    except TypeError as error:
        raise ConfigError(f"bench kv is for decoders alone: this is {error}") from None


def ending(prompt: Prompt, stop_after: int | None) -> dict[str, Any]:
    """Return the argument of ``generate()`` that ends it after so many tokens, as an answer would.

    The length is known on the host: nothing is waited for.
    """
    if stop_after is None:
        return {}
    from transformers.generation.stopping_criteria import MaxLengthCriteria, StoppingCriteriaList

    class AnswerEnds(MaxLengthCriteria):  # type: ignore[misc]
        """Of a class of its own: generate() refuses a second one of those that it makes."""

    return {"stopping_criteria": StoppingCriteriaList([AnswerEnds(prompt.tokens + stop_after)])}

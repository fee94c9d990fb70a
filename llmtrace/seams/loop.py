"""The generation loop: stopping criteria and, for some models, logits processors; on entry.

Both lists belong to the library, are built fresh inside ``generate()`` in every release, run
outside every compiled region and are never kept on the model.
"""

from __future__ import annotations

from typing import Any

from llmtrace.recording.active import active
from llmtrace.seams.patching import PatchSet


def install_processors(patches: PatchSet) -> None:
    """Wrap ``LogitsProcessorList.__call__``: the step's forward has been enqueued.

    Done when a model is met whose calls are not seen; the others need not pay for it each step.
    """
    from transformers.generation.logits_process import LogitsProcessorList

    patches.wrap(LogitsProcessorList, "__call__", _processors)


def install_criteria(patches: PatchSet) -> None:
    """Wrap ``StoppingCriteriaList.__call__``: the step's token has been selected."""
    from transformers.generation.stopping_criteria import StoppingCriteriaList

    patches.wrap(StoppingCriteriaList, "__call__", _criteria)


def install_beam_scorers(patches: PatchSet) -> None:
    """Wrap the beam scorers' ``finalize`` (before 5.0): the search is over.

    When every beam is done the loops of 4.38 to 4.49 end without asking the stopping criteria.
    """
    from transformers.generation import beam_search

    for name in ("BeamSearchScorer", "ConstrainedBeamSearchScorer"):
        patches.wrap(getattr(beam_search, name), "finalize", _finalized)


def _finalized(
    wrapped: Any,
    instance: Any,  # noqa: ARG001 - wrapt's shape
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    recorder = active.get()
    if recorder is not None:
        recorder.token()
    return wrapped(*args, **kwargs)


def _processors(
    wrapped: Any,
    instance: Any,  # noqa: ARG001 - wrapt's shape
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    recorder = active.get()
    if recorder is not None and not recorder.sees_forwards:
        recorder.forward_seen()
    return wrapped(*args, **kwargs)


def _criteria(
    wrapped: Any,
    instance: Any,  # noqa: ARG001 - wrapt's shape
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    recorder = active.get()
    # An own loop may ask criteria and mark its tokens too: the criteria would mark them twice.
    if recorder is None or recorder.own_loop:
        return wrapped(*args, **kwargs)
    recorder.ids = ids = args[0] if args else kwargs.get("input_ids")
    # Before the criteria run: on a device their kernels come after the token.
    recorder.token()
    result = wrapped(*args, **kwargs)
    if recorder.verdicts is not None and len(recorder.verdicts) < recorder.limit:
        recorder.verdicts.append(result)
    if recorder.lengths is not None and ids is not None:
        recorder.length(ids.shape[1] + recorder.shift)
    return result

"""A request as it is submitted: what ``add_request`` was given, and where."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from llmtrace import names
from llmtrace.recording.batch import Batch
from llmtrace.recording.batched_request import BatchedRequest, start_batched
from llmtrace.recording.block import block_attributes, block_start
from llmtrace.recording.pipeline import Pipeline
from llmtrace.recording.request import RequestInfo
from llmtrace.recording.stream import StreamTimes
from llmtrace.seams.batch_state import States, stop_ids
from llmtrace.seams.generation_config import parameters_of
from llmtrace.seams.model_facts import model_facts
from llmtrace.seams.tokenizers import take_tokenization
from llmtrace.timing.host import WallAnchor


@dataclass(slots=True)
class Submission:
    """One ``add_request`` call under way."""

    manager: Any
    at: WallAnchor
    key: str | None = None
    """The request's id, once it is a request."""

    def start(
        self, pipeline: Pipeline, batch: Batch, states: States, state: Any
    ) -> BatchedRequest | None:
        """Return the request that *state* is of, or None where it must not be traced."""
        info = self._info(pipeline, batch, states, state)
        # Only a request that is to be split needs its context again.
        context = pipeline.telemetry.here() if getattr(state, "num_children", 0) else None
        return start_batched(pipeline, info, self.at, context, states)

    def _info(self, pipeline: Pipeline, batch: Batch, states: States, state: Any) -> RequestInfo:
        model = self.manager.model
        prompt = states.prompt(state)
        length = len(prompt)
        streaming = bool(getattr(state, "streaming", getattr(self.manager, "streaming", False)))
        asked = parameters_of(self.manager.generation_config, length, stream=streaming)
        info = RequestInfo(
            model=model_facts(model),
            device=str(getattr(model, "device", "cpu")),
            strategy="continuous",
            parameters=replace(asked, max_tokens=state.max_new_tokens, choice_count=None),
            batch_size=1,
            input_length=length,
            prompt_length=length,
            eos_token_ids=stop_ids(state),
            input_tokens_per_row=(length,),
            cache_implementation="paged",
            cold_reasons=batch.cold,
            queued_since_ns=block_start(),
            attributes={**block_attributes(), names.BATCH_REQUEST_ID: str(state.request_id)},
            stream=StreamTimes(pull=True) if streaming else None,
        )
        before = take_tokenization(pipeline.telemetry.key(None), [prompt])
        if before is not None:
            info.tokenize_ns = before.duration_ns
            info.tokenize_begun_ns = before.begun_ns
            info.operation = "chat" if before.chat else "text_completion"
        return info

"""A request as it is submitted: what ``add_request`` was given, and where."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from llmtrace import names
from llmtrace.guard import guard
from llmtrace.recording.batch import Batch
from llmtrace.recording.batched_request import BatchedRequest, start_batched
from llmtrace.recording.block import block_attributes, block_start
from llmtrace.recording.pipeline import Pipeline
from llmtrace.recording.request import RequestInfo
from llmtrace.recording.stream import StreamTimes
from llmtrace.seams.accelerator import memory_held
from llmtrace.seams.batch_state import States, stop_ids
from llmtrace.seams.device_map import several_cuda_devices
from llmtrace.seams.generation_config import parameters_of
from llmtrace.seams.model_facts import model_facts
from llmtrace.seams.tokenizers import take_tokenization, texts_of
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
        info = self._info(batch, states, state)
        tokenizer = self._adopt_tokenization(pipeline, info, prompt := states.prompt(state))
        content = pipeline.config.content in {"span_only", "span_and_event"}
        decode = partial(texts_of, tokenizer) if content and tokenizer is not None else None
        if decode is not None:
            info.input_text = guard.call("decoding", decode, [prompt])
        # Only a request that is to be split needs its context again.
        context = pipeline.telemetry.here() if getattr(state, "num_children", 0) else None
        # Last, as what it starts must be ended: nothing after it may fail.
        request = start_batched(pipeline, info, self.at, context, states)
        if request is not None:
            request.decode = decode
            model = self.manager.model
            devices = several_cuda_devices(model)
            request.note_memory = partial(memory_held, getattr(model, "device", None), devices)
        return request

    def _info(self, batch: Batch, states: States, state: Any) -> RequestInfo:
        model = self.manager.model
        prompt = states.prompt(state)
        length = len(prompt)
        streaming = bool(getattr(state, "streaming", getattr(self.manager, "streaming", False)))
        asked = parameters_of(self.manager.generation_config, length, stream=streaming)
        return RequestInfo(
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

    def _adopt_tokenization(self, pipeline: Pipeline, info: RequestInfo, prompt: list[int]) -> Any:
        """Note the tokenizer calls that made *prompt*; returns the tokenizer, if it is known."""
        before = take_tokenization(pipeline.telemetry.key(None), [prompt])
        if before is None:
            return None
        info.tokenize_ns = before.duration_ns
        info.tokenize_begun_ns = before.begun_ns
        info.operation = "chat" if before.chat else "text_completion"
        return before.tokenizer() if before.tokenizer is not None else None

"""The decoding loops of one request: mostly one, several where a model's ``generate()`` runs them.

Whisper decodes its audio window by window, Bark one model after the other: one request, whose
tokens are those of all its loops.
"""

from __future__ import annotations

from typing import Any

from llmtrace.known_findings import ROWS_NOT_TOLD_APART, TOKENS_FROM_STEPS
from llmtrace.recording.recorder import Recorder
from llmtrace.recording.request import RequestInfo
from llmtrace.seams.generation_config import max_length, pad_id, stop_ids
from llmtrace.seams.inputs import begins_with, read_output


class Loops:
    """What the loops of one request have left so far."""

    def __init__(self) -> None:
        self.depth = 0
        """Calls of ``generate()`` inside the outermost that are open."""
        self._loop_depth = 0
        self._parts: list[tuple[tuple[int, ...], tuple[str, ...]]] = []
        """Each finished loop's tokens and finish reasons, row by row."""
        self._rows: list[list[int]] = []
        self._unread = 0
        """Loops whose ids were not to be had."""

    def at_depth(self) -> bool:
        """Whether the innermost open call is the one whose loop is running."""
        return self.depth == self._loop_depth

    def begun(
        self, info: RequestInfo, recorder: Recorder, config: Any, prompt_length: int | None
    ) -> None:
        """A loop is about to run."""
        self._loop_depth = self.depth
        info.loops += 1
        info.prompt_length = prompt_length
        info.eos_token_ids = stop_ids(config)
        info.pad_token_id = pad_id(config)
        info.max_length = max_length(config)
        recorder.cache = recorder.ids = None

    def count_lengths(self, recorder: Recorder, prompt_length: int) -> None:
        """Have the recorder count each step's tokens by the sequence's length."""
        if recorder.lengths is None:
            recorder.lengths = [(0, prompt_length)]
        else:  # as if this loop went on where the one before ended
            recorder.shift = recorder.lengths[-1][1] - prompt_length

    def ended(self, info: RequestInfo, recorder: Recorder, result: Any) -> None:
        """A loop has returned *result*."""
        info.output_tokens_per_row = None
        rows = read_output(info, result, recorder.verdicts)
        recorder.verdicts = None
        counts = info.output_tokens_per_row
        if counts is None:
            self._unread += 1
            return
        self._parts.append((counts, info.finish_reasons))
        if len(self._rows) == len(rows):
            self._rows = [before + row for before, row in zip(self._rows, rows, strict=True)]
        else:
            self._rows = rows

    def interrupted(self, info: RequestInfo, recorder: Recorder) -> None:
        """An error ended the request.

        Of several rows the ids so far tell which had ended; of a single one the marks are nearer
        to the truth, as a streamer may have failed on a token just chosen. Of beams the ids are
        those of candidates: which rows would have come of them is not known.
        """
        rows = (info.batch_size or 0) * (info.parameters.choice_count or 1)
        ids = recorder.ids
        told = rows > 1 and not info.parameters.num_beams and info.loops == 1
        if told and ids is not None and len(ids) == rows:
            self.ended(info, recorder, ids)

    def never_seen(self, info: RequestInfo, config: Any, prompt: Any, result: Any) -> None:
        """The request has returned *result*, and no loop of transformers' was in it."""
        info.own_loop = True
        info.strategy = "custom"
        info.eos_token_ids = stop_ids(config)
        info.pad_token_id = pad_id(config)
        if begins_with(result, prompt):
            info.prompt_length = int(prompt.shape[1])
            info.output_tokens_per_row = None
            self._rows = read_output(info, result, None)
            self._parts.append((info.output_tokens_per_row or (), ()))

    def sum_up(self, info: RequestInfo, *, failed: bool) -> list[list[int]]:
        """Put the loops' counts together, and return the tokens."""
        counts = [part for part, _ in self._parts]
        info.output_tokens_per_row, info.finish_reasons = None, ()
        if failed and info.loops > 1:
            return []
        if self._unread and not failed:
            info.findings.append(TOKENS_FROM_STEPS)
        elif len({len(part) for part in counts}) == 1:
            info.output_tokens_per_row = tuple(map(sum, zip(*counts, strict=True)))
            info.finish_reasons = self._parts[-1][1]
        elif counts:
            info.output_tokens = sum(map(sum, counts))
            info.findings.append(ROWS_NOT_TOLD_APART)
        return self._rows

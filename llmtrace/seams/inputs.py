"""What went into ``generate()`` and what came out, read after the loop is over."""

from __future__ import annotations

from typing import Any, NamedTuple

from llmtrace.recording.request import RequestInfo
from llmtrace.recording.tokens import (
    finish_reason,
    output_tokens,
    unpadded,
    without_left_padding,
)
from llmtrace.seams.device_map import execution_device

INPUT_NAMES = ("input_ids", "inputs_embeds", "input_features", "input_values", "pixel_values")


class Prompt(NamedTuple):
    """What a model is given to go on from."""

    tensor: Any = None
    mask: Any = None
    counts_tokens: bool = False
    """Whether there is one place per token: ids or embeddings, no pictures and no sound."""


def read_prompt(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Prompt:
    """Return the prompt among the arguments of a ``generate()``; token ids before any other."""
    own_name = getattr(model, "main_input_name", None)
    unnamed = (args[0] if args else None, kwargs.get("inputs"))
    given = [("input_ids", kwargs.get("input_ids")), *((own_name, value) for value in unnamed)]
    given += [(n, kwargs.get(n)) for n in ("inputs_embeds", own_name, *INPUT_NAMES) if n]
    name, tensor = next(((n, v) for n, v in given if v is not None), (None, None))
    tokens = _ids(tensor) or (name == "inputs_embeds" and hasattr(tensor, "shape"))
    return Prompt(tensor, kwargs.get("attention_mask"), tokens)


def device_of(model: Any, tensor: Any) -> Any:
    """Return the device whose clock times the request: the one where the logits come back."""
    device = getattr(tensor, "device", None)
    if device is not None and device.type != "cpu":
        return device
    placed = execution_device(model)
    if placed is not None:
        import torch

        return torch.device(placed)
    return getattr(model, "device", device)


def read_input(info: RequestInfo, prompt: Prompt, cached: int = 0) -> None:
    """Count the prompt's tokens without padding.

    Args:
        info: Receives the counts.
        prompt: What went in.
        cached: Places of each row that a cache handed in holds already.
    """
    tensor, mask = prompt.tensor, prompt.mask
    if not hasattr(tensor, "shape") or not len(tensor.shape):
        return
    info.batch_size = int(tensor.shape[0])
    if not prompt.counts_tokens:
        return
    length = info.input_length = int(tensor.shape[1])
    held = min(cached, length)
    if _fits(mask, tensor):
        rows = mask.cpu().tolist()
        info.input_tokens_per_row = unpadded(rows)
        info.input_tokens_cached = sum(unpadded(row[:held] for row in rows)) or None
        return
    if info.batch_size > 1 and _ids(tensor) and _padded(info):
        info.input_tokens_per_row = without_left_padding(
            tensor.cpu().tolist(), info.pad_token_id or 0
        )
    else:
        info.input_tokens_per_row = (length,) * info.batch_size
    padding = (length - tokens for tokens in info.input_tokens_per_row)
    info.input_tokens_cached = sum(max(held - before, 0) for before in padding) or None


def begins_with(result: Any, prompt: Any) -> bool:
    """Whether *result* holds ids that begin with *prompt*."""
    ids = getattr(result, "sequences", result)
    if not _ids(ids) or not _ids(prompt) or len(ids) != len(prompt):
        return False
    length = prompt.shape[1]
    return bool((ids[:, :length].cpu() == prompt.cpu()).all()) if ids.shape[1] >= length else False


def read_output(info: RequestInfo, result: Any, verdicts: list[Any] | None) -> list[list[int]]:
    """Count each returned row's tokens, say why it ended, and return the tokens.

    Args:
        info: Receives the counts.
        result: What ``generate()`` returned: ids ``[rows, prompt + output]``, or an output with
            ``sequences``.
        verdicts: What the stopping criteria said after each step, where ids alone do not tell.
    """
    ids = getattr(result, "sequences", result)
    if not _ids(ids) or info.prompt_length is None:
        return []
    rows = [row[info.prompt_length :] for row in ids.cpu().tolist()]
    counts = [output_tokens(row, info.eos_token_ids) for row in rows]
    ends = _ends(verdicts)
    if len(ends) == len(counts):
        counts = [min(count, end or count) for count, end in zip(counts, ends, strict=True)]
    limit = None if info.max_length is None else info.max_length - info.prompt_length
    stops = bool(info.parameters.stop_sequences)
    info.output_tokens_per_row = tuple(counts)
    info.finish_reasons = tuple(
        finish_reason(row[:count], info.eos_token_ids, limit, stops=stops)
        for row, count in zip(rows, counts, strict=True)
    )
    return [row[:count] for row, count in zip(rows, counts, strict=True)]


def _ends(verdicts: list[Any] | None) -> list[int | None]:
    """Return the step at which each row was first told to stop."""
    if not verdicts or not all(hasattr(v, "shape") and len(v.shape) == 1 for v in verdicts):
        return []
    import torch

    rows = torch.stack(verdicts, dim=1).cpu().tolist()
    return [row.index(True) + 1 if True in row else None for row in rows]


def _fits(mask: Any, tensor: Any) -> bool:
    return hasattr(mask, "tolist") and tuple(mask.shape) == tuple(tensor.shape[:2])


def _ids(tensor: Any) -> bool:
    """Whether *tensor* holds token ids ``[rows, length]``."""
    return (
        hasattr(tensor, "tolist")
        and len(tensor.shape) == 2  # noqa: PLR2004
        and not tensor.is_floating_point()
    )


def _padded(info: RequestInfo) -> bool:
    return info.pad_token_id is not None and info.pad_token_id not in info.eos_token_ids

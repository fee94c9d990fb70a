"""What went into ``generate()`` and what came out, read after the loop is over."""

from __future__ import annotations

from typing import Any

from llmtrace.recording.request import RequestInfo
from llmtrace.recording.tokens import (
    finish_reason,
    output_tokens,
    unpadded,
    without_left_padding,
)

INPUT_NAMES = ("input_ids", "inputs_embeds", "input_features", "input_values", "pixel_values")


def main_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the tensor that carries the prompt, or None."""
    if args and args[0] is not None:
        return args[0]
    for name in ("inputs", *INPUT_NAMES):
        value = kwargs.get(name)
        if value is not None:
            return value
    return None


def device_of(model: Any, tensor: Any) -> Any:
    """Return the device whose clock times the request: the one where the logits come back."""
    device = getattr(tensor, "device", None)
    if device is not None and device.type != "cpu":
        return device
    return getattr(model, "device", device)


def read_input(info: RequestInfo, tensor: Any, mask: Any) -> None:
    """Count the prompt's tokens without padding."""
    if tensor is None or not hasattr(tensor, "shape") or len(tensor.shape) < 2:  # noqa: PLR2004
        return
    info.batch_size = int(tensor.shape[0])
    length = info.input_length = int(tensor.shape[1])
    if _fits(mask, tensor):
        info.input_tokens_per_row = unpadded(mask.cpu().tolist())
    elif info.batch_size > 1 and _ids(tensor) and _padded(info):
        info.input_tokens_per_row = without_left_padding(
            tensor.cpu().tolist(), info.pad_token_id or 0
        )
    else:
        info.input_tokens_per_row = (length,) * info.batch_size


def read_output(info: RequestInfo, result: Any) -> list[list[int]]:
    """Count each returned row's tokens, say why it ended, and return the tokens.

    Args:
        info: Receives the counts.
        result: What ``generate()`` returned: ids ``[rows, prompt + output]``, or an output with
            ``sequences``.
    """
    ids = getattr(result, "sequences", result)
    if not _ids(ids) or info.prompt_length is None:
        return []
    rows = [row[info.prompt_length :] for row in ids.cpu().tolist()]
    counts = [output_tokens(row, info.eos_token_ids) for row in rows]
    limit = None if info.max_length is None else info.max_length - info.prompt_length
    stops = bool(info.parameters.stop_sequences)
    info.output_tokens_per_row = tuple(counts)
    info.finish_reasons = tuple(
        finish_reason(row[:count], info.eos_token_ids, limit, stops=stops)
        for row, count in zip(rows, counts, strict=True)
    )
    return [row[:count] for row, count in zip(rows, counts, strict=True)]


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

"""Reading transformers' ``GenerationConfig``; never writing to it."""

from __future__ import annotations

from typing import Any

from llmtrace.records import GenerationParameters


def strategy_of(config: Any, kwargs: dict[str, Any]) -> str:
    """Return the decoding strategy.

    Args:
        config: The generation config in force.
        kwargs: The arguments of ``generate()``.
    """
    if kwargs.get("custom_generate") is not None:
        return "custom"
    if kwargs.get("cache_implementation") == "paged":
        return "continuous"
    if kwargs.get("assistant_model") is not None or _get(config, "assistant_early_exit"):
        return "assisted"
    if _get(config, "prompt_lookup_num_tokens"):
        return "prompt_lookup"
    sampling = bool(_get(config, "do_sample"))
    if (_get(config, "num_beams") or 1) > 1:
        return _beam_strategy(config, sampling=sampling)
    if (
        not sampling
        and (_get(config, "penalty_alpha") or 0) > 0
        and (_get(config, "top_k") or 0) > 1
    ):
        return "contrastive"
    if _get(config, "dola_layers") is not None:
        return "dola"
    return "sample" if sampling else "greedy"


def _beam_strategy(config: Any, *, sampling: bool) -> str:
    if _get(config, "constraints") is not None or _get(config, "force_words_ids") is not None:
        return "constrained_beam"
    if (_get(config, "num_beam_groups") or 1) > 1:
        return "group_beam"
    return "beam_sample" if sampling else "beam"


def parameters_of(config: Any, prompt_length: int | None, *, stream: bool) -> GenerationParameters:
    """Return what was asked for; temperature and its kind only where they are applied."""
    sampling = bool(_get(config, "do_sample"))
    choices = _get(config, "num_return_sequences")
    beams = _get(config, "num_beams")
    strings = _get(config, "stop_strings") or ()
    return GenerationParameters(
        max_tokens=_max_tokens(config, prompt_length),
        temperature=_number(_get(config, "temperature")) if sampling else None,
        top_p=_number(_get(config, "top_p")) if sampling else None,
        top_k=_whole(_get(config, "top_k")) if sampling else None,
        do_sample=sampling,
        choice_count=choices if choices and choices > 1 else None,
        num_beams=beams if beams and beams > 1 else None,
        stop_sequences=(strings,) if isinstance(strings, str) else tuple(map(str, strings)),
        stream=stream,
    )


def stop_ids(config: Any) -> frozenset[int]:
    """Return the ids that end a row, of the config in force for this call."""
    eos = _get(config, "eos_token_id")
    if eos is None:
        return frozenset()
    if hasattr(eos, "tolist"):  # a user may pass a tensor; it is on the host
        eos = eos.tolist()
    return frozenset(eos) if isinstance(eos, (list, tuple)) else frozenset({int(eos)})


def pad_id(config: Any) -> int | None:
    """Return the padding id, if it is a plain number."""
    return _whole(_get(config, "pad_token_id"))


def max_length(config: Any) -> int | None:
    """Return the longest sequence allowed, prompt included."""
    return _whole(_get(config, "max_length"))


def _max_tokens(config: Any, prompt_length: int | None) -> int | None:
    new_tokens = _whole(_get(config, "max_new_tokens"))
    if new_tokens is not None:
        return new_tokens
    longest = max_length(config)
    if longest is None or prompt_length is None or longest <= prompt_length:
        return None
    return longest - prompt_length


def _get(config: Any, name: str) -> Any:
    return getattr(config, name, None)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None

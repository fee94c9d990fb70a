"""One request of a measuring tool: the arguments of ``generate()``, and its record."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from llmtrace import api
from llmtrace.bench.models import Subject, transformers_release
from llmtrace.bench.prompts import Prompt
from llmtrace.bench.settings import Generation
from llmtrace.errors import ConfigError, LlmtraceError, MissingExtraError
from llmtrace.records import RequestRecord

_BITSANDBYTES = frozenset({"8bit", "4bit", "nf4", "nf4-double"})


class RequestFailedError(LlmtraceError):
    """A request failed, as one of an application would have."""


def check(subject: Subject, plan: Generation, longest_prompt: int, *, force: bool = False) -> None:
    """Look for what cannot work, or is known to be a loss, before anything is measured.

    Raises:
        ConfigError: It does; the message says what to change.
    """
    if plan.compile and plan.cache != "static":
        raise ConfigError("--compile needs --cache static: a growing cache is compiled anew")
    if plan.compile and subject.choice.quantization in _BITSANDBYTES and not force:
        raise ConfigError(
            "--compile with bitsandbytes: its layers break the graph or are not compiled at all, "
            "and TTFT has been seen to get worse; --force measures it all the same"
        )
    if plan.cache == "quantized" and not (find_spec("optimum") or find_spec("hqq")):
        raise MissingExtraError("--cache quantized needs optimum-quanto or hqq: pip install one")
    if plan.cache == "offloaded" and subject.device.type == "cpu":
        raise ConfigError("--cache offloaded needs a GPU: on a CPU there is nowhere to go")
    limit = subject.longest
    if limit is not None and longest_prompt + plan.max_new_tokens > limit:
        raise ConfigError(
            f"{longest_prompt} prompt tokens and {plan.max_new_tokens} new ones are more than "
            f"the {limit} positions of this model"
        )
    if not plan.do_sample and {plan.temperature, plan.top_p, plan.top_k} != {None}:
        raise ConfigError("--temperature, --top-p and --top-k need --sample")


def prepare(subject: Subject, plan: Generation) -> None:
    """Set what holds for every request of a run."""
    if not plan.stop_at_eos:
        subject.model.generation_config.eos_token_id = None


def arguments(subject: Subject, plan: Generation) -> dict[str, Any]:
    """Return the arguments of ``generate()`` beside the prompt's."""
    given: dict[str, Any] = {
        "max_new_tokens": plan.max_new_tokens,
        "do_sample": plan.do_sample,
        "use_cache": plan.use_cache,
    }
    if plan.do_sample:
        named = {"temperature": plan.temperature, "top_p": plan.top_p, "top_k": plan.top_k}
        given |= {name: value for name, value in named.items() if value is not None}
    if plan.cache != "dynamic":
        given["cache_implementation"] = plan.cache
    if plan.cache == "quantized":
        # 4.56 changed the name.
        hqq = "hqq" if transformers_release() >= (4, 56) else "HQQ"
        backend = "quanto" if find_spec("optimum") else hqq
        given["cache_config"] = {"backend": backend, "nbits": 4}
    if plan.cache == "static":
        given |= _compiling(subject, plan)
    return given


def _compiling(subject: Subject, plan: Generation) -> dict[str, Any]:
    """Return what turns compilation on or off, which a static cache alone does on a GPU."""
    from transformers import GenerationConfig

    if not hasattr(GenerationConfig(), "disable_compile"):
        if plan.compile:
            raise ConfigError("--compile needs transformers 4.51 or newer")
        return {}
    if not plan.compile:
        return {"disable_compile": True}
    if subject.device.type == "cpu":
        from transformers import CompileConfig

        config = CompileConfig()
        config._compile_all_devices = True  # noqa: SLF001 - the only way on a CPU
        return {"compile_config": config}
    return {}


def ask(
    subject: Subject, prompt: Prompt, plan: Generation, *, seed: int = 0, **beside: Any
) -> RequestRecord:
    """Run one request and return its record, device times included.

    A text is tokenized inside of the request's block, so that it is part of
    ``ttft_from_request_s``. *beside* are more arguments of ``generate()``.

    Raises:
        RequestFailedError: ``generate()`` did, with what the message says.
        LlmtraceError: The request was not recorded.
    """
    import torch

    if plan.do_sample:
        torch.manual_seed(plan.seed + seed)
    given = arguments(subject, plan) | _ending(prompt, plan) | beside
    try:
        with api.capture() as records, api.request():
            subject.model.generate(**inputs(subject, prompt), **given)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise RequestFailedError(f"generate(): {type(error).__name__}: {reason}") from error
    if not records:
        raise LlmtraceError("a request was not recorded: is LLMTRACE_DISABLED set?")
    return records[0]


def _ending(prompt: Prompt, plan: Generation) -> dict[str, Any]:
    """Return what ends a request before ``max_new_tokens``, as an end-of-text token would."""
    if plan.generated is None:
        return {}
    import torch
    from transformers import StoppingCriteriaList

    length = prompt.tokens + plan.generated

    def reached(ids: Any, scores: Any, **_: Any) -> Any:  # noqa: ARG001 - the library's shape
        return torch.full((), ids.shape[1] >= length, device=ids.device)

    return {"stopping_criteria": StoppingCriteriaList([reached])}


def inputs(subject: Subject, prompt: Prompt) -> dict[str, Any]:
    """Return the prompt's arguments of ``generate()``, on the model's device."""
    import torch

    if prompt.text is not None:
        made = subject.tokenizer(prompt.text, return_tensors="pt")  # type: ignore[misc]
        return {name: made[name].to(subject.device) for name in ("input_ids", "attention_mask")}
    return {"input_ids": prompt.ids, "attention_mask": torch.ones_like(prompt.ids)}

"""The settings that are said to make a difference, each as a before and an after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec

from llmtrace.bench.models import DEMO, Subject
from llmtrace.bench.prompts import Prompts
from llmtrace.bench.settings import ATTENTIONS, Generation, ModelChoice, PromptChoice
from llmtrace.errors import ConfigError

ROOM = 1024
"""``max_new_tokens`` of those who do not know how long an answer will be."""
SHORT_PROMPT = 2
QUANTIZATIONS = ("8bit", "nf4")
WIDE, NARROW = (0.95, 0.95), (0.8, 0.9)
"""Temperature and ``top_p``."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of asking: which model, how, with which prompts."""

    choice: ModelChoice
    plan: Generation
    prompts: PromptChoice
    said: str = "as given"
    """What is special about it."""


@dataclass(frozen=True, slots=True)
class Lever:
    """A setting before and after a measure is taken."""

    name: str
    measure: str
    """What is done."""
    before: Variant
    after: Variant


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A lever that cannot be tried here, or that changes nothing."""

    name: str
    reason: str


Found = Iterator[Lever | Unavailable]


def levers(names: tuple[str, ...], subject: Subject, base: Variant) -> list[Lever | Unavailable]:
    """Return the levers called *names*; one that has several ways gives as many.

    Args:
        names: Of :data:`LEVERS`.
        subject: The model of *base*, loaded.
        base: What the user has now.

    Raises:
        ConfigError: There is no lever of a name.
    """
    unknown = [name for name in names if name not in LEVERS]
    if unknown:
        raise ConfigError(f"--levers {unknown[0]}: is none of all, {', '.join(LEVERS)}")
    return [found for name in names for found in LEVERS[name](subject, base)]


def _max_new_tokens(subject: Subject, base: Variant) -> Found:
    name = "max-new-tokens"
    if base.plan.cache == "static":
        yield Unavailable(name, "the cache is static already: see static-cache-size")
    else:
        yield _roomy(name, subject, base, "")


def _static_cache_size(subject: Subject, base: Variant) -> Found:
    static = replace(base, plan=replace(base.plan, cache="static"))
    yield _roomy("static-cache-size", subject, static, "static cache, ")


def _roomy(name: str, subject: Subject, base: Variant, said: str) -> Lever | Unavailable:
    """Return what it is to leave room only for what is generated."""
    wanted = base.plan.max_new_tokens
    longest = max(Prompts(subject, base.prompts, base.plan.seed).lengths)
    most = ROOM if subject.longest is None else min(ROOM, subject.longest - longest)
    if most < 2 * wanted:
        return Unavailable(name, f"there is no room for much more than {wanted} new tokens")
    much = replace(base.plan, max_new_tokens=most, generated=wanted)
    fit = replace(base.plan, generated=wanted)
    return Lever(
        name,
        f"{said}max_new_tokens no more than is generated",
        replace(base, plan=much, said=f"{said}max_new_tokens {most}, {wanted} generated"),
        replace(base, plan=fit, said=f"{said}max_new_tokens {wanted}"),
    )


def _use_cache(_: Subject, base: Variant) -> Found:
    short = PromptChoice(lengths=(SHORT_PROMPT,))
    plan = replace(base.plan, cache="dynamic", compile=False)
    tokens = f"{SHORT_PROMPT} prompt tokens"
    yield Lever(
        "use-cache",
        f"use_cache=False, prompts of {SHORT_PROMPT} tokens",
        replace(base, plan=replace(plan, use_cache=True), prompts=short, said=tokens),
        replace(
            base,
            plan=replace(plan, use_cache=False),
            prompts=short,
            said=f"{tokens}, use_cache=False",
        ),
    )


def _attention(subject: Subject, base: Variant) -> Found:
    has = getattr(subject.model.config, "_attn_implementation", None)
    for attn in ATTENTIONS:
        name = f"attention-{attn}"
        if attn == has:
            yield Unavailable(name, "it is what the model has before")
        elif attn == "flash_attention_2" and (reason := _no_flash(subject)):
            yield Unavailable(name, reason)
        else:
            after = replace(base, choice=replace(base.choice, attn=attn), said=f"attention {attn}")
            before = replace(base, said=f"attention {has or 'unknown'}")
            yield Lever(name, f'attn_implementation="{attn}"', before, after)


def _no_flash(subject: Subject) -> str | None:
    if subject.device.type != "cuda":
        return "it needs a CUDA device"
    if find_spec("flash_attn") is None:
        return "flash-attn is not installed"
    if subject.model.dtype.itemsize > 2:  # noqa: PLR2004 - bytes of float16 and bfloat16
        return f"it does not compute in {str(subject.model.dtype).removeprefix('torch.')}"
    return None


def _static_cache(_: Subject, base: Variant) -> Found:
    name = "static-cache"
    if base.plan.cache == "static":
        yield Unavailable(name, "it is what there is before")
        return
    after = replace(base.plan, cache="static")
    yield Lever(name, "static cache", base, replace(base, plan=after, said="static cache"))


def _compile(_: Subject, base: Variant) -> Found:
    name = "compile"
    if base.plan.compile:
        yield Unavailable(name, "it is what there is before")
        return
    said = "static cache, compiled"
    after = replace(base.plan, cache="static", compile=True)
    yield Lever(name, said, base, replace(base, plan=after, said=said))


def _quantization(_: Subject, base: Variant) -> Found:
    for kind in QUANTIZATIONS:
        name = f"quantization-{kind}"
        if base.choice.quantization == kind:
            yield Unavailable(name, "it is what the model has before")
        elif _is_gguf(base.choice):
            yield Unavailable(name, "transformers does not quantize what comes from a GGUF file")
        elif find_spec("bitsandbytes") is None:
            yield Unavailable(name, "bitsandbytes is not installed")
        else:
            choice = replace(base.choice, quantization=kind)
            yield Lever(name, f"{kind} weights", base, replace(base, choice=choice, said=kind))


def _is_gguf(choice: ModelChoice) -> bool:
    named = choice.model or ""
    return bool(choice.gguf_file) or named == DEMO or named.endswith(".gguf")


def _sampling(_: Subject, base: Variant) -> Found:
    before, after = (
        replace(
            base,
            plan=replace(base.plan, do_sample=True, temperature=t, top_p=p),
            said=f"temperature {t:g}, top_p {p:g}",
        )
        for t, p in (WIDE, NARROW)
    )
    yield Lever("sampling", after.said, before, after)


LEVERS: dict[str, Callable[[Subject, Variant], Found]] = {
    "max-new-tokens": _max_new_tokens,
    "static-cache-size": _static_cache_size,
    "use-cache": _use_cache,
    "sampling": _sampling,
    "static-cache": _static_cache,
    "attention": _attention,
    "quantization": _quantization,
    "compile": _compile,
}
"""In the order in which they are tried: what leaves most behind in the process comes last."""

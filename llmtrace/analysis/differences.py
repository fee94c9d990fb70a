"""What else changed between two recordings, as far as they say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from llmtrace.analysis.report import Report
from llmtrace.analysis.summary import Summary
from llmtrace.analysis.throughput import Conditions, Sampling

OF_THE_PROCESS = ("process.pid", "process.parent_pid", "service.instance.id", "host.id")
"""Resource attributes that differ from run to run."""

_SETTINGS = {
    "model": "models",
    "device": "devices",
    "dtype": "dtypes",
    "quantization": "quantizations",
    "attention": "attn_implementations",
    "cache": "cache_implementations",
    "batch size": "batch_sizes",
    "clock": "clocks",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not the same on both sides."""

    name: str
    before: str
    after: str


CAVEATS = {
    "model": "The models differ: nothing here is like with like but by intent.",
    "prompt tokens": "Prompt lengths differ, and TTFT with them: compare it by prompt length.",
    "output tokens": "Output lengths differ: TGS of a request goes with them, and ITL at its end.",
    "concurrency": "Concurrency differs: compare TGS at the same number of requests.",
    "clock": "The clocks differ: a device's and the host's times are not the same.",
}
"""What a difference means for the figures."""


def differences(
    before: Report,
    after: Report,
    resources_before: Iterable[Mapping[str, Any]] = (),
    resources_after: Iterable[Mapping[str, Any]] = (),
) -> tuple[Difference, ...]:
    """Return settings, load and versions that are not the same on both sides."""
    first, second = before.tgs.conditions, after.tgs.conditions
    pairs = [(name, _settings(first, at), _settings(second, at)) for name, at in _SETTINGS.items()]
    pairs += [
        ("sampling", _samplings(first), _samplings(second)),
        ("prompt tokens", _spread(first.prompt_tokens), _spread(second.prompt_tokens)),
        ("output tokens", _spread(before.output_tokens), _spread(after.output_tokens)),
        ("concurrency", _load(first), _load(second)),
    ]
    old, new = _merged(resources_before), _merged(resources_after)
    pairs += [(key, old.get(key, ""), new.get(key, "")) for key in sorted(old.keys() | new.keys())]
    return tuple(Difference(*pair) for pair in pairs if pair[1] != pair[2])


def _settings(of: Conditions, name: str) -> str:
    return ", ".join(map(str, getattr(of, name)))


def _samplings(of: Conditions) -> str:
    return "; ".join(sorted({_sampling(setting) for setting in of.sampling}))


def _sampling(setting: Sampling) -> str:
    names = ("temperature", "top_p", "top_k") if setting.do_sample else ()
    said = [f"{n} {value:g}" for n in names if (value := getattr(setting, n)) is not None]
    if (setting.num_beams or 1) > 1:
        said.append(f"{setting.num_beams} beams")
    return ", ".join([setting.strategy, *said])


def _spread(tokens: Summary | None) -> str:
    if tokens is None:
        return ""
    return f"{tokens.min:.0f} to {tokens.max:.0f}, p50 {tokens.p50:.0f}"


def _load(of: Conditions) -> str:
    load = of.concurrency
    return "" if load.mean is None else f"mean {load.mean:.1f}, max {load.max}"


def _merged(resources: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    values: dict[str, set[str]] = {}
    for resource in resources:
        for key, value in resource.items():
            if key not in OF_THE_PROCESS:
                values.setdefault(key, set()).add(str(value))
    return {key: ", ".join(sorted(found)) for key, found in values.items()}

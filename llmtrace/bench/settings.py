"""What a run of a measuring tool is asked to do."""

from __future__ import annotations

from dataclasses import dataclass

QUANTIZATIONS = ("none", "8bit", "4bit", "nf4", "nf4-double")
DTYPES = ("float32", "float16", "bfloat16")
ATTENTIONS = ("eager", "sdpa", "flash_attention_2")
CACHES = ("dynamic", "static", "quantized", "offloaded")


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Which model, and how it is loaded."""

    model: str | None = None
    """A folder, a GGUF file, a hub's name, or ``demo`` for the demonstration model."""
    gguf_file: str | None = None
    """Name of a GGUF file inside the folder."""
    random_weights: str | None = None
    """A named shape, or a config.json: weights are random then and there is no tokenizer."""
    quantization: str = "none"
    dtype: str | None = None
    """None: bfloat16 on a GPU, float32 on a CPU; of a saved model what it was saved in."""
    device: str | None = None
    """None: the GPU where there is one."""
    device_map: str | None = None
    attn: str | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """How text is generated, the same for every request of a run."""

    max_new_tokens: int
    cache: str = "dynamic"
    compile: bool = False
    do_sample: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    use_cache: bool = True
    seed: int = 0
    stop_at_eos: bool = False
    """Left out, every request has exactly ``max_new_tokens`` tokens: lengths are no variable."""
    generated: int | None = None
    """Tokens after which a request ends although ``max_new_tokens`` leaves room for more."""


@dataclass(frozen=True, slots=True)
class PromptChoice:
    """Where prompts come from: a file of texts, or random ids of exact lengths."""

    file: str | None = None
    lengths: tuple[int, ...] = ()

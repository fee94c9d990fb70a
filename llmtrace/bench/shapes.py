"""Models by shape alone: what their config.json says, for random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llmtrace.errors import ConfigError

_LLAMA2 = {
    "model_type": "llama",
    "vocab_size": 32_000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

SHAPES: dict[str, dict[str, Any]] = {
    "llama2-7b": {
        **_LLAMA2,
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
    "llama2-13b": {
        **_LLAMA2,
        "hidden_size": 5120,
        "intermediate_size": 13_824,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "num_key_value_heads": 40,
    },
    "smollm2-135m": {
        "model_type": "llama",
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100_000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
}


def shape(name: str) -> dict[str, Any]:
    """Return the config of a named shape, or of the JSON file *name*.

    Raises:
        ConfigError: There is no such shape, or the file holds no model's config.
    """
    if name in SHAPES:
        return dict(SHAPES[name])
    if not name.endswith(".json"):
        raise ConfigError(
            f"--random-weights {name}: is none of {', '.join(SHAPES)}, nor a config.json"
        )
    try:
        found = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "holds no JSON"
        raise ConfigError(f"--random-weights {name}: {reason}") from None
    if not isinstance(found, dict) or "model_type" not in found:
        raise ConfigError(f"--random-weights {name}: is no model's config: it has no model_type")
    return found

"""What a model's attention needs of a cache, from its configuration and its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmtrace.bench.models import text_config
from llmtrace.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Geometry:
    """Keys and values of one token in one layer, and where each layer computes."""

    layers: int
    query_heads: int
    kv_heads: int | None
    """None: not attention of the usual form, so that nothing is expected of its shapes."""
    head_dim: int | None
    dtype: str
    element_size: int
    devices: dict[int, str]
    """Of a layer's weights, as far as they are to be found."""
    window: int | None = None
    """Of the layers that have one."""

    @property
    def token_bytes(self) -> int | None:
        """Bytes of one token's keys and values in one layer."""
        if self.kv_heads is None or self.head_dim is None:
            return None
        return 2 * self.kv_heads * self.head_dim * self.element_size


def geometry(model: Any) -> Geometry:
    """Return what *model*'s attention needs.

    Raises:
        ConfigError: It has none.
    """
    config = text_config(model)
    queries = getattr(config, "num_attention_heads", None)
    if queries is None:
        raise ConfigError(f"{type(model).__name__} has no attention, and so no KV cache")
    heads = _kv_heads(config) or queries
    dim = getattr(config, "head_dim", None) or config.hidden_size // queries
    projections = dict(_key_projections(model))
    # Heads of another size than the configuration's (latent attention, layers that differ).
    usual = getattr(config, "kv_lora_rank", None) is None
    widths = {p.out_features for p in projections.values() if hasattr(p, "out_features")}
    if usual and widths and widths != {heads * dim}:
        usual = False
    return Geometry(
        layers=config.num_hidden_layers,
        query_heads=queries,
        kv_heads=heads if usual else None,
        head_dim=dim if usual else None,
        dtype=str(model.dtype).removeprefix("torch."),
        element_size=model.dtype.itemsize,
        devices={
            index: str(projection.weight.device)
            for index, projection in projections.items()
            if projection.weight.device.type != "meta"
        },
        window=getattr(config, "sliding_window", None)
        or getattr(config, "attention_chunk_size", None),
    )


def _kv_heads(config: Any) -> int | None:
    """Return how many heads keys have, in the words of each family; None: those of queries."""
    if getattr(config, "num_key_value_heads", None):
        return int(config.num_key_value_heads)
    if getattr(config, "new_decoder_architecture", False):  # Falcon
        return int(config.num_kv_heads)
    return 1 if getattr(config, "multi_query", False) else None


def _key_projections(model: Any) -> Any:
    for module in model.modules():
        projection = getattr(module, "k_proj", None)
        index = getattr(module, "layer_idx", None)
        if isinstance(index, int) and hasattr(projection, "weight"):
            yield index, projection

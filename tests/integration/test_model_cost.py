"""What a model's pass needs: real models of known sizes, and those of which nothing can be said."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    BitsAndBytesConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import llmtrace
from llmtrace.seams.model_cost import model_cost

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LAYER = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64
"""Weights of one small layer: queries and output, keys and values, three of the MLP."""


def on_meta(cls, config, dtype=torch.bfloat16):
    with torch.device("meta"):
        return cls(config).to(dtype)


def test_llama_2_7b():
    """The published constants of the model, without a byte of it being made."""
    config = LlamaConfig(
        vocab_size=32_000,
        hidden_size=4096,
        intermediate_size=11_008,
        num_hidden_layers=32,
        num_attention_heads=32,
    )
    cost = model_cost(on_meta(LlamaForCausalLM, config), None)
    assert cost.linear_weights == 32 * (4 * 4096**2 + 3 * 4096 * 11_008)
    assert cost.output_weights == 4096 * 32_000
    assert cost.attention_width == 4096
    assert cost.weight_bytes / 1e9 == pytest.approx(13.215, abs=0.001)
    assert cost.operand == "bfloat16"


def test_a_tied_embedding_is_read_for_the_logits():
    """An embedding that is also the output layer is read whole each step."""
    tied = model_cost(LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=True)), None)
    apart = model_cost(LlamaForCausalLM(LlamaConfig(**SMALL)), None)
    assert tied.weight_bytes == apart.weight_bytes
    assert apart.weight_bytes == 4 * (2 * (LAYER + 2 * 32) + 32 + 32 * 64)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
def test_a_layer_inside_an_adapter_counts_once():
    """LoRA's own small layers count, the layer they stand around does not count twice."""
    plain = model_cost(LlamaForCausalLM(LlamaConfig(**SMALL)), None)
    model = LlamaForCausalLM(LlamaConfig(**SMALL))
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"])).get_base_model()
    cost = model_cost(adapted, None)
    assert cost.linear_weights == plain.linear_weights + 2 * (32 * 4 + 4 * 32)


def test_gpt2s_layers_are_linear_too():
    """Conv1D names its sizes otherwise."""
    config = GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    cost = model_cost(GPT2LMHeadModel(config), None)
    assert cost.linear_weights == 2 * (3 + 1 + 4 + 4) * 32 * 32


@pytest.mark.parametrize(
    "make",
    [
        lambda: MixtralForCausalLM(MixtralConfig(**SMALL, num_local_experts=2)),
        lambda: T5ForConditionalGeneration(
            T5Config(vocab_size=64, d_model=32, d_ff=64, num_layers=1, num_heads=4, d_kv=8)
        ),
    ],
    ids=["experts", "encoder"],
)
def test_nothing_is_said_of_models_that_do_not_use_all_their_weights(make):
    """A router picks experts, an encoder runs once: the count would not be the truth."""
    assert model_cost(make(), None) is None


def test_a_cast_model_is_looked_at_again():
    """Half the bytes after ``half()``."""
    model = LlamaForCausalLM(LlamaConfig(**SMALL))
    whole = model_cost(model, None).weight_bytes
    assert model_cost(model.to(torch.bfloat16), None).weight_bytes * 2 == whole


def test_a_window_bounds_what_a_step_reads():
    """A sliding window of 8 tokens: the cache a step reads stops growing there."""
    model = MistralForCausalLM(MistralConfig(**SMALL, sliding_window=8)).eval()
    model.generation_config.eos_token_id = None
    with llmtrace.capture() as records:
        model.generate(torch.arange(5, 25)[None], max_new_tokens=6, do_sample=False)
    (record,) = records
    weights = model_cost(model, None).weight_bytes
    token = 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, width, bytes
    assert record.decode_bytes == weights + 8 * token


@pytest.mark.parametrize(
    ("how", "bits", "kept"),
    [
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, 4, 4 / 64),
        (
            {
                "load_in_4bit": True,
                "bnb_4bit_quant_type": "nf4",
                "bnb_4bit_use_double_quant": True,
            },
            4,
            1 / 64 + 4 / (64 * 256),
        ),
    ],
    ids=["nf4", "double"],
)
def test_quantized_weights_are_counted_as_stored(tmp_path, how, bits, kept):
    """Half a byte a weight, and the scales: one number of 4 bytes, or 1, for 64 weights."""
    sizes = {**SMALL, "hidden_size": 256, "intermediate_size": 512}
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(tmp_path)
    model = LlamaForCausalLM.from_pretrained(
        tmp_path, quantization_config=BitsAndBytesConfig(**how), dtype=torch.float32
    )
    cost = model_cost(model, "nf4")
    layer = 2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512
    unquantized = 4 * (2 * 2 * 256 + 256 + 256 * 64)
    expected = 2 * layer * (bits / 8 + kept) + unquantized
    assert cost.linear_weights == 2 * layer
    assert cost.weight_bytes == pytest.approx(expected, rel=2e-3)

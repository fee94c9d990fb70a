"""Models of other shapes: with an encoder, with pictures, with sound."""

import time

import pytest
import torch
import transformers
from harness import (
    EOS,
    PAD,
    VERSION,
    Seen,
    check,
    check_spans,
    check_times,
    observe,
    tiny_config,
)


def cell(mode):
    return pytest.mark.cell(mode)


def ready(model):
    model.eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = PAD
    return model


def tiny_t5():
    torch.manual_seed(0)
    return ready(
        transformers.T5ForConditionalGeneration(
            transformers.T5Config(
                vocab_size=64,
                d_model=16,
                d_kv=8,
                d_ff=32,
                num_layers=1,
                num_decoder_layers=1,
                num_heads=2,
                decoder_start_token_id=PAD,
                pad_token_id=PAD,
                eos_token_id=EOS,
            )
        )
    )


@cell("encoder-decoder (T5)")
@pytest.mark.parametrize("how", [{}, {"num_beams": 2}, {"do_sample": True}])
def test_t5(how):
    """Input tokens are the encoder's; the decoder's start token is no output."""
    model = tiny_t5()
    ids = torch.tensor([[PAD] * 2, [9, 10]])
    ids = torch.cat([torch.tensor([[5, 6, 7, 8, 9]] * 2), ids], dim=1)
    mask = (ids != PAD).long()
    seen = observe(
        model,
        lambda: model.generate(
            ids, attention_mask=mask, max_new_tokens=4, **{"do_sample": False, **how}
        ),
    )
    assert seen.result.shape == (2, 5)
    strategy = "beam" if "num_beams" in how else "sample" if how else "greedy"
    check(seen, rows=[4, 4], inputs=[5, 7], padded=14, strategy=strategy)
    assert seen.forwards == 4


@cell("encoder-decoder (T5)")
def test_the_encoder_is_part_of_the_prefill():
    """An encoder of 30 ms is in TTFT and in the prefill, and in no gap."""
    model = tiny_t5()
    model.encoder.register_forward_pre_hook(lambda *_: time.sleep(0.03))
    ids = torch.tensor([[5, 6, 7]])
    record = observe(model, lambda: model.generate(ids, max_new_tokens=4, do_sample=False)).record
    assert 0.03 <= record.prefill_s < record.ttft_s
    assert max(record.itl_s) < 0.03


def tiny_whisper():
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        vocab_size=64,
        num_mel_bins=8,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_source_positions=20,
        max_target_positions=64,
        pad_token_id=PAD,
        bos_token_id=1,
        eos_token_id=EOS,
        decoder_start_token_id=3,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = ready(transformers.WhisperForConditionalGeneration(config))
    model.generation_config.eos_token_id = EOS
    model.generation_config.decoder_start_token_id = 3
    model.generation_config.no_timestamps_token_id = 50
    return model


@cell("encoder-decoder with inner calls (Whisper)")
@pytest.mark.parametrize("windows", [1, 3])
def test_whisper(windows):
    """However often Whisper calls ``super().generate()``: one request, the sum of its tokens."""
    model = tiny_whisper()
    features = torch.randn(1, 8, 40 * windows)
    extra = {} if windows == 1 else {"return_timestamps": True}
    steps = []

    class Steps(transformers.LogitsProcessor):
        def __call__(self, input_ids, scores):
            steps[-1] += 1
            return scores

    def call():
        steps.append(0)
        return model.generate(
            features, max_new_tokens=5, logits_processor=[Steps()], do_sample=False, **extra
        )

    seen = observe(model, call)
    record = seen.record
    assert len(seen.requests()) == 1
    assert steps[0] == steps[1] > 0
    assert record.output_tokens == steps[1] == len(record.steps)
    assert record.batch_size == 1
    assert record.input_tokens is None  # sound has no tokens
    assert [s.phase for s in record.steps][:2] == ["prefill", "decode"]
    assert sum(s.forwards for s in record.steps) <= seen.forwards
    check_times(record, steps[1])
    check_spans(seen, steps[1])


def tiny_llava():
    text = tiny_config()
    vision = transformers.CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=4,
        patch_size=2,
        projection_dim=16,
    )
    torch.manual_seed(0)
    config = transformers.LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=60,
        vision_feature_layer=-1,
        pad_token_id=PAD,
    )
    return ready(transformers.LlavaForConditionalGeneration(config))


@cell("vision-language (Llava)")
def test_llava():
    model = tiny_llava()
    places = 1 if VERSION < (4, 45) else 4
    ids = torch.tensor([[1, *[60] * places, 7, 8]])
    pixels = torch.randn(1, 3, 4, 4)
    seen = observe(
        model,
        lambda: model.generate(
            input_ids=ids,
            pixel_values=pixels,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=4,
            do_sample=False,
        ),
    )
    check(seen, rows=[4], inputs=[ids.shape[1]], strategy="greedy")


def test_harness_sees_what_it_should():
    """The harness itself: a record that is not there is an error, not a pass."""
    with pytest.raises(ValueError, match="unpack"):
        _ = Seen().record

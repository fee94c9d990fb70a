"""Models with a generate() of their own, and loops that skip transformers' own."""

import pytest
import torch
import transformers
from harness import (
    EOS,
    PAD,
    VERSION,
    check,
    check_spans,
    check_times,
    not_here,
    not_observable,
    observe,
    tiny_llama,
    traced,
)


def cell(mode):
    return pytest.mark.cell(mode)


class Thrice(transformers.LlamaForCausalLM):
    """Generates three times and puts the pieces together, as some models do."""

    def generate(self, inputs, **kwargs):
        pieces = [super(Thrice, self).generate(inputs, **kwargs) for _ in range(3)]
        return torch.cat([pieces[0], *(p[:, inputs.shape[1] :] for p in pieces[1:])], dim=1)


@cell("generate() overridden, super() called three times")
@pytest.mark.parametrize("how", [{}, {"do_sample": True}, {"num_beams": 2}])
def test_super_called_three_times(prompt, how):
    model = tiny_llama(Thrice)
    seen = observe(
        model,
        lambda: model.generate(prompt, max_new_tokens=4, **{"do_sample": False, **how}),
    )
    assert seen.result.shape == (1, 17)
    strategy = "beam" if "num_beams" in how else "sample" if how else "greedy"
    check(seen, rows=[12], inputs=[5], strategy=strategy)
    assert seen.forwards == 12


@cell("generate() overridden, super() called three times")
def test_super_called_three_times_for_two_rows(prompt):
    model = tiny_llama(Thrice)
    seen = observe(
        model,
        lambda: model.generate(prompt.repeat(2, 1), max_new_tokens=4, do_sample=False),
    )
    check(seen, rows=[12, 12], inputs=[5, 5], strategy="greedy")


class Shrinking(transformers.LlamaForCausalLM):
    """Goes on with fewer rows, as Whisper does when one of a batch is done."""

    def generate(self, inputs, **kwargs):
        super().generate(inputs, **kwargs)
        return super().generate(inputs[:1], **kwargs)


@cell("generate() overridden, rows change between loops")
def test_rows_that_cannot_be_told_apart(prompt, request):
    model = tiny_llama(Shrinking)
    seen = observe(
        model,
        lambda: model.generate(prompt.repeat(2, 1), max_new_tokens=4, do_sample=False),
    )
    record = seen.record
    assert record.output_tokens == 12
    assert record.output_tokens_per_row == ()
    assert len(record.steps) == seen.forwards == 8
    not_observable(
        request,
        record,
        "rows_not_told_apart",
        "the total is right; which row of the batch got which tokens only the model knows",
    )


class Composite(transformers.LlamaForCausalLM):
    """Another model does the decoding, as in BLIP-2."""

    def __init__(self, config):
        super().__init__(config)
        self.inner = transformers.LlamaForCausalLM(config)

    def generate(self, pixel_values, **kwargs):
        embeds = torch.ones(pixel_values.shape[0], 6, 16)
        self.inner.generation_config.eos_token_id = None
        self.inner.generation_config.pad_token_id = PAD
        return self.inner.generate(inputs_embeds=embeds, **kwargs)


@cell("generate() overridden, another model decodes")
def test_another_model_decodes():
    """The request's tokens are what the decoding model was given and gave."""
    model = tiny_llama(Composite)
    pixels = torch.randn(2, 3, 4, 4)
    seen = observe(
        model,
        lambda: model.generate(pixels, max_new_tokens=4, do_sample=False),
        count=[model.inner],
    )
    check(seen, rows=[4, 4], inputs=[6, 6], strategy="greedy")


@cell("generate() overridden, another model decodes")
def test_an_error_in_a_part(prompt):
    """An error in the second of three parts: the tokens so far, and a clean request after."""
    model = tiny_llama(Thrice)
    error = ValueError("no")
    calls = []

    def explode(input_ids, scores):
        calls.append(1)
        if len(calls) == 7:
            raise error
        return scores

    seen = traced(
        lambda: model.generate(
            prompt, max_new_tokens=4, logits_processor=[explode], do_sample=False
        ),
        [model],
    )
    assert seen.error is error
    assert seen.record.output_tokens == len(seen.record.steps) == 6
    clean = observe(model, lambda: model.generate(prompt, max_new_tokens=2, do_sample=False))
    check(clean, rows=[6], inputs=[5], strategy="greedy")


def tiny_blip():
    text = {
        "vocab_size": 64,
        "hidden_size": 16,
        "encoder_hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "projection_dim": 16,
        "bos_token_id": 1,
        "pad_token_id": PAD,
        "sep_token_id": 63,
        "eos_token_id": EOS,
    }
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 4,
        "patch_size": 2,
        "projection_dim": 16,
    }
    torch.manual_seed(0)
    config = transformers.BlipConfig(text_config=text, vision_config=vision, projection_dim=16)
    return transformers.BlipForConditionalGeneration(config).eval()


@cell("generate() overridden, another model decodes (BLIP)")
def test_blip():
    """BLIP's text decoder is given the prompt, which BLIP begins and shortens itself."""
    model = tiny_blip()
    pixels = torch.randn(1, 3, 4, 4)
    ids = torch.tensor([[1, 5, 6, 7, 63]])
    seen = observe(
        model,
        lambda: model.generate(pixels, input_ids=ids, max_new_tokens=4, do_sample=False),
        count=[model.text_decoder],
    )
    check(seen, rows=[4], inputs=[4], strategy="greedy", reasons=seen.record.finish_reasons)


@cell("own flow into a decoding method (MusicGen)")
def test_musicgen(request):
    """MusicGen skips ``GenerationMixin.generate``; it returns a row for each code book."""
    if (4, 57) <= VERSION < (5, 1):
        not_here("MusicgenForCausalLM.generate() fails in 4.57 and 5.0 themselves")
    torch.manual_seed(0)
    config = transformers.models.musicgen.configuration_musicgen.MusicgenDecoderConfig(
        vocab_size=64,
        max_position_embeddings=64,
        num_hidden_layers=1,
        ffn_dim=16,
        num_attention_heads=2,
        hidden_size=16,
        num_codebooks=2,
        pad_token_id=63,
        bos_token_id=63,
    )
    model = transformers.MusicgenForCausalLM(config).eval()
    model.generation_config.pad_token_id = 63
    model.generation_config.decoder_start_token_id = 63
    model.generation_config.bos_token_id = 63
    ids, states = torch.full((2, 1), 63), torch.randn(1, 3, 16)
    seen = observe(
        model,
        lambda: model.generate(
            ids,
            attention_mask=torch.ones(1, 1, dtype=torch.long),
            encoder_hidden_states=states,
            encoder_attention_mask=torch.ones(1, 3, dtype=torch.long),
            max_new_tokens=6,
            do_sample=False,
            num_return_sequences=1,
            use_cache=True,
        ),
    )
    record = seen.record
    assert record.error is None
    assert len(record.steps) == seen.forwards
    assert sum(s.forwards for s in record.steps) == seen.forwards
    check_times(record, seen.forwards)
    check_spans(seen, seen.forwards)
    not_observable(
        request, record, "tokens_from_steps", "it returns no ids: tokens are counted by steps"
    )


@cell("own flow, no tokens (SpeechT5)")
def test_speech_frames_are_no_tokens():
    """SpeechT5's ``generate()`` makes spectrogram frames: nothing is recorded of it."""
    torch.manual_seed(0)
    config = transformers.SpeechT5Config(
        vocab_size=32,
        hidden_size=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        speech_decoder_prenet_units=16,
        speech_decoder_postnet_units=16,
        speech_decoder_prenet_layers=1,
        speech_decoder_postnet_layers=1,
        num_mel_bins=8,
        speaker_embedding_dim=4,
        positional_dropout=0.0,
    )
    model = transformers.SpeechT5ForTextToSpeech(config).eval()
    seen = observe(
        model,
        lambda: model.generate(
            torch.tensor([[4, 5, 6]]),
            speaker_embeddings=torch.zeros(1, 4),
            maxlenratio=2.0,
        ),
        compare=False,
    )
    assert seen.error is None, seen.error
    assert seen.records == []
    assert seen.spans == []

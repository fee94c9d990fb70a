"""Models of other shapes: with an encoder, with pictures or sound, with their own generate()."""

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
    not_here,
    not_observable,
    observe,
    tiny_config,
    tiny_llama,
    traced,
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


def test_harness_sees_what_it_should():
    """The harness itself: a record that is not there is an error, not a pass."""
    with pytest.raises(ValueError, match="unpack"):
        _ = Seen().record

"""llmtrace changes nothing that the program or other libraries can see."""

import copy
import inspect
import multiprocessing
import pickle

import pytest
import torch
from transformers import TextStreamer

import llmtrace


class Letters:
    """As much of a tokenizer as a streamer needs."""

    def decode(self, ids, **_):
        ids = ids if isinstance(ids, list) else [ids]
        return "".join(chr(97 + i % 26) + ("" if i % 3 else " ") for i in ids)


MODES = {
    "greedy": {"do_sample": False},
    "sample": {"do_sample": True, "temperature": 0.7, "top_p": 0.9},
    "beam": {"num_beams": 3, "do_sample": False},
    "beam_sample": {"num_beams": 2, "do_sample": True},
    "return_sequences": {"do_sample": True, "num_return_sequences": 3},
    "no_cache": {"use_cache": False, "do_sample": False},
    "static_cache": {"cache_implementation": "static", "do_sample": False},
    "prompt_lookup": {"prompt_lookup_num_tokens": 3, "do_sample": False},
}


def generate(model, prompt, mode, **kwargs):
    torch.manual_seed(7)
    return model.generate(prompt, max_new_tokens=12, **MODES[mode], **kwargs)


@pytest.mark.parametrize("mode", MODES)
def test_tokens_are_the_same(tiny, prompt, mode, telemetry):
    """Every mode generates the same ids with and without llmtrace."""
    traced = generate(tiny, prompt, mode)
    assert len(telemetry.requests()) == 1
    llmtrace.uninstrument()
    assert torch.equal(traced, generate(tiny, prompt, mode))


def test_streamed_text_is_the_same(tiny, prompt, telemetry, capsys):
    """A streamer prints the same text with and without llmtrace."""
    generate(tiny, prompt, "greedy", streamer=TextStreamer(Letters()))
    traced = capsys.readouterr().out
    assert len(telemetry.requests()) == 1
    llmtrace.uninstrument()
    generate(tiny, prompt, "greedy", streamer=TextStreamer(Letters()))
    assert capsys.readouterr().out == traced
    assert traced.strip()


def test_random_state_and_gradient_mode_are_untouched(tiny, prompt, telemetry):
    """Sampling draws as many random numbers as before, and gradients stay as they were."""
    generate(tiny, prompt, "sample")
    after_traced = torch.get_rng_state()
    assert torch.is_grad_enabled()
    llmtrace.uninstrument()
    generate(tiny, prompt, "sample")
    assert torch.equal(after_traced, torch.get_rng_state())


def test_signatures_are_unchanged(tiny, telemetry):
    """``generate`` and ``forward`` show the parameters they have; ``forward`` is the very same."""
    traced = inspect.signature(tiny.generate), inspect.signature(tiny.forward)
    assert inspect.ismethod(tiny.generate)
    doc = tiny.generate.__doc__
    llmtrace.uninstrument()
    assert traced == (inspect.signature(tiny.generate), inspect.signature(tiny.forward))
    assert tiny.generate.__doc__ == doc


def test_unknown_arguments_are_still_refused(tiny, prompt, telemetry):
    """A misspelt argument raises what it raised before."""
    with pytest.raises(ValueError, match="model_kwargs"):
        tiny.generate(prompt, max_new_tokenz=3)


def test_models_copy_and_pickle(tiny, prompt, telemetry):
    """A model, and an object that keeps its bound ``generate``, can be copied and pickled."""

    class Engine:
        pass

    engine = Engine()
    engine.model, engine.run = tiny, tiny.generate
    twin = copy.deepcopy(engine)
    assert twin.run.__self__ is twin.model
    assert "forward" not in vars(tiny)
    twin.model.lm_head.weight.data.zero_()
    assert not torch.equal(twin.run(prompt, max_new_tokens=4), engine.run(prompt, max_new_tokens=4))
    again = pickle.loads(pickle.dumps(tiny))
    assert torch.equal(generate(again, prompt, "greedy"), generate(tiny, prompt, "greedy"))
    assert pickle.loads(pickle.dumps(tiny.generate)).__name__ == "generate"
    assert pickle.loads(pickle.dumps(type(tiny).generate)) == type(tiny).generate


def _in_child(generate, prompt, results):
    results.put(generate(prompt, max_new_tokens=4, do_sample=False).tolist())


def test_bound_generate_can_be_sent_to_a_spawned_process(tiny, prompt, telemetry):
    """``Process(target=..., args=(model.generate,))`` under spawn works as without llmtrace."""
    spawn = multiprocessing.get_context("spawn")
    results = spawn.SimpleQueue()
    child = spawn.Process(target=_in_child, args=(tiny.generate, prompt, results))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert results.get() == tiny.generate(prompt, max_new_tokens=4, do_sample=False).tolist()


def test_callers_arguments_are_not_touched(tiny, prompt, telemetry):
    """The caller's dict, lists and streamer are the same objects with the same content after."""
    streamer = TextStreamer(Letters())
    before = dict(vars(streamer))
    processors, arguments = [], {"max_new_tokens": 3, "streamer": streamer}
    tiny.generate(prompt, logits_processor=processors, **arguments)
    assert type(streamer) is TextStreamer
    assert vars(streamer).keys() == before.keys()
    assert arguments["streamer"] is streamer
    assert processors == []

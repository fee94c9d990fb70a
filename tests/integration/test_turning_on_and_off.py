"""Wrappers go in and come out by identity."""

import functools
import threading

import pytest
import wrapt
from accelerate.hooks import AlignDevicesHook
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import Tracer, TracerProvider
from torch._dynamo.eval_frame import OptimizedModule
from torch.cuda.graphs import CUDAGraph
from transformers import LlamaForCausalLM, PreTrainedModel
from transformers.generation.continuous_batching import (
    ContinuousBatchingManager,
    PagedAttentionCache,
    RequestState,
    Scheduler,
)
from transformers.generation.continuous_batching.continuous_api import (
    ContinuousBatchProcessor,
    OutputRouter,
)
from transformers.generation.continuous_batching.input_outputs import (
    ContinuousBatchingAsyncIOs,
    ContinuousBatchingIOs,
)
from transformers.generation.continuous_batching.model_runner import ModelRunner
from transformers.generation.stopping_criteria import StoppingCriteriaList
from transformers.generation.streamers import (
    AsyncTextIteratorStreamer,
    TextIteratorStreamer,
    TextStreamer,
)
from transformers.generation.utils import GenerationMixin
from transformers.pipelines.text_generation import TextGenerationPipeline
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

import llmtrace
from llmtrace.recording.active import active
from llmtrace.seams.cuda_graphs import _before_replay
from llmtrace.seams.patching import PatchSet
from llmtrace.session import session

PLACES = [
    (GenerationMixin, "generate"),
    (GenerationMixin, "_get_logits_processor"),
    (GenerationMixin, "_get_candidate_generator"),
    (GenerationMixin, "load_custom_generate"),
    (GenerationMixin, "__init_subclass__"),
    (PreTrainedModel, "__call__"),
    (PreTrainedModel, "get_compiled_call"),
    (StoppingCriteriaList, "__call__"),
    (TextStreamer, "__init__"),
    (TextIteratorStreamer, "on_finalized_text"),
    (TextIteratorStreamer, "__next__"),
    (AsyncTextIteratorStreamer, "on_finalized_text"),
    (AsyncTextIteratorStreamer, "__anext__"),
    (TextGenerationPipeline, "_forward"),
    (TextGenerationPipeline, "postprocess"),
    (PreTrainedTokenizerBase, "__call__"),
    (PreTrainedTokenizerBase, "encode"),
    (PreTrainedTokenizerBase, "apply_chat_template"),
    (RequestState, "__init__"),
    (ContinuousBatchingManager, "add_request"),
    (ContinuousBatchingManager, "get_result"),
    (ContinuousBatchingManager, "register_result_handler"),
    (ContinuousBatchingManager, "_run_generation_loop"),
    (ContinuousBatchingManager, "_handle_critical_error"),
    (ContinuousBatchProcessor, "prepare_next_batch"),
    (ContinuousBatchProcessor, "update_batch"),
    (ContinuousBatchProcessor, "_handle_request_error"),
    (OutputRouter, "fail_and_deliver"),
    (ModelRunner, "compute_batch"),
    (ContinuousBatchingIOs, "prepare_batch_update"),
    (ContinuousBatchingAsyncIOs, "prepare_batch_update"),
    (PagedAttentionCache, "search_prefix_match"),
    (Scheduler, "add_waiting_request"),
    (Scheduler, "finish_request"),
    (Scheduler, "clear_cancelled_requests"),
    (OptimizedModule, "__call__"),
    (CUDAGraph, "capture_begin"),
    (CUDAGraph, "replay"),
    (AlignDevicesHook, "pre_forward"),
    (Tracer, "start_span"),
    (TracerProvider, "force_flush"),
    (TracerProvider, "shutdown"),
    (MeterProvider, "force_flush"),
    (MeterProvider, "shutdown"),
]


def raw():
    """Return what each place holds itself; what it merely inherits is absent."""
    return {(owner, name): vars(owner).get(name, "absent") for owner, name in PLACES}


@pytest.fixture
def original():
    """What the libraries themselves have there."""
    llmtrace.uninstrument()
    return raw()


def test_every_place_is_wrapped_and_restored(original):
    """Each attribute is replaced while on, and the very same object, or absent, after."""
    llmtrace.instrument()
    wrapped = raw()
    assert all(wrapped[place] is not original[place] for place in PLACES)
    places = {(p.owner, p.name) for p in session().arming.patches._patches}
    # Beside these, models with a generate() of their own that other tests have imported.
    assert {place for place in places if place[1] != "generate"} | set(PLACES[:1]) == set(PLACES)
    llmtrace.uninstrument()
    assert all(value is original[place] for place, value in raw().items())
    assert original[PreTrainedModel, "__call__"] == "absent"
    assert original[GenerationMixin, "__init_subclass__"] == "absent"


def test_a_models_own_generate_is_wrapped_and_restored(original):
    """A class that overrides ``generate()`` is wrapped too, one defined while on as well."""

    class Before(LlamaForCausalLM):
        def generate(self, *args, **kwargs):
            return super().generate(*args, **kwargs)

    before = vars(Before)["generate"]
    llmtrace.instrument()

    class After(Before):
        def generate(self, *args, **kwargs):
            return super().generate(*args, **kwargs)

    class NoLoop(LlamaForCausalLM):
        def generate(self, *args, **kwargs):
            return self(*args, **kwargs)

    wrapped = vars(Before)["generate"], vars(After)["generate"]
    assert wrapped[0].__wrapped__ is before
    assert isinstance(wrapped[1], wrapt.FunctionWrapper)
    assert not isinstance(vars(NoLoop)["generate"], wrapt.FunctionWrapper)
    llmtrace.uninstrument()
    assert vars(Before)["generate"] is before
    assert vars(After)["generate"] is wrapped[1].__wrapped__
    assert all(value is original[place] for place, value in raw().items())


def test_a_second_instrument_changes_nothing(original):
    """Wrapped once however often it is asked for; one ``uninstrument()`` undoes it."""
    first = llmtrace.instrument()
    wrapped = raw()
    assert llmtrace.instrument() is first
    assert all(value is wrapped[place] for place, value in raw().items())
    llmtrace.uninstrument()
    llmtrace.uninstrument()
    assert all(value is original[place] for place, value in raw().items())


def test_the_handle_undoes_it(original):
    """``with instrument():`` and ``close()`` restore everything."""
    with llmtrace.instrument():
        assert raw()[GenerationMixin, "generate"] is not original[GenerationMixin, "generate"]
    assert all(value is original[place] for place, value in raw().items())


def test_another_librarys_wrapt_wrapper_stays_and_ours_goes(original, tiny, prompt):
    """Theirs keeps working, wraps the original, and its own removal restores the original."""
    calls = []

    def theirs(wrapped, instance, args, kwargs):
        calls.append(1)
        return wrapped(*args, **kwargs)

    llmtrace.instrument()
    wrapt.wrap_function_wrapper(GenerationMixin, "generate", theirs)
    llmtrace.uninstrument()
    outer = vars(GenerationMixin)["generate"]
    try:
        tiny.generate(prompt, max_new_tokens=2)
        assert calls == [1]
        assert outer.__wrapped__ is original[GenerationMixin, "generate"]
    finally:
        GenerationMixin.generate = outer.__wrapped__
    assert raw()[GenerationMixin, "generate"] is original[GenerationMixin, "generate"]


def test_another_librarys_closure_stays_and_ours_passes_on(original, tiny, prompt, telemetry):
    """A plain closure over ours cannot be cut out: ours then only passes calls on."""
    ours = vars(GenerationMixin)["generate"]

    @functools.wraps(ours)
    def theirs(self, *args, **kwargs):
        return ours(self, *args, **kwargs)

    GenerationMixin.generate = theirs
    try:
        llmtrace.uninstrument()
        assert vars(GenerationMixin)["generate"] is theirs
        with llmtrace.capture() as records:
            tiny.generate(prompt, max_new_tokens=2)
        assert records == []
    finally:
        GenerationMixin.generate = original[GenerationMixin, "generate"]


class Graph:
    """As torch's CUDA graphs, on a machine without one."""

    def replay(self, *args, **kwargs):
        return args, kwargs


class Marking:
    """A recorder of which only replays are of interest."""

    def __init__(self, in_forward):
        self.in_forward, self.replays = in_forward, 0

    def graph_replayed(self):
        self.replays += 1


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "wrapped by another"])
def test_a_replay_is_marked_within_a_forward_alone(monkeypatch, wrapped):
    """What it is given and what it returns pass through; undoing puts the same object back."""
    seen = []

    def others(call, instance, args, kwargs):
        seen.append(instance)
        return call(*args, **kwargs)

    if wrapped:
        monkeypatch.setattr(Graph, "replay", wrapt.FunctionWrapper(Graph.replay, others))
    before, patches = vars(Graph)["replay"], PatchSet()
    assert not patches.put(Graph, "none", _before_replay)
    assert patches.put(Graph, "replay", _before_replay)
    graph, within, without = Graph(), Marking(True), Marking(False)
    for recorder in (within, without, None):
        token = active.set(recorder)
        assert graph.replay(1, a=2) == ((1,), {"a": 2})
        active.reset(token)
    assert (within.replays, without.replays) == (1, 0)
    assert seen == [graph] * 3 * wrapped
    patches.restore()
    assert vars(Graph)["replay"] is before


def test_another_librarys_closure_around_a_replay_stays(monkeypatch):
    """Ours stays below it and passes on."""
    patches, original = PatchSet(), Graph.replay
    monkeypatch.setattr(Graph, "replay", original)
    patches.put(Graph, "replay", _before_replay)
    ours = Graph.replay
    monkeypatch.setattr(Graph, "replay", lambda self, *args: ("outer", ours(self, *args)))
    patches.restore()
    assert Graph().replay(1) == ("outer", ((1,), {}))


def test_a_model_built_while_on_is_free_of_us(original, tiny, prompt, telemetry):
    """It generates the same after, emits nothing, and holds nothing of ours."""
    model = LlamaForCausalLM(tiny.config).eval()
    kept = model.generate
    model.generate(prompt, max_new_tokens=2)
    assert len(telemetry.requests()) == 1
    llmtrace.uninstrument()
    model.generate(prompt, max_new_tokens=2)
    kept(prompt, max_new_tokens=2)
    assert len(telemetry.exporter.get_finished_spans()) == len(telemetry.spans())
    assert len(telemetry.requests()) == 1
    assert not [name for name in vars(model) if "llmtrace" in name]


def test_gradients_stay_off_in_generate_afterwards(tiny, prompt):
    """Undoing us does not undo transformers' own ``no_grad``."""
    llmtrace.instrument()
    llmtrace.uninstrument()
    assert tiny.generate(prompt, max_new_tokens=2).grad_fn is None


def test_it_can_be_turned_on_again(tiny, prompt, original):
    """On, off and on again records each request once."""
    for _ in range(3):
        with llmtrace.instrument(), llmtrace.capture() as records:
            tiny.generate(prompt, max_new_tokens=3)
        assert [len(r.steps) for r in records] == [3]
    assert all(value is original[place] for place, value in raw().items())


def test_a_second_instrument_keeps_what_the_first_was_given(tiny, prompt, telemetry):
    """A bare ``instrument()`` later on, as a library might make, takes nothing away."""
    llmtrace.instrument(steps="none")
    llmtrace.instrument()
    tiny.generate(prompt, max_new_tokens=3)
    assert len(telemetry.spans()) == 1
    assert session().config.steps == "none"


def test_turning_off_under_a_running_request(tiny, prompt, telemetry):
    """Nothing is emitted after ``uninstrument()`` has returned, and nothing wrong before."""
    running, go_on = threading.Event(), threading.Event()

    def wait(input_ids, scores):
        if input_ids.shape[1] == prompt.shape[1] + 3:
            running.set()
            go_on.wait(10)
        return scores

    arguments = {"max_new_tokens": 9, "logits_processor": [wait]}
    thread = threading.Thread(target=tiny.generate, args=(prompt,), kwargs=arguments)
    with llmtrace.capture() as records:
        thread.start()
        assert running.wait(10)
        llmtrace.uninstrument()
        before = len(telemetry.exporter.get_finished_spans())
        go_on.set()
        thread.join()
    assert records == []
    assert len(telemetry.exporter.get_finished_spans()) == before
    assert not [
        s for s in telemetry.exporter.get_finished_spans() if "llmtrace.tgs" in s.attributes
    ]

"""Other libraries that look at, patch or wrap what we wrap."""

import pytest
import torch
from accelerate import dispatch_model
from accelerate.hooks import remove_hook_from_submodules
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

import llmtrace
from llmtrace.seams.wrapping import MethodWrapper
from llmtrace.session import session


class Holder(torch.nn.Module):
    """A plain module around a transformers model."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(ids)


class LeafTracer(torch.fx.Tracer):
    def is_leaf_module(self, module, name):
        return isinstance(module, PreTrainedModel)


def traced_calls(model):
    graph = LeafTracer().trace(Holder(model))
    return [node.target for node in graph.nodes if node.op == "call_module"]


def test_torch_fx_sees_the_model_as_it_always_did(tiny, telemetry):
    """torch.fx replaces ``nn.Module.__call__`` while tracing: our ``__call__`` goes through it."""
    assert traced_calls(tiny) == ["model"]


def test_a_wrapt_wrapper_on_call_would_blind_torch_fx(tiny):
    """Why ``__call__`` is a plain function: wrapt's keeps the ``nn.Module.__call__`` of before."""
    llmtrace.uninstrument()

    def passing(wrapped, instance, args, kwargs):
        return wrapped(*args, **kwargs)

    PreTrainedModel.__call__ = MethodWrapper(vars(torch.nn.Module)["__call__"], passing)
    try:
        with pytest.raises(Exception, match=r"Proxy|iter|trace"):
            traced_calls(tiny)
    finally:
        del PreTrainedModel.__call__


@pytest.mark.parametrize("hooks_first", [True, False])
def test_accelerate_hooks(tiny, prompt, hooks_first):
    """Hooks put on before or after us: one record a request, none after, and both come off."""
    plain = tiny.generate(prompt, max_new_tokens=3, do_sample=False)
    llmtrace.uninstrument()
    if hooks_first:
        dispatch_model(tiny, {"": "cpu"}, force_hooks=True)
    session().arm()
    if not hooks_first:
        dispatch_model(tiny, {"": "cpu"}, force_hooks=True)
    with llmtrace.capture() as records:
        assert torch.equal(tiny.generate(prompt, max_new_tokens=3, do_sample=False), plain)
    assert [len(r.steps) for r in records] == [3]
    llmtrace.uninstrument()
    with llmtrace.capture() as records:
        assert torch.equal(tiny.generate(prompt, max_new_tokens=3, do_sample=False), plain)
    assert records == []
    remove_hook_from_submodules(tiny)
    assert torch.equal(tiny.generate(prompt, max_new_tokens=3, do_sample=False), plain)


def test_a_generative_model_that_is_no_pretrained_model(tiny, prompt):
    """A plain module with ``GenerationMixin``: its calls are not seen, its tokens are."""

    class Plain(torch.nn.Module, GenerationMixin):
        main_input_name = "input_ids"
        _is_stateful = False
        _supports_cache_class = True
        base_model_prefix = ""

        def __init__(self, inner):
            super().__init__()
            self.inner = inner
            self.config, self.generation_config = inner.config, inner.generation_config

        def is_remote_code(self):
            return False

        def get_experts_implementation(self):
            return {}

        @property
        def device(self):
            return torch.device("cpu")

        def forward(self, input_ids, attention_mask=None, **_):
            logits = self.inner.lm_head(self.inner.model.embed_tokens(input_ids))
            return CausalLMOutputWithPast(logits=logits)

    plain = Plain(tiny).eval()
    with llmtrace.capture() as records:
        plain.generate(prompt, max_new_tokens=4, use_cache=False, do_sample=False)
    (record,) = records
    assert record.output_tokens == 4
    assert len(record.steps) == 4
    assert record.ttft_s > 0
    assert record.prefill_s is None
    assert record.steps[1].host_duration_s is None

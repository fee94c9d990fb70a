"""PEFT, bitsandbytes, Trainer, torch.export and pipelines: they work as ever, and are traced."""

import copy
import inspect
import threading
import time

import peft
import pytest
import torch
import wrapt
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    BitsAndBytesConfig,
    GenerationMixin,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    TextIteratorStreamer,
    TextStreamer,
    Trainer,
    TrainingArguments,
    pipeline,
)

import llmtrace
from llmtrace.session import session

N = 4


def counted(model, prompt):
    """Generate with and without llmtrace; return the record, and check that nothing changed."""
    session().arming.disarm()
    plain = model.generate(input_ids=prompt, max_new_tokens=N, do_sample=False)
    session().arm()
    with llmtrace.capture() as records:
        traced = model.generate(input_ids=prompt, max_new_tokens=N, do_sample=False)
    assert torch.equal(plain, traced)
    (record,) = records
    assert record.output_tokens == N
    assert [s.phase for s in record.steps] == ["prefill"] + ["decode"] * (N - 1)
    assert all(s.forwards == 1 for s in record.steps)
    return record


@pytest.fixture
def tokenizer():
    """A tokenizer of 64 words with a chat template."""
    words = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}
    words |= {f"w{i}": i for i in range(4, 64)}
    backend = Tokenizer(WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = Whitespace()
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        padding_side="left",
    )
    made.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    return made


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("before", [True, False])
def test_peft_lora(tiny, prompt, before):
    """A LoRA model built before or after us; with its adapter off; merged; unloaded."""
    if before:
        session().arming.disarm()
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    model = peft.get_peft_model(tiny, config).eval()
    session().arm()
    counted(model, prompt)
    with model.disable_adapter():
        counted(model, prompt)
    copy.deepcopy(model)
    merged = model.merge_and_unload()
    counted(merged, prompt)
    session().arming.disarm()
    assert merged.generate(prompt, max_new_tokens=N).shape == (1, 5 + N)


@pytest.mark.filterwarnings("ignore")
def test_peft_prompt_tuning(tiny, prompt):
    """Virtual tokens go in as embeddings; input tokens are the caller's own."""
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = peft.get_peft_model(tiny, config).eval()
    record = counted(model, prompt)
    assert record.input_tokens == 5


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"load_in_8bit": True}, "8bit"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "nf4"),
        (
            {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
            "nf4",
        ),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}, "fp4"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_bitsandbytes(tiny, prompt, tmp_path, options, name):
    """Its CPU build: the record says how the weights are stored."""
    config = copy.deepcopy(tiny.config)
    config.hidden_size, config.intermediate_size, config.head_dim = 64, 64, 32  # its block sizes
    LlamaForCausalLM(config).save_pretrained(tmp_path / "tiny-llama")
    config = BitsAndBytesConfig(bnb_4bit_compute_dtype=torch.float32, **options)
    model = LlamaForCausalLM.from_pretrained(
        tmp_path / "tiny-llama", quantization_config=config, device_map={"": "cpu"}
    ).eval()
    model.generation_config.eos_token_id = None
    record = counted(model, prompt)
    assert record.quantization == name
    assert record.model == "tiny-llama"


@pytest.mark.filterwarnings("ignore")
def test_trainer_keeps_its_columns_and_is_not_traced(tiny, tmp_path, telemetry):
    """The same columns survive, training steps run, and there is no request."""
    rows = [{"input_ids": [5, 6, 7], "labels": [5, 6, 7], "junk": 1}] * 4
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, use_cpu=True, report_to=[], logging_strategy="no"
    )
    trainer = Trainer(tiny, arguments, train_dataset=rows, eval_dataset=rows)
    trainer._set_signature_columns_if_needed()
    assert {"input_ids", "labels"} <= set(trainer._signature_columns)
    assert "junk" not in trainer._signature_columns
    trainer.train()
    trainer.evaluate()
    assert telemetry.spans() == []


@pytest.mark.filterwarnings("ignore")
def test_torch_export(tiny, prompt):
    """A model exports with us in place, to the same graph as without."""

    def graph():
        exported = torch.export.export(tiny, (), {"input_ids": prompt, "use_cache": False})
        return [node.target for node in exported.graph.nodes]

    with_us = graph()
    bound = inspect.signature(tiny.forward).bind(input_ids=prompt)
    assert list(bound.arguments) == ["input_ids"]
    session().arming.disarm()
    assert graph() == with_us


def test_save_and_load(tiny, prompt, tmp_path):
    """``save_pretrained`` and ``from_pretrained`` while traced give the same model."""
    tiny.save_pretrained(tmp_path)
    again = LlamaForCausalLM.from_pretrained(tmp_path).eval()
    again.generation_config.eos_token_id = None
    ids = tiny.generate(prompt, max_new_tokens=N)
    assert torch.equal(again.generate(prompt, max_new_tokens=N), ids)


@pytest.fixture
def generator(tiny, tokenizer):
    """A text-generation pipeline."""
    return pipeline("text-generation", model=tiny, tokenizer=tokenizer, device="cpu")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("text", "requests", "operation"),
    [
        ("w5 w6", 1, "text_completion"),
        (["w5", "w6 w7"], 2, "text_completion"),
        ([{"role": "user", "content": "w5 w6 w7"}], 1, "chat"),
    ],
)
def test_pipelines(generator, telemetry, text, requests, operation):
    """A string, a list and chat messages: one request each, tokenizing noted, chat called chat."""
    with llmtrace.capture() as records, telemetry.tracer.start_as_current_span("app"):
        generator(text, max_new_tokens=N)
    assert len(records) == requests
    assert {r.operation for r in records} == {operation}
    assert all(r.output_tokens == N for r in records)
    assert records[0].tokenize_s > 0
    assert telemetry.requests()[0].name == f"{operation} llama"


@pytest.mark.filterwarnings("ignore")
def test_a_pipeline_batch_and_a_streamer(generator, tokenizer, capsys):
    """A batch is one request of its rows; a streamer given to the pipeline is watched."""
    with llmtrace.capture() as records:
        generator(["w5", "w6 w7 w8"], batch_size=2, max_new_tokens=N)
        generator("w5 w6", max_new_tokens=N, streamer=TextStreamer(tokenizer))
    batch, streamed = records
    assert batch.output_tokens_per_row == (N, N)
    assert batch.input_tokens_per_row == (1, 3)
    assert streamed.first_delivery_s is not None
    assert capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")
def test_only_the_calls_that_made_the_prompt_count(tiny, tokenizer):
    """Tokenizing for other purposes is not the request's, nor makes it a chat."""
    with llmtrace.capture() as records:
        tokenizer.apply_chat_template([{"role": "user", "content": "w5 w6 w7 w8 w9 w10"}])
        tokenizer(["w5 w6"] * 50)
        tiny.generate(torch.tensor([[5, 6, 7, 8]]), max_new_tokens=N)
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": "w5 w6 w7"}], tokenize=False
        )
        inputs = tokenizer(text, return_tensors="pt")
        tokenizer("w9")
        tiny.generate(inputs.input_ids, max_new_tokens=N)
        tiny.generate(inputs.input_ids, max_new_tokens=N)
    assert [r.operation for r in records] == ["text_completion", "chat", "text_completion"]
    assert [r.tokenize_s is not None for r in records] == [False, True, False]


def test_a_thread_of_its_own_without_any_span(tiny, tokenizer):
    """Tokenized and streamed here, generated there, as servers do it: the streamer links them."""
    with llmtrace.capture() as records:
        inputs = tokenizer.apply_chat_template(
            [{"role": "user", "content": "w5 w6 w7"}], return_tensors="pt", return_dict=True
        )
        arguments = {"streamer": TextIteratorStreamer(tokenizer), "max_new_tokens": N}
        thread = threading.Thread(target=tiny.generate, kwargs={**inputs, **arguments})
        thread.start()
        thread.join()
    (record,) = records
    assert record.operation == "chat"
    assert record.tokenize_s > 0


def test_queue_time_leaves_out_only_what_was_tokenized_meanwhile(tiny, tokenizer):
    """Tokenizing before the block is not taken off the wait inside it."""
    ids = tokenizer("w5 w6", return_tensors="pt").input_ids
    time.sleep(0.02)
    with llmtrace.capture() as records, llmtrace.request():
        time.sleep(0.03)
        tiny.generate(ids, max_new_tokens=N)
    assert records[0].tokenize_s > 0
    assert records[0].queue_s >= 0.03


def test_a_model_that_was_cast_says_so(tiny, prompt):
    """Facts are those of the time of the request."""
    with llmtrace.capture() as records:
        tiny.generate(prompt, max_new_tokens=2)
        tiny.to(torch.bfloat16).set_attn_implementation("eager")
        tiny.generate(prompt, max_new_tokens=2)
    assert [(r.dtype, r.attn_implementation) for r in records] == [
        ("float32", "sdpa"),
        ("bfloat16", "eager"),
    ]


@pytest.mark.filterwarnings("ignore")
def test_accelerate_prepare(tiny, prompt):
    """Mixed precision wraps the model's forward; unwrapped again it is traced as before."""
    AcceleratorState._reset_state(reset_partial_state=True)  # a Trainer may have set it
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    prepared = accelerator.prepare(tiny)
    counted(prepared, prompt)
    counted(accelerator.unwrap_model(prepared), prompt)
    assert accelerator.unwrap_model(prepared, keep_fp32_wrapper=False) is tiny


def test_another_package_under_us(tiny, prompt):
    """A wrapper that was there before us is called as ever, and stays when we go."""
    session().arming.disarm()
    calls = []

    def theirs(wrapped, instance, args, kwargs):
        calls.append(1)
        return wrapped(*args, **kwargs)

    original = vars(GenerationMixin)["generate"]
    wrapt.wrap_function_wrapper(GenerationMixin, "generate", theirs)
    under = vars(GenerationMixin)["generate"]
    try:
        counted(tiny, prompt)
        assert calls == [1, 1]
        session().arming.disarm()
        assert vars(GenerationMixin)["generate"] is under
    finally:
        GenerationMixin.generate = original

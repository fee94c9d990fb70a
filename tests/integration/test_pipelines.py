"""``pipeline("text-generation")`` in every form: requests, tokenizing and post-processing."""

import contextvars
import threading

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import Dataset
from transformers import (
    PreTrainedTokenizerFast,
    TextGenerationPipeline,
    TextIteratorStreamer,
    TextStreamer,
)

import llmtrace
from llmtrace.session import session

WORDS = [*"abcdefghijklmnopqrstuvwxyz", "user", "assistant"]
TEMPLATE = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}assistant"
CHAT = [{"role": "user", "content": "a b c"}]


@pytest.fixture
def pipe(tiny):
    """A pipeline of the tiny model and a tokenizer of single letters."""
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<unk>", "</s>", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", eos_token="</s>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.padding_side = "left"
    tiny.generation_config.max_new_tokens = 4
    return TextGenerationPipeline(model=tiny, tokenizer=tokenizer)


class Prompts(Dataset):
    """Three prompts of 1, 3 and 2 tokens."""

    prompts = ("a", "a b c", "a b")

    def __len__(self):
        return len(self.prompts)

    def __getitem__(self, index):
        return self.prompts[index]


def lazily(pipe):
    return list(pipe(prompt for prompt in Prompts.prompts))


FORMS = {  # call, operation, input tokens of each request, rows of each request
    "string": (lambda p: p("a b c"), "text_completion", [3], [1]),
    "list": (lambda p: p(["a", "a b c"]), "text_completion", [1, 3], [1, 1]),
    "chat": (lambda p: p(CHAT), "chat", [5], [1]),
    "chats": (lambda p: p([CHAT, CHAT]), "chat", [5, 5], [1, 1]),
    "batch": (
        lambda p: p(["a", "a b c", "a b"], batch_size=2),
        "text_completion",
        [4, 2],
        [2, 1],
    ),
    "sequences": (
        lambda p: p("a b", num_return_sequences=3, do_sample=True),
        "text_completion",
        [2],
        [3],
    ),
    "generator": (lazily, "text_completion", [1, 3, 2], [1, 1, 1]),
    "dataset": (lambda p: list(p(Prompts())), "text_completion", [1, 3, 2], [1, 1, 1]),
}


@pytest.mark.parametrize("under_a_span", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_every_form(pipe, telemetry, form, under_a_span):
    """A request for each ``generate()``, with its tokenizing; a span for each answer made of it."""
    call, operation, tokens, rows = FORMS[form]
    with llmtrace.capture() as records:
        if under_a_span:
            with telemetry.tracer.start_as_current_span("handler") as handler:
                call(pipe)
        else:
            call(pipe)
    assert [r.operation for r in records] == [operation] * len(tokens)
    assert [r.input_tokens for r in records] == tokens
    assert [len(r.output_tokens_per_row) for r in records] == rows
    assert all(r.tokenize_s is not None for r in records)
    requests = telemetry.requests()
    posts = sorted(telemetry.spans("postprocess"), key=lambda s: s.start_time)
    prompts = [r.batch_size for r in records]
    assert len(posts) == sum(prompts)
    made = iter(posts)
    for request, count in zip(requests, prompts, strict=True):
        for post in (next(made) for _ in range(count)):
            assert post.start_time >= request.end_time - 1_000_000
            assert post.end_time >= post.start_time
            assert post.context.trace_id == request.context.trace_id
            parent = handler.get_span_context() if under_a_span else request.context
            assert post.parent.span_id == parent.span_id
    tokenized = telemetry.spans("tokenize")
    assert len(tokenized) == (sum(prompts) if under_a_span else 0)


def test_a_streamer_through_a_pipeline(pipe, telemetry, capsys):
    """It is watched like any other."""
    with llmtrace.capture() as records:
        pipe("a b", streamer=TextStreamer(pipe.tokenizer, skip_prompt=True))
    (record,) = records
    assert record.parameters.stream
    assert record.first_visible_text_s is not None
    assert capsys.readouterr().out.strip()


def test_answers_are_the_same(pipe, telemetry):
    """With and without llmtrace, also in a batch."""
    arguments = {"batch_size": 2, "do_sample": False}
    traced = pipe(list(Prompts.prompts), **arguments)
    llmtrace.uninstrument()
    assert pipe(list(Prompts.prompts), **arguments) == traced


def test_rows_taken_elsewhere_belong_to_no_other_request(pipe, telemetry):
    """A batch whose rows are read in different contexts: a row whose request is not known here
    has no span, rather than one in another's trace."""
    four = Prompts()
    four.prompts = tuple("abcd")
    answers = iter(pipe(four, batch_size=2))
    contexts = [contextvars.Context(), contextvars.Context()]
    for turn in (0, 1, 1, 0):
        contexts[turn].run(next, answers)
    requests = telemetry.requests()
    posts = telemetry.spans("postprocess")
    assert [p.parent.span_id for p in posts] == [r.context.span_id for r in requests]


def test_a_postprocess_that_fails_passes_through(pipe, telemetry):
    """The pipeline's own error comes out, and is no error of the request."""

    class Failing(TextGenerationPipeline):
        def postprocess(self, *args, **kwargs):
            super().postprocess(*args, **kwargs)
            raise LookupError("no such key")

    failing = Failing(model=pipe.model, tokenizer=pipe.tokenizer)
    with llmtrace.capture() as records, pytest.raises(LookupError):
        failing("a b")
    assert records[0].error is None
    assert len(telemetry.spans("postprocess")) == 1


def test_a_request_of_before_is_not_taken_for_the_pipelines(pipe, telemetry):
    """A pipeline whose requests are not traced has nothing to put a span under."""
    pipe.model.generate(torch.tensor([[5, 6]]), max_new_tokens=2)
    outputs = {
        "generated_sequence": torch.tensor([[[5, 6, 7]]]),
        "input_ids": torch.tensor([[5]]),
        "prompt_text": "a",
    }
    assert pipe.postprocess(outputs)
    assert session().pipeline.drain(5)
    assert telemetry.spans("postprocess") == []


@pytest.mark.parametrize("first", ["streamer", "tokenizer"])
def test_tokenizing_in_the_handler_belongs_to_the_workers_request(pipe, telemetry, first):
    """Without any span: a streamer built where the prompt was made tells where that was."""
    tokenizer = pipe.tokenizer

    def handle():
        if first == "streamer":
            streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
        inputs = tokenizer.apply_chat_template(
            CHAT, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        if first == "tokenizer":
            streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
        thread = threading.Thread(
            target=pipe.model.generate, kwargs={**inputs, "streamer": streamer}
        )
        thread.start()
        list(streamer)
        thread.join()

    with llmtrace.capture() as records:
        for _ in range(2):
            contextvars.copy_context().run(handle)
    assert [r.operation for r in records] == ["chat", "chat"]
    assert all(r.tokenize_s > 0 for r in records)

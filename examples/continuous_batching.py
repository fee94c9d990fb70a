"""Many prompts at once through continuous batching, and what the traces say of it.

Run it: ``python examples/continuous_batching.py`` (transformers 5.1 or newer on the CPU). Nothing
in ``answer_all`` knows of llmtrace: each prompt is a trace of its own, under the span that was
current where it was submitted.
"""

from collections import Counter

from opentelemetry import trace
from transformers import ContinuousBatchingConfig, GenerationConfig

import llmtrace
from llmtrace import demo

QUESTIONS = (
    "Name three rivers.",
    "What is 2 + 2?",
    "Write one sentence about the sea.",
    "Which language is spoken in Brazil?",
)
TOKENS = 24

handle = llmtrace.instrument()
tracer = trace.get_tracer("app")


def answer_all(model, tokenizer):
    """Return the text of each answer: requests are added by hand, and read as they end."""
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(
            max_new_tokens=TOKENS,
            do_sample=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id,
        ),
        # Without this the cache takes most of the memory there is.
        continuous_batching_config=ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=128),
    )
    manager.start()
    answers = {}
    try:
        for question in QUESTIONS:
            ids = tokenizer.apply_chat_template(
                [{"role": "user", "content": question}],
                add_generation_prompt=True,
                return_dict=True,
            )["input_ids"]
            manager.add_request(ids)
        while len(answers) < len(QUESTIONS):
            output = manager.get_result(timeout=60)
            answers[output.request_id] = tokenizer.decode(
                output.generated_tokens, skip_special_tokens=True
            )
    finally:
        manager.stop(block=True)
    return answers


def main():
    model, tokenizer = demo.load()
    model.set_attn_implementation("sdpa")
    with llmtrace.capture() as records, tracer.start_as_current_span("POST /answers"):
        answers = answer_all(model, tokenizer)
    for record in records:
        key = record.attributes["llmtrace.batch.request_id"]
        print(
            f"{key}: {record.input_tokens} + {record.output_tokens} tokens; "
            f"{record.queue_s * 1e3:.0f} ms in the queue, first token after "
            f"{record.ttft_s * 1e3:.0f} ms, then one every {record.tpot_s * 1e3:.1f} ms: "
            f"{answers[key]!r}"
        )
    reasons = Counter(reason for record in records for reason in record.finish_reasons)
    print(f"{len(records)} requests, ended by {dict(reasons)}")
    print(f"Trace: {handle.path}")


if __name__ == "__main__":
    main()

"""A streaming chat answer the way servers do it: generate() in a thread, text read from a queue.

Run it: ``python examples/thread_streaming.py``. Nothing in ``answer`` knows of llmtrace; the trace
lies under the span that was current where the streamer was built.
"""

from threading import Thread

from opentelemetry import trace
from transformers import TextIteratorStreamer

import llmtrace
from llmtrace import demo

handle = llmtrace.instrument()
tracer = trace.get_tracer("app")


def answer(model, tokenizer, question):
    """Yield the answer's text as it comes."""
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    arguments = {**inputs, "streamer": streamer, "max_new_tokens": 32, "do_sample": False}
    Thread(target=model.generate, kwargs=arguments).start()
    yield from streamer


def main():
    model, tokenizer = demo.load()
    with llmtrace.capture() as records, tracer.start_as_current_span("POST /chat"):
        for text in answer(model, tokenizer, "Name three rivers."):
            print(text, end="", flush=True)
    (record,) = records
    print(
        f"\n\n{record.output_tokens} tokens; first token after {record.ttft_s * 1e3:.0f} ms, "
        f"with the reader after {record.first_delivery_s * 1e3:.0f} ms, "
        f"then one every {record.tpot_s * 1e3:.1f} ms"
    )
    print(f"Trace: {handle.path}")


if __name__ == "__main__":
    main()

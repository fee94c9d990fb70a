"""A chat server as they are written: FastAPI, a streaming response, ``generate()`` in threads.

More threads than cores only take turns, so there are few, and a question may have to wait for one.

Run it: ``python examples/fastapi_stream.py``, and ask:

    curl -N localhost:8000/chat --json '{"question": "Who are you?"}'

One line is llmtrace's: traces go to a local file. Where the HTTP requests have spans too, TTFT is
also counted from them and its parts add up to what the reader waits for:

    opentelemetry-instrument python examples/fastapi_stream.py
"""

import argparse
from concurrent.futures import ThreadPoolExecutor

import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from transformers import TextIteratorStreamer

import llmtrace
from llmtrace import demo

llmtrace.instrument()

app = FastAPI()
workers = ThreadPoolExecutor(max_workers=2)
model, tokenizer = demo.load()


class Question(BaseModel):
    """What is asked."""

    question: str
    max_new_tokens: int = 64


@app.post("/chat")
def chat(asked: Question):
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": asked.question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    ).to(model.device)
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    workers.submit(
        model.generate,
        **inputs,
        streamer=streamer,
        max_new_tokens=asked.max_new_tokens,
        do_sample=False,
    )
    return StreamingResponse(streamer, media_type="text/plain")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    uvicorn.run(app, port=parser.parse_args().port, log_level="warning")


if __name__ == "__main__":
    main()

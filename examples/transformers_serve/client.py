"""Some questions to ``transformers serve``, as any client of the OpenAI API would ask them.

``python client.py URL MODEL``. Waits until the server is up; nothing here knows of llmtrace.
"""

import json
import sys
import threading
import time
import urllib.error
import urllib.request

QUESTIONS = ("Name three rivers.", "What is 2 + 2?", "Write one sentence about the sea.")
PATIENCE_S = 120


def wait_for(url):
    """Return once the server answers."""
    limit = time.monotonic() + PATIENCE_S
    while not answers(url):
        if time.monotonic() > limit:
            sys.exit(f"{url} does not answer")
        time.sleep(0.2)


def answers(url):
    """Whether there is a server."""
    try:
        urllib.request.urlopen(f"{url}/v1/models", timeout=5).close()  # noqa: S310 - the user's own
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
    return True


def post(url, body):
    """Return the open response."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310
    return urllib.request.urlopen(request, timeout=PATIENCE_S)  # noqa: S310


def ask(url, model, question):
    """Stream an answer; says how long its first words took."""
    begun = time.perf_counter()
    messages = [{"role": "user", "content": question}]
    body = {"model": model, "messages": messages, "max_tokens": 24, "stream": True}
    text, first = "", None
    with post(f"{url}/v1/chat/completions", body) as response:
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                words = choice["delta"].get("content")
                if words:
                    first = first or time.perf_counter() - begun
                    text += words
    print(f"{question} {text!r}: first words after {(first or 0) * 1e3:.0f} ms")


def main(url, model):
    wait_for(url)
    clients = [threading.Thread(target=ask, args=(url, model, q)) for q in QUESTIONS]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": 8}
    with post(f"{url}/v1/completions", body) as response:
        print(json.load(response)["choices"][0]["text"])


if __name__ == "__main__":
    main(*sys.argv[1:])

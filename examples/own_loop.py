"""A decode loop of your own, traced with one added line.

Run it: ``python examples/own_loop.py``. The ``with`` is all that is needed; ``request.token()``
adds the exact time at which each token was selected.
"""

import torch

import llmtrace
from llmtrace import demo

handle = llmtrace.instrument()


def greedy(model, ids, count):
    """Return *count* tokens after *ids* ``[1, length]``, without ``generate()``."""
    tokens, cache = [], None
    with torch.inference_mode(), llmtrace.request() as request:
        for _ in range(count):
            out = model(ids, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            ids = out.logits[:, -1:].argmax(-1)
            request.token()
            tokens.append(int(ids[0, 0]))
    return tokens


def main():
    model, tokenizer = demo.load()
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    with llmtrace.capture() as records:
        tokens = greedy(model, ids, 16)
    (record,) = records
    print(tokenizer.decode(tokens))
    phases = [step.phase for step in record.steps]
    print(f"{phases.count('prefill')} prefill, {phases.count('decode')} decode steps")
    print(f"TTFT {record.ttft_s * 1e3:.0f} ms, TPOT {record.tpot_s * 1e3:.1f} ms")
    print(f"Trace: {handle.path}")


if __name__ == "__main__":
    main()

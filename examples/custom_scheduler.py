"""A scheduler of your own: sequences join and leave one batch, each is a request of its own.

Run it: ``python examples/custom_scheduler.py``. What is added for llmtrace: ``start()`` where a
request arrives, ``active()`` around each call of the model, ``token()`` where a token has been
chosen, ``end()``. Rows of a batch write their keys and values in the same column of the cache, so
one that joins has its own pushed to the right.
"""

import statistics
import time
from itertools import pairwise

import torch
from torch.nn.functional import pad

import llmtrace
from llmtrace import demo

SLOTS = 3
WORK = [  # arrives before this step of the scheduler, prompt, tokens wanted
    (0, "The capital of France is", 12),
    (0, "Water boils at", 5),
    (2, "In the beginning of the long winter, the old lighthouse keeper", 9),
    (3, "One, two, three,", 14),
    (4, "My favourite colour", 4),
]

handle = llmtrace.instrument()


class Sequence:
    """One request: its tokens, and this program's own stopwatch."""

    def __init__(self, model, tokenizer, prompt, wanted):
        self.ids = tokenizer(prompt, return_tensors="pt").input_ids.to(model.device)
        self.wanted = wanted
        self.tokens = []
        self.clock = [time.perf_counter()]
        self.request = llmtrace.request(model, attributes={"prompt": prompt})
        self.request.start(input_tokens=self.ids.shape[1])

    def chosen(self, token):
        self.tokens.append(int(token))
        self.request.token()
        self.clock.append(time.perf_counter())
        if len(self.tokens) == self.wanted:
            self.request.end(finish_reason="length")

    @property
    def done(self):
        return len(self.tokens) == self.wanted


class Batch:
    """The running sequences, one row each, and the cache they share."""

    def __init__(self, model):
        self.model = model
        self.rows = []
        self.cache = None
        self.mask = None  # [rows, columns]: which columns of the cache are a row's own
        self.calls = 0

    def join(self, sequence):
        """Run the prompt of *sequence* by itself, and take its row into the batch."""
        with llmtrace.request.active(sequence.request):
            out = self.model(sequence.ids, use_cache=True)
        self.calls += 1
        sequence.chosen(out.logits[0, -1].argmax())
        mask = torch.ones_like(sequence.ids)
        if self.rows:
            width = max(mask.shape[1], self.mask.shape[1])
            for mine, new in zip(self.cache.layers, out.past_key_values.layers, strict=True):
                mine.keys = torch.cat([_widen(mine.keys, width), _widen(new.keys, width)])
                mine.values = torch.cat([_widen(mine.values, width), _widen(new.values, width)])
            masks = [pad(m, (width - m.shape[1], 0)) for m in (self.mask, mask)]
            self.mask = torch.cat(masks)
        else:
            self.cache, self.mask = out.past_key_values, mask
        self.rows.append(sequence)

    def step(self):
        """Run one forward call for all rows: one more token for each."""
        last = self.mask.new_tensor([[row.tokens[-1]] for row in self.rows])
        positions = self.mask.sum(1, keepdim=True)
        self.mask = pad(self.mask, (0, 1), value=1)
        with llmtrace.request.active(*(row.request for row in self.rows)):
            out = self.model(
                last,
                attention_mask=self.mask,
                position_ids=positions,
                past_key_values=self.cache,
                use_cache=True,
            )
        self.calls += 1
        for row, logits in zip(self.rows, out.logits[:, -1], strict=True):
            row.chosen(logits.argmax())

    def leave(self):
        """Let go of the rows that are done."""
        stay = [i for i, row in enumerate(self.rows) if not row.done]
        self.rows = [self.rows[i] for i in stay]
        self.mask = self.mask[stay]
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys[stay], layer.values[stay]


def _widen(states, width):
    """Push keys or values ``[rows, heads, columns, size]`` to the right, up to *width* columns."""
    return pad(states, (0, 0, width - states.shape[2], 0))


@torch.inference_mode()
def serve(model, tokenizer, work):
    """Return the finished sequences of *work*, and the number of calls of the model."""
    batch, waiting, arrived = Batch(model), list(work), []
    queue, step = [], 0
    while waiting or queue or batch.rows:
        while waiting and waiting[0][0] <= step:
            _, prompt, wanted = waiting.pop(0)
            queue.append(Sequence(model, tokenizer, prompt, wanted))
            arrived.append(queue[-1])
        while queue and len(batch.rows) < SLOTS:
            batch.join(queue.pop(0))
        if batch.rows:
            batch.step()
            batch.leave()
        step += 1
    return arrived, batch.calls


def differences(record, clock):
    """Return how far llmtrace's TTFT and gaps are from this program's stopwatch, seconds."""
    own = [b - a for a, b in pairwise(clock)]
    return [abs(a - b) for a, b in zip([record.ttft_s, *record.itl_s], own, strict=True)]


def main():
    model, tokenizer = demo.load()
    with llmtrace.capture() as records:
        sequences, calls = serve(model, tokenizer, WORK)
    traced = {record.attributes["prompt"]: record for record in records}
    off = []
    for sequence, (_, prompt, wanted) in zip(sequences, WORK, strict=True):
        record = traced[prompt]
        off += differences(record, sequence.clock)
        print(f"{prompt!r}: {tokenizer.decode(sequence.tokens)!r}")
        print(
            f"  {record.input_tokens} tokens in, {record.output_tokens} of {wanted} out; "
            f"TTFT {record.ttft_s * 1e3:.0f} ms, TPOT {record.tpot_s * 1e3:.1f} ms"
        )
    tokens = sum(record.output_tokens for record in records)
    print(f"{len(records)} requests, {tokens} tokens, {calls} calls of the model")
    print(
        f"Off this program's own clock: median {statistics.median(off) * 1e3:.3f} ms, "
        f"largest {max(off) * 1e3:.3f} ms"
    )
    print(f"Trace: {handle.path}")


if __name__ == "__main__":
    main()

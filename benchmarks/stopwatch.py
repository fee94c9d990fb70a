"""A stopwatch of its own beside llmtrace: torch, transformers and ``time.perf_counter``, no more.

TTFT, ITL, TPOT, tokens per second of batches and of threads, and the bytes of the KV cache, taken
by hand with ``torch.cuda.synchronize()`` where it is due. What ``llmtrace bench`` says is held
against this: ``benchmarks/agreement.py``. It imports nothing of llmtrace.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, StoppingCriteriaList

LLAMA2_7B = {
    "model_type": "llama",
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
}


class Stamps:
    """Looks at the clock when a token has been selected, as a criterion that never stops.

    Args:
        waits: Tokens at which the device is waited for, counted from 0; waiting at every step slows
            what it measures.
    """

    def __init__(self, waits: Iterable[int] = ()) -> None:
        self._waits = frozenset(waits)
        self.times: list[float] = []

    def __call__(self, ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        if len(self.times) in self._waits:
            wait()
        self.times.append(time.perf_counter())
        return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)


def wait() -> None:
    """Wait until the device has done all it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def request(model: Any, ids: torch.Tensor, tokens: int, *, every: bool = False, **how: Any) -> dict:
    """Time one request.

    Args:
        model: In evaluation mode.
        ids: ``[rows, length]``, on its device.
        tokens: So many are generated, for every row.
        every: Wait for the device at every token: the gaps are each token's own then.
        how: More arguments of ``generate()``.

    Returns:
        ``ttft_s``, ``tpot_s``, ``itl_s`` (only with *every*), ``wall_s``, ``tgs``, ``start``,
        ``times``; absent is what does not exist.
    """
    stamps = Stamps(range(tokens) if every else (0, tokens - 1))
    wait()
    start = time.perf_counter()
    made = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        stopping_criteria=StoppingCriteriaList([stamps]),
        **{"do_sample": False, **how},
    )
    wait()
    wall = time.perf_counter() - start
    new = made.shape[0] * (made.shape[1] - ids.shape[1])
    times = stamps.times
    found = {
        "ttft_s": times[0] - start,
        "wall_s": wall,
        "tgs": new / (times[-1] - start),
        "start": start,
        "times": times,
        "rows": made.shape[0],
    }
    if len(times) > 1:
        found["tpot_s"] = (times[-1] - times[0]) / (len(times) - 1)
        if every:
            found["itl_s"] = [b - a for a, b in itertools.pairwise(times)]
    return found


def threads(
    model: Any, prompt: Callable[[int], torch.Tensor], tokens: int, count: int, each: int
) -> dict:
    """Run *count* threads of *each* requests; rates are of the time in which all had one running.

    A token is counted when the host has been told of it: without waiting for the device, which
    would wait for the other threads' work too.
    """
    results: list[list[dict]] = [[] for _ in range(count)]
    together = threading.Barrier(count)

    def work(number: int) -> None:
        together.wait()
        for turn in range(each):
            stamps = Stamps()
            ids = prompt(number * each + turn)
            start = time.perf_counter()
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                do_sample=False,
                stopping_criteria=StoppingCriteriaList([stamps]),
            )
            results[number].append({"start": start, "times": stamps.times})

    workers = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    every = [request for own in results for request in own]
    windows = busy(every, count)
    seen = [t for r in every for t in r["times"] if any(a < t <= b for a, b in windows)]
    alone = [len(r["times"]) / (r["times"][-1] - r["start"]) for r in every]
    return {
        "tgs": len(seen) / sum(b - a for a, b in windows),
        "tgs_per_request": statistics.mean(alone),
    }


def busy(requests: list[dict], count: int) -> list[tuple[float, float]]:
    """Return the spans of time in which *count* requests ran, from start to last token."""
    events = sorted([(r["start"], 1) for r in requests] + [(r["times"][-1], -1) for r in requests])
    running, spans = 0, []
    for (at, change), (after, _) in itertools.pairwise(events):
        running += change
        if running == count:
            spans.append((at, after))
    return spans


def kv_bytes(model: Any, ids: torch.Tensor, tokens: int, **how: Any) -> int:
    """Return the bytes of the tensors that a request's KV cache holds at its end."""
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        return_dict_in_generate=True,
        **{"do_sample": False, **how},
    )
    cache = out.get("cache") or out.past_key_values
    return sum(t.numel() * t.element_size() for t in tensors(cache))


def tensors(cache: Any) -> list[torch.Tensor]:
    """Return keys and values of every layer, however this release keeps them."""
    if isinstance(cache, (tuple, list)):
        return [t for layer in cache for t in layer[:2]]
    if hasattr(cache, "layers"):
        return [t for layer in cache.layers for t in (layer.keys, layer.values)]
    return [*cache.key_cache, *cache.value_cache]


def random_prompt(model: Any, length: int, seed: int, rows: int = 1) -> torch.Tensor:
    """Return random ids ``[rows, length]`` on the model's device."""
    generator = torch.Generator().manual_seed(seed)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = torch.randint(3, vocabulary, (rows, length), generator=generator)
    return ids.to(model.device)


def load(arguments: argparse.Namespace) -> Any:
    """Return the model, never stopping by itself."""
    gpu = torch.cuda.is_available()
    device = torch.device(arguments.device or ("cuda" if gpu else "cpu"))
    dtype = getattr(torch, arguments.dtype or ("bfloat16" if device.type == "cuda" else "float32"))
    torch.manual_seed(0)
    if arguments.random_weights:
        named = arguments.random_weights
        values = LLAMA2_7B if named == "llama2-7b" else json.loads(Path(named).read_text())
        config = AutoConfig.for_model(**values)
        torch.set_default_dtype(dtype)
        with device:
            model = AutoModelForCausalLM.from_config(config)
        torch.set_default_dtype(torch.float32)
    else:
        gguf = {"gguf_file": arguments.gguf_file} if arguments.gguf_file else {}
        model = AutoModelForCausalLM.from_pretrained(arguments.model, **gguf).to(device, dtype)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model.eval()


def measure(model: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Take every figure, after requests that warm up."""
    tokens, length = arguments.max_new_tokens, arguments.prompt_tokens

    def prompt(number: int, rows: int = 1) -> torch.Tensor:
        return random_prompt(model, length, arguments.seed + number, rows)

    for number in range(arguments.warmup):
        request(model, prompt(1_000_000 + number), tokens)
    found: dict[str, Any] = {"requests": []}
    for number in range(arguments.trials):
        one = request(model, prompt(number), tokens)
        one["itl_s"] = request(model, prompt(number), tokens, every=True).get("itl_s")
        found["requests"].append({k: one.get(k) for k in ("ttft_s", "tpot_s", "tgs", "itl_s")})
    found["tgs_batch"] = {
        rows: [request(model, prompt(n, rows), tokens)["tgs"] for n in range(arguments.trials)]
        for rows in arguments.batch
    }
    found["tgs_threads"] = {
        count: threads(model, prompt, tokens, count, arguments.trials)
        for count in arguments.threads
    }
    found["kv_cache_bytes"] = kv_bytes(model, prompt(0), tokens)
    return found


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Return medians, and means of rates."""
    requests = found["requests"]
    gaps = [gap for r in requests for gap in r["itl_s"] or []]
    tpot = [r["tpot_s"] for r in requests if r["tpot_s"] is not None]
    return {
        "ttft_s_p50": statistics.median(r["ttft_s"] for r in requests),
        "ttft_s_mean": statistics.mean(r["ttft_s"] for r in requests),
        "tpot_s_p50": statistics.median(tpot) if tpot else None,
        "itl_s_p50": statistics.median(gaps) if gaps else None,
        "tgs_batch": {rows: statistics.median(v) for rows, v in found["tgs_batch"].items()},
        "tgs_threads": {count: v["tgs"] for count, v in found["tgs_threads"].items()},
        "kv_cache_bytes": found["kv_cache_bytes"],
    }


def numbers(text: str) -> list[int]:
    """Parse whole numbers with commas between them; an empty text is none."""
    return [int(part) for part in text.split(",") if part.strip()]


def parser() -> argparse.ArgumentParser:
    """Return the options, those of ``llmtrace bench`` by their names."""
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    model = made.add_mutually_exclusive_group(required=True)
    model.add_argument("--model", metavar="PATH", help="a folder")
    model.add_argument("--random-weights", metavar="SHAPE", help="llama2-7b or a config.json")
    made.add_argument("--gguf-file", metavar="NAME", help="a GGUF file in the folder")
    made.add_argument("--dtype")
    made.add_argument("--device")
    made.add_argument("--prompt-tokens", type=int, default=128)
    made.add_argument("--max-new-tokens", type=int, default=32)
    made.add_argument("--trials", type=int, default=20)
    made.add_argument("--warmup", type=int, default=3)
    made.add_argument("--batch", type=numbers, default=[1, 4], metavar="ROWS,...")
    made.add_argument("--threads", type=numbers, default=[1, 4], metavar="N,...")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--json", metavar="FILE", help="write every value there")
    return made


def main() -> int:
    """Measure, print, write."""
    arguments = parser().parse_args()
    found = measure(load(arguments), arguments)
    said = summary(found)
    print(json.dumps(said, indent=1))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({**said, **found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

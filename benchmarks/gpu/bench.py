"""What the GPU benchmarks share: models of LLaMA-2's shape, the profiler's time line, results."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import transformers
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from torch.cuda.graphs import CUDAGraph
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

import llmtrace

SHAPES = {
    "llama2-7b": {
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 4096,
    },
}
QUANTIZATIONS = {
    "8bit": {"load_in_8bit": True},
    "nf4": {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_compute_dtype": torch.bfloat16,
    },
    "nf4-double": {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_compute_dtype": torch.bfloat16,
        "bnb_4bit_use_double_quant": True,
    },
}


class NullExporter(SpanExporter):
    """Takes every span and does nothing with it."""

    def export(self, spans):
        return SpanExportResult.SUCCESS


def null_provider() -> TracerProvider:
    """Return a provider whose spans are built, batched and thrown away."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(NullExporter()))
    return provider


def make_model(layers: int = 32, **more: object) -> LlamaForCausalLM:
    """Return a model of LLaMA-2-7B's shape with random weights in bf16 on the GPU."""
    config = LlamaConfig(**{**SHAPES["llama2-7b"], "num_hidden_layers": layers, **more})
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    return never_stopping(model)


def never_stopping(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Let random weights not stop a row by chance."""
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


@contextmanager
def saved(model: LlamaForCausalLM) -> Iterator[Path]:
    """Save *model* where loading is fast, as quantizing starts from a saved model."""
    memory = Path("/dev/shm")  # noqa: S108
    place = tempfile.mkdtemp(dir=memory if memory.is_dir() else None)
    try:
        model.save_pretrained(place)
        del model  # the caller may want its memory back
        yield Path(place)
    finally:
        shutil.rmtree(place)


def load_quantized(place: Path, kind: str) -> LlamaForCausalLM:
    """Load a saved model through bitsandbytes."""
    config = BitsAndBytesConfig(**QUANTIZATIONS[kind])
    model = LlamaForCausalLM.from_pretrained(
        place, quantization_config=config, dtype=torch.bfloat16, device_map="cuda"
    )
    return never_stopping(model.eval())


def prompt_of(tokens: int, rows: int = 1, seed: int = 0) -> torch.Tensor:
    """Return random token ids ``[rows, tokens]`` on the GPU."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(3, 32_000, (rows, tokens), device="cuda", generator=generator)


class TimeLine:
    """What torch.profiler saw: calls on the host, work on the device; nanoseconds since epoch."""

    def __init__(self, profiler: profile) -> None:
        events = list(profiler.profiler.kineto_results.events())
        # User annotations also appear on the device's lane: they are no work of its own.
        on_device = [e for e in events if e.device_type().name == "CUDA"]
        annotations = {e.name() for e in events if e.is_user_annotation()}
        self.work = [e for e in on_device if e.name() not in annotations]
        self.calls = [e for e in events if e.device_type().name == "CPU"]
        self._by_call: dict[int, list] = {}
        for event in self.work:
            self._by_call.setdefault(event.correlation_id(), []).append(event)

    def ranges(self, name: str) -> list[tuple[int, int]]:
        """Return the host's times in each annotation called *name*."""
        found = [(e.start_ns(), e.end_ns()) for e in self.calls if e.name() == name]
        return sorted(found)

    def work_called_in(self, begun: int, ended: int) -> list:
        """Return the device's work that was launched between two host times, in its order."""
        launched = []
        for call in self.calls:
            if begun <= call.start_ns() < ended and call.name().startswith(("cuda", "cu")):
                launched += self._by_call.get(call.correlation_id(), [])
        return sorted(launched, key=lambda e: e.start_ns())

    def busy_ns(self, begun: int, ended: int) -> int:
        """Return how long the device had work between two times.

        What one call launched counts as one piece: between the kernels of a CUDA graph the device
        waits for nobody.
        """
        busy, until = 0, begun
        pieces = (
            (min(e.start_ns() for e in launched), max(e.end_ns() for e in launched))
            for launched in self._by_call.values()
        )
        for first, last in sorted(pieces):
            start, end = max(first, until), min(last, ended)
            if end > start:
                busy += end - start
                until = end
        return busy


@contextmanager
def profiled() -> Iterator[profile]:
    """Profile a block, the device's work after it included."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        yield profiler
        torch.cuda.synchronize()


@contextmanager
def counting_captures() -> Iterator[list[int]]:
    """Count captures of CUDA graphs, by nobody but this script, in the last number listed."""
    counts = [0]
    begin = vars(CUDAGraph)["capture_begin"]

    def counted(self: CUDAGraph, *args: object, **kwargs: object) -> None:
        counts[-1] += 1
        return begin.__get__(self, CUDAGraph)(*args, **kwargs)

    CUDAGraph.capture_begin = counted
    try:
        yield counts
    finally:
        CUDAGraph.capture_begin = begin


@contextmanager
def annotated(model: LlamaForCausalLM) -> Iterator[None]:
    """Annotate each forward call of *model* from outside: torch's hooks, and the compiled call."""
    open_ranges: list[record_function] = []

    def before(*_: object) -> None:
        if not torch.compiler.is_compiling():
            open_ranges.append(record_function("a_forward"))
            open_ranges[-1].__enter__()

    def after(*_: object) -> None:
        if not torch.compiler.is_compiling():
            open_ranges.pop().__exit__(None, None, None)

    def get_compiled_call(config: object) -> Callable:
        compiled = type(model).get_compiled_call(model, config)

        def call(*args: object, **kwargs: object) -> object:
            with record_function("a_forward"):
                return compiled(*args, **kwargs)

        return call

    hooks = [model.register_forward_pre_hook(before), model.register_forward_hook(after)]
    model.get_compiled_call = get_compiled_call
    try:
        yield
    finally:
        del model.get_compiled_call
        for hook in hooks:
            hook.remove()


def environment() -> dict[str, object]:
    """Return the machine, the versions and the date."""
    found = {
        "gpu": torch.cuda.get_device_name(),
        "gpus": torch.cuda.device_count(),
        "cpu": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "llmtrace": llmtrace.__version__,
        "date": dt.datetime.now(dt.timezone.utc).date().isoformat(),
    }
    if "bitsandbytes" in sys.modules:
        found["bitsandbytes"] = sys.modules["bitsandbytes"].__version__
    return found


def arguments_of(
    description: str, **defaults: int | tuple[int, ...] | tuple[str, ...]
) -> argparse.Namespace:
    """Return the command line: the numbers and lists named, and where the result goes."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    for name, default in defaults.items():
        if isinstance(default, int):
            parser.add_argument(f"--{name}", type=int, default=default)
            continue
        kind = type(default[0])
        choices = default if kind is str else None
        parser.add_argument(f"--{name}", type=kind, nargs="+", choices=choices, default=default)
    parser.add_argument("--json", metavar="FILE", help="write the result there too")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("a CUDA device is needed, and there is none")
    return arguments


class Result:
    """Parts of a result, printed as they come, and whether all of them are as they should be."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.parts: dict[str, object] = {"environment": environment()}
        self.wrong: list[str] = []
        self._file = arguments.json
        self._begun = time.monotonic()

    def add(self, name: str, part: object, *, good: bool = True) -> None:
        """Take in a part and print it."""
        self.parts[name] = part
        if not good:
            self.wrong.append(name)
        print(("" if good else "WRONG ") + name, json.dumps(part), flush=True)
        self._write()

    @property
    def seconds(self) -> float:
        """How long this has been going on."""
        return time.monotonic() - self._begun

    def _write(self) -> None:
        self.parts["seconds"] = round(self.seconds, 1)
        self.parts["wrong"] = self.wrong
        if self._file:
            Path(self._file).write_text(json.dumps(self.parts, indent=1) + "\n")

    def exit_code(self) -> int:
        """Write the file and return 0, or 1 if something was wrong."""
        self.parts["environment"] = environment()
        self._write()
        print("wrong:", self.wrong or "nothing", f"({self.parts['seconds']} s)", flush=True)
        return int(bool(self.wrong))

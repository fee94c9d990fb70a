"""Loading what is measured: from a folder, a GGUF file, or as random weights of a shape."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from llmtrace import demo
from llmtrace.bench.settings import ModelChoice
from llmtrace.bench.shapes import shape
from llmtrace.errors import ConfigError, LlmtraceError, MissingExtraError

DEMO = "demo"
_TOKENIZER_FILES = ("tokenizer", "tokenization", "vocab", "merges", "tekken")


@dataclass(frozen=True, slots=True)
class Subject:
    """A model that is measured, in evaluation mode, and its tokenizer."""

    model: Any
    tokenizer: Any | None
    """None: of random weights, or of a folder that holds none."""
    choice: ModelChoice

    @property
    def device(self) -> Any:
        """Where input ids go."""
        return self.model.get_input_embeddings().weight.device

    @property
    def vocabulary(self) -> int:
        """How many ids there are."""
        return int(text_config(self.model).vocab_size)

    @property
    def longest(self) -> int | None:
        """Most positions the model was made for."""
        return getattr(text_config(self.model), "max_position_embeddings", None)


def text_config(model: Any) -> Any:
    """Return what the config says of a model's text; before 4.46 there is but one part."""
    config = model.config
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def load(choice: ModelChoice) -> Subject:
    """Return the model that *choice* names; takes seconds to minutes.

    Raises:
        ConfigError: The choice contradicts itself, or cannot be loaded.
        MissingExtraError: It needs a package that is not installed.
    """
    _check(choice)
    try:
        subject = _random(choice) if choice.random_weights else _saved(choice)
    except LlmtraceError:
        raise
    except (OSError, ValueError, ImportError, RuntimeError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        named = choice.random_weights or choice.model
        raise ConfigError(f"{named}: cannot be loaded: {reason}") from error
    subject.model.eval()
    _sound_padding(subject.model)
    return subject


def _check(choice: ModelChoice) -> None:
    """Look for what cannot work before anything is loaded."""
    import torch

    if (choice.model is None) == (choice.random_weights is None):
        raise ConfigError("give a model: either --model PATH or --random-weights SHAPE")
    if choice.gguf_file and choice.model in {None, DEMO}:
        raise ConfigError("--gguf-file names a file inside the folder --model")
    if choice.device and choice.device_map:
        raise ConfigError("--device and --device-map exclude each other")
    if choice.quantization != "none" and find_spec("bitsandbytes") is None:
        raise MissingExtraError(
            f"--quantization {choice.quantization} needs bitsandbytes: "
            "pip install 'llmtrace[quant]'"
        )
    if choice.device:
        try:
            device = torch.device(choice.device)
        except RuntimeError:
            raise ConfigError(f"--device {choice.device}: is no device, such as cuda:0") from None
        if device.type == "meta":
            raise ConfigError(f"--device {choice.device}: computes nothing")
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise ConfigError(
                f"--device {choice.device}: there is no such CUDA device here "
                f"({torch.cuda.device_count()} found)"
            )


def device_of(choice: ModelChoice) -> Any:
    """Return the torch device that a model without a device map is put on."""
    import torch

    return torch.device(choice.device or ("cuda" if torch.cuda.is_available() else "cpu"))


def _dtype(choice: ModelChoice) -> Any:
    import torch

    on_cpu = device_of(choice).type == "cpu" and not choice.device_map
    return getattr(torch, choice.dtype or ("float32" if on_cpu else "bfloat16"))


def _random(choice: ModelChoice) -> Subject:
    """Return a model with random weights; a quantized one goes through a saved one."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values = shape(str(choice.random_weights))
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    if choice.attn:
        config._attn_implementation = choice.attn  # noqa: SLF001 - there is no other way in
    config._name_or_path = Path(str(choice.random_weights)).stem  # noqa: SLF001 - its name in traces
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(_dtype(choice))
    try:
        with device_of(choice):
            model = AutoModelForCausalLM.from_config(config)
    finally:
        torch.set_default_dtype(before)
    if choice.quantization == "none" and not choice.device_map:
        return Subject(model, None, choice)
    with _scratch() as place:
        model.save_pretrained(place)
        del model
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        loaded = AutoModelForCausalLM.from_pretrained(place, **_how(choice))
    loaded.config._name_or_path = config._name_or_path  # noqa: SLF001
    return Subject(loaded, None, choice)


def _saved(choice: ModelChoice) -> Subject:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    place, gguf = _place(choice)
    named: dict[str, Any] = {"gguf_file": gguf} if gguf else {}
    told = gguf or _tells_tokens(Path(place))
    tokenizer = AutoTokenizer.from_pretrained(place, **named) if told else None
    stored = None if gguf else _stored_quantization(AutoConfig.from_pretrained(place))
    if stored and choice.quantization not in {"none", stored}:
        raise ConfigError(
            f"--quantization {choice.quantization}: {choice.model} was quantized before it was "
            f"saved, as {stored}"
        )
    how = _how(replace(choice, quantization="none") if stored else choice)
    if choice.dtype is None and not gguf and (stored or choice.quantization == "none"):
        how[_dtype_argument()] = "auto"
    if stored:
        # Such a model is made on its device: not every release can move it.
        how.setdefault("device_map", {"": device_of(choice)})
        choice = replace(choice, quantization=stored)
    model = AutoModelForCausalLM.from_pretrained(place, **named, **how)
    if choice.model == DEMO:
        model.config._name_or_path = demo.MODEL_NAME  # noqa: SLF001 - it would be a folder's name
    if choice.quantization == "none" and not choice.device_map:
        model = model.to(device_of(choice))
    return Subject(model, tokenizer, choice)


def _tells_tokens(place: Path) -> bool:
    """Return whether a tokenizer was saved with a model.

    Without its files transformers fails for some models, and for others makes one that knows no
    token. What is no folder here is a hub's name, which transformers looks up.
    """
    return not place.is_dir() or any(
        file.name.startswith(_TOKENIZER_FILES) or file.suffix == ".model"
        for file in place.iterdir()
    )


def _stored_quantization(config: Any) -> str | None:
    """Return what bitsandbytes made of a model before it was saved; None: nothing."""
    said = getattr(config, "quantization_config", None) or {}
    said = said if isinstance(said, dict) else said.to_dict()
    if said.get("load_in_8bit"):
        return "8bit"
    if not said.get("load_in_4bit"):
        return None
    if said.get("bnb_4bit_quant_type") != "nf4":
        return "4bit"
    return "nf4-double" if said.get("bnb_4bit_use_double_quant") else "nf4"


def _place(choice: ModelChoice) -> tuple[str, str | None]:
    """Return folder (or hub's name) and GGUF file of a saved model."""
    named = str(choice.model)
    path = demo.model_file() if named == DEMO else Path(named)
    if path.suffix == ".gguf" and path.is_file():
        return str(path.parent), path.name
    looks_local = path.is_absolute() or named.startswith(".") or named.count("/") != 1
    if looks_local and not path.is_dir():
        raise ConfigError(f"--model {named}: there is no such folder")
    if choice.gguf_file and not (path / choice.gguf_file).is_file():
        raise ConfigError(f"--gguf-file {choice.gguf_file}: there is no such file in {named}")
    return named, choice.gguf_file


def _how(choice: ModelChoice) -> dict[str, Any]:
    """Return the arguments of ``from_pretrained``."""
    how: dict[str, Any] = {_dtype_argument(): _dtype(choice)}
    if choice.attn:
        how["attn_implementation"] = choice.attn
    if choice.device_map:
        how["device_map"] = choice.device_map
    if choice.quantization != "none":
        how["quantization_config"] = _quantization(choice)
        how.setdefault("device_map", {"": device_of(choice)})
    return how


def _dtype_argument() -> str:
    """Return what ``from_pretrained`` calls the type of numbers: it changed with 4.56."""
    return "dtype" if transformers_release() >= (4, 56) else "torch_dtype"


def transformers_release() -> tuple[int, ...]:
    """Return the first two numbers of transformers' version."""
    import transformers

    return tuple(int(part) for part in transformers.__version__.split(".")[:2])


def _quantization(choice: ModelChoice) -> Any:
    from transformers import BitsAndBytesConfig

    # It writes a line per layer and token where it computes in another type, which takes time.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

    if choice.quantization == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="fp4" if choice.quantization == "4bit" else "nf4",
        bnb_4bit_compute_dtype=_dtype(choice),
        bnb_4bit_use_double_quant=choice.quantization == "nf4-double",
    )


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Lend a folder, in memory where that is possible."""
    memory = Path("/dev/shm")  # noqa: S108 - nothing secret is written there
    place = tempfile.mkdtemp(dir=memory if memory.is_dir() else None)
    try:
        yield Path(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _sound_padding(model: Any) -> None:
    """Name a padding id, or ``generate()`` warns at every call."""
    config = model.generation_config
    if config.pad_token_id is None:
        eos = config.eos_token_id
        config.pad_token_id = eos[0] if isinstance(eos, list) else (eos or 0)

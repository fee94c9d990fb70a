"""The real demonstration model, loaded once."""

import pytest
import torch

from llmtrace import demo


@pytest.fixture(scope="session")
def smollm2():
    """SmolLM2-135M-Instruct and its tokenizer."""
    torch.set_num_threads(2)
    model, tokenizer = demo.load()
    return model.to("cpu"), tokenizer

"""Whole programs in processes of their own."""

import os
import subprocess
import sys
import textwrap

import pytest

TINY = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
torch.set_num_threads(1)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
    num_attention_heads=2, max_position_embeddings=256, eos_token_id=None, pad_token_id=0)).eval()
ids = torch.tensor([[5, 6, 7]])

def generate(n=4, **kwargs):
    return model.generate(ids, max_new_tokens=n, do_sample=False, **kwargs)[0].tolist()
"""


@pytest.fixture
def program(tmp_path):
    """Write a program that may call ``generate(n)`` on a tiny model; returns its path."""

    def write(text, name="app.py", head="import llmtrace\n"):
        path = tmp_path / name
        path.write_text(head + TINY + textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def start(tmp_path):
    """Run a command in the temporary folder; returns the finished process."""

    def run(*command, timeout=120, **variables):
        environ = {**os.environ, **variables}
        return subprocess.run(
            [sys.executable, *map(str, command)],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run

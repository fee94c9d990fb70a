"""Several ranks under torchrun: tensor parallelism over gloo, and replicas."""

import json
import os
import subprocess
import sys
import textwrap
from collections import defaultdict

import pytest

PROGRAM = """
    import os, sys
    import torch
    import torch.distributed
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    folder, plan = sys.argv[1:]
    how = {"tp_plan": plan} if plan != "none" else {}
    model = LlamaForCausalLM.from_pretrained(folder, **how).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    prompt = torch.tensor([[5, 6, 7, 8]])
    before = [model.generate(prompt, max_new_tokens=n, do_sample=False).tolist() for n in (4, 6)]
    import llmtrace
    llmtrace.instrument(dir="traces")
    with llmtrace.capture() as records:
        after = [model.generate(prompt, max_new_tokens=n, do_sample=False).tolist() for n in (4, 6)]
    assert before == after
    assert [r.output_tokens for r in records] == [4, 6]
    assert all(r.world_size == 2 and r.rank == int(os.environ["RANK"]) for r in records)
    print("bytes", records[0].decode_bytes, flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def run(tmp_path, saved_model, plan):
    """Run the program on two ranks and return its request spans, by rank."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "LLMTRACE_"))}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launcher, str(program), str(saved_model), plan],
        cwd=tmp_path,
        env={**environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    spans = defaultdict(list)
    for file in sorted((tmp_path / "traces").iterdir()):
        for line in file.read_text().splitlines():
            for resource in json.loads(line).get("resourceSpans", ()):
                identity = {a["key"]: a["value"] for a in resource["resource"]["attributes"]}
                rank = int(identity["llmtrace.rank"]["intValue"])
                assert int(identity["llmtrace.world_size"]["intValue"]) == 2
                for scope in resource["scopeSpans"]:
                    named = [s for s in scope["spans"] if s["name"].startswith("text_completion")]
                    spans[rank] += named
    return spans


def test_a_tensor_parallel_request_is_one_trace(tmp_path, saved_model):
    """The first rank's request is the root, the other's is its child; each request its own."""
    spans = run(tmp_path, saved_model, "auto")
    assert [len(spans[rank]) for rank in (0, 1)] == [2, 2]
    for first, second in zip(spans[0], spans[1], strict=True):
        assert first["traceId"] == second["traceId"]
        assert not first.get("parentSpanId")
        assert second["parentSpanId"] == first["spanId"]
        assert second["spanId"] != first["spanId"]
    assert spans[0][0]["traceId"] != spans[0][1]["traceId"]


def test_requests_of_replicas_are_not_one(tmp_path, saved_model):
    """Two processes that each serve requests of their own have traces of their own."""
    spans = run(tmp_path, saved_model, "none")
    traces = [span["traceId"] for rank in (0, 1) for span in spans[rank]]
    assert len(set(traces)) == 4
    assert not any(span.get("parentSpanId") for rank in (0, 1) for span in spans[rank])

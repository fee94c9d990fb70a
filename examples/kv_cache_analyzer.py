"""The KV cache while text is generated: each layer's shape and bytes, and what is left behind.

Run it::

    python examples/kv_cache_analyzer.py --model_path ./llama2-7b-4bit --prompt_file prompts.txt

``--model_path demo`` measures the demonstration model; ``--help`` names the other options, which
are those of ``llmtrace bench kv``.
"""

import sys

from llmtrace.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "kv", *sys.argv[1:]]))

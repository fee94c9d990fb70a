"""Inter-token latency over token position, from the device's own clock, as CSV and PNG.

Run it::

    python examples/itl_profiler.py --model_path ./llama2-7b-4bit --prompt_file prompts.txt

``--model_path demo`` measures the demonstration model; ``--help`` names the other options, which
are those of ``llmtrace bench itl``.
"""

import sys

from llmtrace.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "itl", *sys.argv[1:]]))

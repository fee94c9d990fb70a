"""Tokens per second under 1 to 8 requests at once: the curve, and a heat map of what was in use.

Run it::

    python examples/tgs_stress_test.py --model_path ./llama2-7b-4bit

``--model_path demo`` measures the demonstration model; ``--help`` names the other options, which
are those of ``llmtrace bench tgs``.
"""

import sys

from llmtrace.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "tgs", *sys.argv[1:]]))

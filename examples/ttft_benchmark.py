r"""Time to first token over many requests: mean, median, P95, standard deviation, a histogram.

Run it::

    python examples/ttft_benchmark.py --model_path ./llama2-7b-4bit \
        --prompt_file prompts.txt --trials 100

The last line reads ``TTFT_mean=362.4ms, TTFT_p95=412.8ms, std=28.3ms``. ``--model_path demo``
measures the demonstration model; ``--help`` names the other options, which are those of ``llmtrace
bench ttft``. JSON, CSV, PNG and a trace file are in the folder that ``--out`` names.
"""

import sys

from llmtrace.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "ttft", *sys.argv[1:]]))

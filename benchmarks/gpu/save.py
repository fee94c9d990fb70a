"""Save a model of LLaMA-2-7B's shape with random weights, for the benchmarks that load one.

python benchmarks/gpu/save.py FOLDER
"""

import sys

from bench import make_model

make_model().save_pretrained(sys.argv[1])

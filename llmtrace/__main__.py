"""``python -m llmtrace``."""

import sys

from llmtrace.cli import main

if __name__ == "__main__":
    sys.exit(main())

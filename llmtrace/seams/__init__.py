"""Everything llmtrace knows of third-party attributes, one module per part of a library."""

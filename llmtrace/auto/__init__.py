"""Tracing a program without changing a line of it: what ``llmtrace run`` starts."""

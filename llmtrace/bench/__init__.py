"""The measuring tools: TTFT, ITL, TGS, KV cache, and settings side by side.

They run a model themselves and measure it through llmtrace, so that every run also leaves a trace
file for ``llmtrace report``. Durations are seconds, sizes bytes.
"""

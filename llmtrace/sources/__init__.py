"""Recorded traces back to records: one module per kind of input."""

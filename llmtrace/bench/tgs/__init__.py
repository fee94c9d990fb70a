"""Tokens per second with several requests at a time: load, resources, what is lost."""

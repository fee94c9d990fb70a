"""A report as one page for a browser: everything in it, nothing fetched."""

from llmtrace.reports.html.page import render

__all__ = ["render"]

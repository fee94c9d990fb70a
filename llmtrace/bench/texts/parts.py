"""What the texts of all tools are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from llmtrace.analysis.findings import merge_findings
from llmtrace.analysis.summary import Values
from llmtrace.bench.cautions import Caution
from llmtrace.records import RequestRecord
from llmtrace.reports import text
from llmtrace.reports.wording import clean

BAR_WIDTH = 40
BINS = 12


def heading(header: Mapping[str, Any]) -> RenderableType:
    """Return what was measured, on what."""
    model, environment = header["model"], header["environment"]
    weights = " (random weights)" if model["random_weights"] else ""
    gpus = [gpu["name"] for gpu in environment["gpus"]]
    where = f"{model['device']}: {gpus[0]}" if gpus else f"cpu: {environment['cpu']['model']}"
    versions = environment["versions"]
    said = ", ".join(
        f"{name} {versions[name]}" for name in ("torch", "transformers") if name in versions
    )
    return Group(
        Text(f"{clean(model['name'])}{weights} on {clean(where)}", style="bold"),
        Text(
            f"{said}; cache {header['generation']['cache']}; quantization {model['quantization']}"
        ),
    )


def cautions(found: Sequence[Caution]) -> RenderableType:
    """Return the reasons to doubt, one a line."""
    if not found:
        return Text("Cautions: none")
    lines = [Text(f"{caution.code}  {caution.text}") for caution in found]
    return Group(
        Text("Cautions", style="bold yellow"), *(Padding(said, (0, 0, 0, 3)) for said in lines)
    )


def findings(records: Iterable[RequestRecord]) -> list[RenderableType]:
    """Return the findings of the requests, such as a consumer that held them up; often none."""
    found = merge_findings(list({id(record): record for record in records}.values()))
    return [Text(), text.findings(found)] if found else []


def histogram(values: Values, unit: str, scale: float) -> RenderableType:
    """Return a histogram of bars, a line each.

    Args:
        values: At least one.
        unit: Of the bounds shown.
        scale: From the values' unit to *unit*.
    """
    counts, edges = np.histogram(values * scale, bins=min(BINS, max(1, values.size)))
    most = int(counts.max())
    lines = []
    for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
        bar = "#" * round(BAR_WIDTH * int(count) / most)
        lines.append(Text(f"{low:10,.2f} to {high:10,.2f} {unit}  {count:5,}  {bar}"))
    return Group(*lines)

"""docs/compatibility.md from the results of ``scripts/matrix``.

python scripts/compatibility.py RESULT.json ...                 print the page
python scripts/compatibility.py --check PAGE RESULT.json ...    compare the results with a page
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

SIGNS = {"right": "✓", "not in this version": "no", "not observable": "(✓)", "wrong": "✗"}
GROUPS = (
    "modes",
    "calls",
    "stopping",
    "caches",
    "assisted",
    "models",
    "overrides",
    "own_ways",
    "batching",
    "errors",
)
"""The modules of tests/matrix, in the order of the page."""

HEAD = """\
# Compatibility

Every generation mode under every release of transformers that llmtrace supports: are the numbers
right? Written by `make matrix`; do not edit.

- ✓ right: request count, one prefill, steps, input tokens (padding and cache), output tokens of
  each row, finish reasons, which latencies exist and that they add up, spans, and the same token
  ids as without llmtrace.
- (✓) right as far as it goes; what cannot be observed is absent, and the record says so with a
  finding.
- no: not in this version of transformers, or not on this machine.

The truth comes from counters of the tests' own (`tests/matrix`): calls of the model's `forward`,
what a streamer is handed, the returned ids. Models are tiny, with random weights, on the CPU.
A row of the table can stand for several tests.

"""


def order(cell: dict[str, Any]) -> int:
    """Return where a cell's module stands on the page."""
    group = cell["group"]
    return GROUPS.index(group) if group in GROUPS else len(GROUPS)


def table(results: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Return the table's lines and the footnotes."""
    modes: dict[str, dict[str, Any]] = {}
    for result in results:
        for mode, cell in result["cells"].items():
            modes.setdefault(mode, cell)
    versions = [result["version"] for result in results]
    lines = ["| mode | " + " | ".join(versions) + " |", "|---|" + ":-:|" * len(versions)]
    notes: list[str] = []
    for mode in sorted(modes, key=lambda mode: order(modes[mode])):
        cells = [sign(result["cells"].get(mode), notes) for result in results]
        lines.append(f"| {mode} | " + " | ".join(cells) + " |")
    return lines, notes


def sign(cell: dict[str, Any] | None, notes: list[str]) -> str:
    """Return a cell's text, and add its note to *notes*."""
    if cell is None:
        cell = {"result": "wrong", "note": "No test ran."}
    text = SIGNS[cell["result"]]
    note = cell["note"]
    if not note:
        return text
    if note not in notes:
        notes.append(note)
    return f"{text} [^{notes.index(note) + 1}]"


def page(results: list[dict[str, Any]]) -> str:
    """Return the whole page."""
    lines, notes = table(results)
    torch = results[-1]["torch"].partition("+")[0]
    made = f"Made with Python {platform.python_version()} and torch {torch}.\n\n"
    footnotes = [f"[^{number}]: {note}." for number, note in enumerate(notes, 1)]
    return HEAD + made + "\n".join([*lines, "", *footnotes]) + "\n"


def differences(text: str, results: list[dict[str, Any]]) -> list[str]:
    """Return where *results* are not what the page *text* says."""
    rows = [
        [
            cell.strip().partition(" ")[0] if column else cell.strip()
            for column, cell in enumerate(line.strip("|\n ").split(" | "))
        ]
        for line in text.splitlines()
        if line.startswith("| ")
    ]
    versions = rows[0][1:] if rows else []
    said = {row[0]: dict(zip(versions, row[1:], strict=False)) for row in rows[1:]}
    return [
        f"{mode}, transformers {result['version']}: {cell['result']}; the page says "
        f"{said.get(mode, {}).get(result['version'], 'nothing')}"
        for result in results
        for mode, cell in result["cells"].items()
        if said.get(mode, {}).get(result["version"]) != SIGNS[cell["result"]]
    ]


def main() -> int:
    """Print the page, or check one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", type=Path, metavar="PAGE")
    parser.add_argument("results", type=Path, nargs="+")
    arguments = parser.parse_args()
    results = [json.loads(path.read_text()) for path in arguments.results]
    results.sort(key=lambda result: [int(part) for part in result["version"].split(".")])
    if arguments.check is None:
        sys.stdout.write(page(results))
        return 0
    found = differences(arguments.check.read_text(), results)
    sys.stderr.write("".join(f"{line}\n" for line in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""Writes the study's page from its template, page.md, and the results.

    python examples/study/page.py --out docs/assets/study

A number stands in ``{{EXPERIMENT/STORE/WAY/KEY FORMAT}}``, where KEY may have dots for what is within and FORMAT is one of
Python's. ``A : B`` instead of a place is the one divided by the other. ``{{machine}}`` is where bars were measured.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from common import HERE, arguments

TEMPLATE = HERE / "page.md"
PAGE = HERE.parents[1] / "docs/project/study.md"
NUMBER = re.compile(r"\{\{([^{}]+/[^{}]+) (\S+)\}\}")


def value(results: Path, place: str) -> float:
    """A number of the results.

    Raises:
        LookupError: It isn't there.
    """
    experiment, store, way, key = place.strip().split("/")
    found = json.loads((results / f"{experiment}.json").read_text())
    if found["size_name"] != "whole":
        raise LookupError(f"{experiment}: of the size {found['size_name']}, whose numbers mean nothing")
    rows = [row for row in found["rows"] if row["store"] == store and row["way"] == way]
    if len(rows) != 1 or "error" in rows[0]:
        raise LookupError(f"{place}: {rows[0]['error'] if rows else 'no such row'}")
    number = rows[0]
    for part in key.split("."):
        number = number[part]
    return float(number)


def filled(text: str, results: Path) -> str:
    """The page with the numbers of these results."""

    def told(match: re.Match[str]) -> str:
        numbers = [value(results, place) for place in match[1].split(" : ")]
        number = numbers[0] / numbers[1] if len(numbers) == 2 else numbers[0]
        return f"{number:{match[2]}}"

    def machine(match: re.Match[str]) -> str:
        found = json.loads((results / "bars.json").read_text())["machine"]
        versions = ", ".join(f"{package} {version}" for package, version in found["versions"].items())
        return f"{len(found['gpus'])} x {found['gpus'][0]}, {found['cores']} cores; {versions}"

    return re.sub(r"\{\{machine\}\}", machine, NUMBER.sub(told, text))


if __name__ == "__main__":
    PAGE.write_text(filled(TEMPLATE.read_text(), arguments(__doc__).out))

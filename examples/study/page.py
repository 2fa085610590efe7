"""Writes the numbers of the results into the study's page.

    python examples/study/page.py --out docs/assets/study

A number of the page stands in ``<span data-study="EXPERIMENT/STORE/WAY/KEY FORMAT">``, where KEY may have dots for what is within
and FORMAT is one of Python's. ``A : B`` instead of a place is the one divided by the other.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from common import HERE, arguments

PAGE = HERE.parents[1] / "docs/project/study.md"
SPAN = re.compile(r'(<span data-study="([^"]+) (\S+)">)([^<]*)(</span>)')


def value(results: Path, place: str) -> float:
    """A number of the results.

    Raises:
        LookupError: It isn't there.
    """
    experiment, store, way, key = place.strip().split("/")
    found = json.loads((results / f"{experiment}.json").read_text())
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
        numbers = [value(results, place) for place in match[2].split(" : ")]
        number = numbers[0] / numbers[1] if len(numbers) == 2 else numbers[0]
        return f"{match[1]}{number:{match[3]}}{match[5]}"

    return SPAN.sub(told, text)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(), arguments(__doc__).out))

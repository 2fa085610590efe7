"""Writes the study's page from its template, page.md, and the results.

    python examples/study/page.py --out docs/assets/study

A number stands in ``{{EXPERIMENT/STORE/WAY/KEY FORMAT}}``, where KEY may have dots for what is within and FORMAT is one of
Python's. ``A : B`` instead of a place is the one divided by the other. ``{{machine EXPERIMENT}}`` is where it was measured.
A section whose experiment has no results is left out, and a number for which an experiment had no time is "not measured".
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

from common import HERE, arguments

TEMPLATE = HERE / "page.md"
PAGE = HERE.parents[1] / "docs/project/study.md"
NUMBER = re.compile(r"\{\{([^{}]+/[^{}]+) (\S+)\}\}")


def value(results: Path, place: str) -> float | None:
    """A number of the results; nothing where the experiment had no time for it.

    Raises:
        LookupError: It isn't there.
    """
    experiment, store, way, key = place.strip().split("/")
    found = json.loads((results / f"{experiment}.json").read_text())
    if found["size_name"] != "whole":
        raise LookupError(f"{experiment}: of the size {found['size_name']}, whose numbers mean nothing")
    rows = [row for row in found["rows"] if row["store"] == store and row["way"] == way]
    if len(rows) == 1 and rows[0].get("error", "").startswith("not measured"):
        return None
    if len(rows) != 1 or "error" in rows[0]:
        raise LookupError(f"{place}: {rows[0]['error'] if rows else 'no such row'}")
    number = rows[0]
    for part in key.split("."):
        number = number[part]
    return float(number)


def _places(match: re.Match[str]) -> list[str]:
    return match[1].split(" : ")


def filled(text: str, results: Path) -> str:
    """The page with the numbers of these results."""

    def told(match: re.Match[str]) -> str:
        numbers = [value(results, place) for place in _places(match)]
        there = [number for number in numbers if number is not None]
        if len(there) < len(numbers):
            return "not measured"
        return f"{there[0] / there[1] if len(there) == 2 else there[0]:{match[2]}}"

    def machine(match: re.Match[str]) -> str:
        found = json.loads((results / f"{match[1]}.json").read_text())["machine"]
        versions = ", ".join(f"{package} {version}" for package, version in found["versions"].items())
        return f"{len(found['gpus'])} x {found['gpus'][0]}, {found['cores']} cores; {versions}"

    def has_results(section: str) -> bool:
        places = itertools.chain.from_iterable(map(_places, NUMBER.finditer(section)))
        return all((results / f"{place.strip().split('/')[0]}.json").exists() for place in places)

    sections = filter(has_results, re.split(r"^(?=## )", text, flags=re.MULTILINE))
    return re.sub(r"\{\{machine (\S+)\}\}", machine, NUMBER.sub(told, "".join(sections)))


if __name__ == "__main__":
    PAGE.write_text(filled(TEMPLATE.read_text(), arguments(__doc__).out))

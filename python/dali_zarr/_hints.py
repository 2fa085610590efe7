"""Ends of messages about names that don't exist: the name that was probably meant."""

import difflib
import re
from collections.abc import Iterable

_UNKNOWN = (
    re.compile(r"expected an array '(?P<name>[^']*)', but found the arrays (?P<known>'[^']*'(?:, '[^']*')*)"),
    re.compile(r'no array has a dimension "(?P<name>[^"]*)"; the dimensions are (?P<known>[^;\n]*)'),
)


def did_you_mean(name: str, known: Iterable[str], otherwise: str, prefix: str = "") -> str:
    """The end of a message about an unknown name."""
    like = difflib.get_close_matches(name, sorted(known), 1)
    return f"did you mean {prefix}{like[0]}?" if like else otherwise


def hinted(message: str) -> str:
    """A message about an array or dimension that doesn't exist, with the one that was probably meant at the end."""
    for pattern in _UNKNOWN:
        if found := pattern.search(message):
            hint = did_you_mean(found["name"], (name.strip("' ") for name in found["known"].split(",")), "")
            return f"{message}; {hint}" if hint else message
    return message

"""Ends of messages about names that don't exist: the name that was probably meant."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], otherwise: str, prefix: str = "") -> str:
    """The end of a message about an unknown name."""
    like = difflib.get_close_matches(name, sorted(known), 1)
    return f"did you mean {prefix}{like[0]}?" if like else otherwise

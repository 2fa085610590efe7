"""Ends of messages about names that don't exist: the name that was probably meant."""

import difflib
import unicodedata
from collections.abc import Iterable

# Names that are less alike than this (0 to 1) aren't suggested.
_ALIKE = 0.65
# A name with fewer letters begins other names by chance.
_BEGINNING = 3


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that was probably meant, or None. It is the one spelled most like ``name`` (of equally
    similar ones, one that begins with it), else the only path that ends with it, else the only name that begins with
    it. Case doesn't matter."""
    given, lower = name.lower(), {one.lower(): one for one in sorted(known)}
    likeness = difflib.SequenceMatcher(b=given)

    def rank(one: str) -> tuple[float, bool]:
        likeness.set_seq1(one)
        return likeness.ratio(), one.startswith(given)

    like = sorted(difflib.get_close_matches(given, lower, 4, _ALIKE), key=rank)[-1:]
    ended = [one for one in lower if one.rpartition("/")[2] == given]
    begun = [one for one in lower if one.startswith(given) and len(given) >= _BEGINNING]
    found = like or (ended if len(ended) == 1 else begun)
    return lower[found[0]] if len(found) == 1 else None


def did_you_mean(name: str, known: Iterable[str], otherwise: str, prefix: str = "") -> str:
    """Returns the end of a message about an unknown name: the name that was probably meant, or ``otherwise``."""
    like = nearest(name, known)
    if like is None:
        return otherwise
    # Names may have control characters.
    like = "".join(repr(c)[1:-1] if unicodedata.category(c) == "Cc" else c for c in like)
    return f"did you mean {prefix}{like}?"

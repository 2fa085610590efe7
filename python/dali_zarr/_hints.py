"""Ends of messages about names that don't exist: the name that was probably meant."""

import difflib
from collections.abc import Iterable

# Names that are less alike aren't told.
_ALIKE = 0.65
# So few letters begin names by chance.
_BEGINNING = 3


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant: the one spelled most like it (of equals the one that begins with it), else the only
    path that ends with it, else the only name that begins with it. Capitals count as small letters."""
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
    """The end of a message about an unknown name."""
    like = nearest(name, known)
    return otherwise if like is None else f"did you mean {prefix}{like}?"

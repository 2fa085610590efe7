"""Arrays with stores of their own, which commands take beside a store or in the place of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from .._arguments import names, values


def listed(arrays: Any) -> list[str] | None:
    """Returns the arrays that ``arrays`` names, each once; None where it is left out."""
    if arrays is None:
        return None
    found = list(cast(Mapping[str, Any], arrays).values()) if isinstance(arrays, Mapping) else values.items(arrays)
    return list(dict.fromkeys(values.expanded(array) for array in found))


def has_all(arrays: Any) -> bool:
    """Returns whether all of ``arrays`` have stores of their own, so that no other store is needed."""
    found = listed(arrays)
    return bool(found) and all(names.is_location(array) for array in found)


def places(stores: list[str], arrays: Any) -> list[str | None]:
    """Returns the stores that are looked at one by one. None stands for the arrays' own stores, where all of ``arrays``
    have one.

    Raises:
        ValueError: There are several stores beside arrays with stores of their own.
    """
    if len(stores) > 1 and any(names.is_location(array) for array in listed(arrays) or []):
        raise ValueError(
            f"--arrays: expected one store at most beside arrays that have stores of their own, but found {' '.join(stores)}"
        )
    return [None] if has_all(arrays) and not stores else [*stores]

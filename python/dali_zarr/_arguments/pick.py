"""``pick`` as a dictionary, turned into the strings that the operator takes, and back.

Whole numbers are indices. Floating-point numbers are labels (deprecated in favour of ``sel``), which the engine looks up in the
coordinates of each store.
Which of the two a list holds is decided by the Python type alone, never by what the store holds.
"""

import numbers
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, cast

from .. import _native

# The arguments that decide in which coordinates labels are looked up.
_PLACES = ("path", "arrays", "dims", "storage_options")


def to_strings(arguments: dict[str, Any]) -> list[str]:
    """Returns the operator's form of ``arguments["pick"]``, e.g. ``["level=0,5"]``. The other arguments are in that
    form already."""
    spec = {name: arguments[name] for name in _PLACES if arguments.get(name) is not None}
    return [_entry(dim, _list(items), spec) for dim, items in arguments["pick"].items()]


def by_dim(given: Any) -> dict[str, list[list[int]]]:
    """Returns the lists of indices by dimension, from a dictionary or the operator's form: one list for all stores, or
    one for each. Empty where the items are labels."""
    if isinstance(given, Mapping):
        return {str(dim).strip(): _lists(_list(items)) for dim, items in cast(Mapping[Any, Any], given).items()}
    entries = (str(entry).rpartition("=") for entry in ([] if given is None else _list(given)))
    return {dim.strip(): _lists([one.split(",") for one in text.split("|")]) for dim, _, text in entries}


def _lists(items: list[Any]) -> list[list[int]]:
    nested = all(isinstance(item, Iterable) and not isinstance(item, str) for item in items)
    lists = [_list(item) for item in items] if nested else [items]
    if not all(str(i).strip().lstrip("-").isdigit() for one in lists for i in one):
        return []
    return [[int(i) for i in one] for one in lists]


def _list(items: Any) -> list[Any]:
    return [items] if isinstance(items, str) or not isinstance(items, Iterable) else list(cast(Iterable[Any], items))


def _entry(dim: str | int, items: list[Any], spec: dict[str, Any]) -> str:
    if all(_is_index(item) for item in items):
        return f"{dim}={_joined(items)}"
    if all(isinstance(item, numbers.Real) and not isinstance(item, numbers.Integral) for item in items):
        warnings.warn(
            f"zarr_reader: pick: {dim!r}: labels in pick are deprecated; write sel={{{dim!r}: ...}}", DeprecationWarning,
            stacklevel=2,
        )
        return _native.pick_labels(spec, str(dim), [float(item) for item in items])
    # A list of indices for each store.
    lists = [_list(item) for item in items]
    if all(isinstance(item, Iterable) for item in items) and all(_is_index(i) for one in lists for i in one):
        return f"{dim}={'|'.join(map(_joined, lists))}"
    kinds = ", ".join(sorted({type(item).__name__ for item in items}))
    raise TypeError(
        f"zarr_reader: pick: {dim!r}: expected whole numbers (indices) or floating-point numbers (labels), but found "
        f"{kinds}; give the indices of other labels"
    )


def _is_index(item: Any) -> bool:
    return isinstance(item, numbers.Integral) and item is not True and item is not False


def _joined(indices: list[Any]) -> str:
    return ",".join(str(int(i)) for i in indices)

"""``pick`` as a dictionary, turned into the strings that the operator takes, and back.

A value that is a dictionary itself is for the output of that name, all others are for every output. In the operator's form
strings by output stand in dictionaries, one for each output: ``["level=0,5", {"target": ["channel=1"]}]``.

Whole numbers are indices. Floating-point numbers are labels (deprecated in favour of ``sel``), which the engine looks up in the
coordinates of each store.
Which of the two a list holds is decided by the Python type alone, never by what the store holds.
"""

import numbers
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, cast

from .. import _native

# The arguments that decide in which coordinates labels are looked up.
_PLACES = ("path", "arrays", "dims", "storage_options")


def to_strings(arguments: dict[str, Any]) -> list[str | dict[str, list[str]]]:
    """Returns the operator's form of ``arguments["pick"]``, e.g. ``["level=0,5"]``. The other arguments are in that
    form already.

    Raises:
        TypeError: An item is none that can be picked.
    """
    spec = {name: arguments[name] for name in _PLACES if arguments.get(name) is not None}
    found: list[str | dict[str, list[str]]] = []
    for key, items in arguments["pick"].items():
        if isinstance(items, Mapping):
            of = cast(Mapping[Any, Any], items)
            deep = next((dim for dim, own in of.items() if isinstance(own, Mapping)), None)
            if deep is not None:
                raise TypeError(
                    f"zarr_reader: pick: {str(key)!r}: expected indices by dimension, but found another dictionary in {deep!r}"
                )
            found.append({str(key): [_entry(dim, _list(own), spec, str(key)) for dim, own in of.items()]})
        else:
            found.append(_entry(key, _list(items), spec))
    return found


def is_by_output(given: Any) -> bool:
    """Whether a dictionary, or the operator's form, has indices for single outputs."""
    items = cast(Mapping[Any, Any], given).values() if isinstance(given, Mapping) else [] if given is None else _list(given)
    return any(isinstance(item, Mapping) for item in items)


# The output, or None for all; the dimension; the lists of indices: one for all stores, or one for each.
Entry: TypeAlias = tuple[str | None, str, list[list[int]]]


def entries(given: Any, output: str | None = None) -> list[Entry]:
    """Returns what is picked, from a dictionary or the operator's form. Lists are empty where the items are labels."""
    found: list[Entry] = []
    if isinstance(given, Mapping):
        for key, items in cast(Mapping[Any, Any], given).items():
            if isinstance(items, Mapping):
                found += entries(items, str(key))
            else:
                found.append((output, str(key).strip(), _lists(_list(items))))
        return found
    for entry in [] if given is None else _list(given):
        if isinstance(entry, Mapping):
            for name, own in cast(Mapping[Any, Any], entry).items():
                found += entries(own, str(name))
        else:
            dim, _, text = str(entry).rpartition("=")
            found.append((output, dim.strip(), _lists([one.split(",") for one in text.split("|")])))
    return found


def _lists(items: list[Any]) -> list[list[int]]:
    nested = all(isinstance(item, Iterable) and not isinstance(item, str) for item in items)
    lists = [_list(item) for item in items] if nested else [items]
    if not all(str(i).strip().lstrip("-").isdigit() for one in lists for i in one):
        return []
    return [[int(i) for i in one] for one in lists]


def _list(items: Any) -> list[Any]:
    return [items] if isinstance(items, str) or not isinstance(items, Iterable) else list(cast(Iterable[Any], items))


def _entry(dim: str | int, items: list[Any], spec: dict[str, Any], output: str | None = None) -> str:
    if all(_is_index(item) for item in items):
        return f"{dim}={_joined(items)}"
    if output is None and all(isinstance(item, numbers.Real) and not isinstance(item, numbers.Integral) for item in items):
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
    if output is not None:
        raise TypeError(
            f"zarr_reader: pick: {output!r}: {dim!r}: expected whole numbers (indices) for a single output, but found {kinds}"
        )
    raise TypeError(
        f"zarr_reader: pick: {dim!r}: expected whole numbers (indices) or floating-point numbers (labels), but found "
        f"{kinds}; give the indices of other labels"
    )


def _is_index(item: Any) -> bool:
    return isinstance(item, numbers.Integral) and item is not True and item is not False


def _joined(indices: list[Any]) -> str:
    return ",".join(str(int(i)) for i in indices)

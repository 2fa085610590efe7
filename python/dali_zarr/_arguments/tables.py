"""Tables: ``starts`` and ``weights``, as paths or as arrays in memory; and what readers that are opened again keep."""

import os
import weakref
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from .. import _native
from . import paths, values

# The type that the elements of each table become, and its name in messages.
_TYPES = {"starts": (np.int64, "whole numbers"), "weights": (np.float64, "numbers")}
NAMES = frozenset(_TYPES)
# How the names of copies begin.
_KEPT = "table:"


# The hidden argument with the name of a reader's first opening.
OPENING = "_opening"


class Kept(str):
    """The name of something that the library holds, as long as this name is alive or a reader uses it: a copy of a table,
    credentials, or what a reader found when it was opened first.

    DALI's operators take text, and are built later than they are called, so whatever stands for the operator until then holds
    the name (:mod:`.._wrap`)."""

    def __deepcopy__(self, _memo: dict[int, Any]) -> Self:
        return self


def check_portable(arguments: Mapping[str, Any]) -> None:
    """Raises TypeError if a table or credentials are in the memory of this process: another process doesn't have them."""
    for name in NAMES & arguments.keys():
        if isinstance(arguments[name], Kept):
            raise TypeError(
                f"dali_zarr: {name}: a loader can be pickled only with a path, but found an array in memory; write it to a file "
                "with numpy.save, and give its path"
            )
    if any(isinstance(option, Kept) for option in values.items(arguments.get("storage_options") or [])):
        raise TypeError(
            "dali_zarr: path: a loader can be pickled only without credentials, but the store that was given has some; set them in "
            "the environment, and give the store's URL"
        )


def named(name: str, value: Any, in_store: bool = True) -> str | None:
    """Returns the text by which the operator knows a table: a path, or the name of an array's copy. Such names come out
    as they are. ``in_store``: whether names that aren't locations are those of arrays in the reader's store.

    Raises:
        TypeError: The value isn't a table of numbers of this type.
        ValueError: The table is empty, or has another number of dimensions.
    """
    if value is None or isinstance(value, Kept):
        return value
    if isinstance(value, str | os.PathLike):
        text = values.expanded(value)
        is_path = not in_store and not text.startswith(_KEPT)
        return paths.absolute(text) if is_path or text.endswith(".npy") else paths.location(text)
    return _kept(_table(name, value))


def _table(name: str, value: Any) -> npt.NDArray[Any]:
    dtype, words = _TYPES[name]
    try:
        found: npt.NDArray[Any] = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"zarr_reader: {name}: expected a path or an array of {words}, found {type(value).__name__}") from error
    if found.shape == (0,):
        raise ValueError(f"zarr_reader: {name}: expected at least one {'row' if name == 'starts' else 'number'}, but found none")
    if found.dtype.kind == "b" or not np.can_cast(found.dtype, dtype, "safe"):
        raise TypeError(
            f"zarr_reader: {name}: expected a path or an array of {words} that {dtype.__name__} can hold, found "
            + (f"the type {found.dtype}" if found.ndim else repr(value))
        )
    if name == "starts" and found.ndim == 1:
        found = found[:, None]
    expected = 2 if name == "starts" else 1
    if found.ndim != expected:
        dims = "a row for each sample and a column for each of dims" if name == "starts" else "one number for each sample"
        raise ValueError(f"zarr_reader: {name}: expected {dims}, found an array of the shape {found.shape}")
    return np.ascontiguousarray(found, dtype)


def opening() -> Kept:
    """Returns the name of an opening, for the argument ``_opening``: readers that are opened with it have the samples of
    the first one, although their stores have grown since."""
    name = Kept(_native.keep_opening())
    weakref.finalize(name, _native.release_opening, str(name)).atexit = False
    return name


def _kept(table: npt.NDArray[Any]) -> Kept:
    name = Kept(_native.keep_table(table))
    weakref.finalize(name, _native.release_table, str(name)).atexit = False
    return name

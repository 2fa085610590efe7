"""All arrays of a store, as its metadata describe them: those that readers take, and why the others are refused."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _arguments, _native
from .._arguments import names, options, values
from .._arguments.types import StorageOptions
from .._selection.stores import Store
from . import owned

_ERRORS = (ValueError, TypeError, IndexError, RuntimeError, MemoryError)
# Beyond so many arrays zarr-python is asked, since the engine doesn't list any number.
_LISTED = 30
# Of arrays that hold nothing for a reader.
_SOUND = re.compile(r"codecs for arrays of numbers|has length 0|is empty, so the store holds no sample")
_ONCE = 8


@dataclass(frozen=True)
class Found:
    """An array that readers take."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    # What elements are read as, and the stored type.
    dtype: str
    stored: str
    # What is decoded at a time: inner chunks, where there are shards.
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    codecs: str
    chunk_bytes: int
    # Whether a GPU decodes it, and why it does or doesn't.
    decoded_on: str
    why: str
    # The only one of its store, which is read without a name: the store may be the array itself.
    is_only: bool

    def arguments(self, path: str | None) -> dict[str, Any]:
        """The reader's, that choose it; ``path`` is the store of arrays that have none of their own."""
        return ({} if names.is_location(self.name) else {"path": path}) | ({} if self.is_only else {"arrays": [self.name]})

    @property
    def decoded_bytes(self) -> int:
        """Those of all elements."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def grid(self) -> tuple[int, ...]:
        """How many chunks there are along each dimension, whether or not they are stored."""
        return tuple(-(-length // chunk) for length, chunk in zip(self.shape, self.chunks, strict=True))


@dataclass(frozen=True)
class Refused:
    """An array that readers don't take, and their message. Nothing is wrong with one that is empty or not of numbers."""

    name: str
    message: str
    is_sound: bool


def described(path: str | None, arrays: Any, storage_options: StorageOptions | None) -> list[Found | Refused]:
    """The arrays of one store, in the order of their names or as ``arrays`` has them; these may have stores of their own, and all
    have where ``path`` is None. Reads metadata only.

    Raises:
        ValueError, TypeError, RuntimeError: The store can't be opened or listed.
    """
    place = _arguments.of_spec({"path": path, "storage_options": storage_options})
    found = owned.listed(arrays)
    if found is None:
        try:
            # The only array, which may be the store itself.
            return [_found(array, is_only=True) for array in _explained(place, None)]
        except (ValueError, TypeError):
            found = _listed(place, _native.last_error())
            if not found:
                raise
    try:
        # One reader has one look at the metadata of remote stores.
        return [_found(array) for array in _explained(place, found)]
    except _ERRORS:
        with ThreadPoolExecutor(_ONCE) as pool:
            described = list(pool.map(functools.partial(_one, place), found))
    for array in described:
        if isinstance(array, Refused) and ": expected an array '" in array.message:
            raise ValueError(array.message)
    return described


def _listed(place: Mapping[str, Any], error: Mapping[str, Any]) -> list[str]:
    """The arrays of a store, of which the engine says that it has several, or that its only one is wrong; else none."""
    if error.get("array") is not None:
        return [error["array"]]
    known: list[str] = error.get("known") or []
    if len(known) > _LISTED:
        given = place.get("storage_options")
        return sorted(Store(place["path"], options.by_name(values.items(given) if given else [])).names())
    return known


def _explained(place: Mapping[str, Any], arrays: list[str] | None) -> list[dict[str, Any]]:
    """What the engine says of arrays that are read by one reader. The epoch that it rehearses is one sample."""
    given = {**place, "device": "gpu", "mask_and_scale": False, **({} if arrays is None else {"arrays": arrays})}
    try:
        return _native.explain({**given, "roi_start": [0], "roi_end": [1]})["arrays"]
    except ValueError as error:
        if "roi_" not in str(error):
            raise
        # Without dimensions, or without elements along the first one.
        return _native.explain(given)["arrays"]


def _one(place: Mapping[str, Any], name: str) -> Found | Refused:
    try:
        own = {key: value for key, value in place.items() if key != "path"} if names.is_location(name) else place
        return _found(_explained(own, [name])[0])
    except _ERRORS as error:
        return Refused(name, str(error), isinstance(error, TypeError) or _SOUND.search(str(error)) is not None)


def _found(array: Mapping[str, Any], is_only: bool = False) -> Found:
    (stored,) = array["stores"]
    return Found(
        array["name"], tuple(array["dims"]), tuple(stored["shape"]), array["dtype"], array["stored"],
        tuple(stored["chunks"]),
        None if stored["shards"] is None else tuple(stored["shards"]), stored["codecs"], stored["chunk_bytes"],
        stored["decoded_on"], stored["why"], is_only,
    )

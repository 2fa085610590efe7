"""All arrays of a store, as its metadata describe them: those that readers take, and why the others are refused."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _arguments, _native
from .._arguments import names, paths
from .._arguments.types import StorageOptions
from . import owned


@dataclass(frozen=True)
class ReadableArray:
    """An array that readers take."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    # The type that elements are read as, and the stored type.
    dtype: str
    stored: str
    # What is decoded at a time: inner chunks, where there are shards.
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    # Its place in its store, the key of its first chunk or shard there, and how many of these there are along each
    # dimension of keys.
    path: str
    first_key: str
    objects: tuple[int, ...]
    codecs: str
    # Whether chunks are images that lose values; None if the metadata don't say so.
    lossy_images: bool | None
    chunk_bytes: int
    # Attributes that say how values are packed.
    packing: Mapping[str, Any]
    # Whether a GPU decodes it, and why it does or doesn't.
    decoded_on: str
    why: str
    # The only one of its store, which is read without a name: the store may be the array itself.
    is_only: bool

    def arguments(self, path: str | None) -> dict[str, Any]:
        """Returns the reader's arguments that choose this array. ``path``: the store of arrays that have none of their
        own."""
        return ({} if names.is_location(self.name) else {"path": path}) | ({} if self.is_only else {"arrays": [self.name]})

    @property
    def unit(self) -> str:
        """What is stored as one object."""
        return "chunk" if self.shards is None else "shard"

    @property
    def decoded_bytes(self) -> int:
        """Bytes of all elements, decoded."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def grid(self) -> tuple[int, ...]:
        """Returns how many chunks there are along each dimension, whether or not they are stored."""
        return tuple(-(-length // chunk) for length, chunk in zip(self.shape, self.chunks, strict=True))


@dataclass(frozen=True)
class RefusedArray:
    """An array that readers don't take, and their message. ``is_sound``: nothing is wrong with it, but it is empty or
    has no numbers."""

    name: str
    message: str
    is_sound: bool


@dataclass(frozen=True)
class Listing:
    """The arrays of one store, and whether there may be more."""

    arrays: list[ReadableArray | RefusedArray]
    is_cut: bool


def listed(path: str | None, arrays: Any, storage_options: StorageOptions | None) -> Listing:
    """Lists the arrays of one store, in the order of their names, or those that ``arrays`` names, in its order. Those
    may have stores of their own; all have where ``path`` is None. Reads metadata only.

    Raises:
        ValueError, TypeError, RuntimeError: The store can't be opened or listed, or an array that is named isn't in it.
    """
    asked = owned.listed(arrays)
    given = {"path": path, "storage_options": storage_options} | ({} if asked is None else {"arrays": asked})
    found = _native.arrays(_arguments.to_spec(given) | {"device": "gpu"})
    if not found["arrays"]:
        raise ValueError(f"zarr_reader: store {found['store']}: expected at least one array, but found none")
    # The engine tells absolute locations. Commands use and show them as they were given.
    as_given = {paths.location(array): array for array in asked or []}
    found["arrays"] = [array | {"name": as_given.get(array["name"], array["name"])} for array in found["arrays"]]
    is_only = asked is None and len(found["arrays"]) == 1
    is_root = [array["is_root"] and not names.is_location(array["name"]) for array in found["arrays"]]
    return Listing([_of(array, is_only or root) for array, root in zip(found["arrays"], is_root, strict=True)], found["is_cut"])


def _of(array: Mapping[str, Any], is_only: bool) -> ReadableArray | RefusedArray:
    if array["refused"] is not None:
        return RefusedArray(array["name"], array["refused"], array["is_sound"])
    return ReadableArray(
        array["name"], tuple(array["dims"]), tuple(array["shape"]), array["dtype"], array["stored"], tuple(array["chunks"]),
        None if array["shards"] is None else tuple(array["shards"]), array["path"], array["first_key"], tuple(array["objects"]),
        array["codecs"], array["lossy_images"], array["chunk_bytes"], _packing(array), array["decoded_on"], array["why"], is_only,
    )


def _packing(array: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes that say how values are packed. A fill value that xarray encodes in base64 (of floats in
    Zarr v3) becomes a number, or text where JSON has no such number."""
    found = dict(array["packing"])
    fill = found.get("_FillValue")
    if isinstance(fill, str) and np.dtype(array["dtype"]).kind == "f":
        try:
            (number,) = struct.unpack("<d", base64.b64decode(fill, validate=True))
        except (ValueError, struct.error):
            return found
        found["_FillValue"] = number if math.isfinite(number) else str(number)
    return found

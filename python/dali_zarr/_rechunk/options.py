"""What the user asks of ``rechunk``, checked as far as that goes without looking at a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from .._arguments import values

# The command's arguments beside SOURCE and TARGET, and for each whether it is a bool.
ARGUMENTS = {
    "arrays": False, "chunks": False, "shards": False, "codec": False, "format": False, "dtype": False, "sel": False, "isel": False,
    "method": False, "tolerance": False, "for": False, "memory": False, "workers": False, "scheduler": False, "verify": True,
    "storage_options": False, "target_options": False,
}


@dataclass(frozen=True)
class Options:
    """The values of :data:`ARGUMENTS`. Extents are by dimension, -1 is the whole dimension. None keeps what the source
    has."""

    arrays: tuple[str, ...] | None = None
    chunks: Mapping[str, int] | None = None
    shards: Mapping[str, int] | None = None
    codec: str | None = None
    zarr_format: int | None = None
    dtype: np.dtype[Any] | None = None
    sel: Mapping[str, Any] = field(default_factory=dict[str, Any])
    isel: Mapping[str, Any] = field(default_factory=dict[str, Any])
    method: str | None = None
    tolerance: Any = None
    memory: int | None = None
    workers: int | None = None
    scheduler: str | None = None
    verify: bool = False
    storage_options: Mapping[str, str] = field(default_factory=dict[str, str])
    target_options: Mapping[str, str] = field(default_factory=dict[str, str])

    def layout(self) -> dict[str, Any]:
        """Returns the options that decide the target's bytes, as values that JSON can hold."""
        return {
            "arrays": self.arrays, "chunks": self.chunks, "shards": self.shards, "codec": self.codec, "format": self.zarr_format,
            "dtype": None if self.dtype is None else self.dtype.name, "sel": repr(self.sel), "isel": repr(self.isel),
            "method": self.method, "tolerance": repr(self.tolerance),
        }


def parsed(given: Mapping[str, Any]) -> Options:
    """Converts the command line's arguments to options, without ``for``.

    Raises:
        ValueError: A value isn't what the option takes.
    """
    arrays = given.get("arrays")
    zarr_format = given.get("format")
    if zarr_format not in (None, 2, 3):
        raise ValueError(f"--format: expected 2 or 3, but found {zarr_format!r}")
    shards = extents("shards", given.get("shards"))
    if shards and zarr_format == 2:
        raise ValueError("--shards: expected --format 3 with shards, but found --format 2, which has none")
    scheduler = given.get("scheduler")
    if scheduler is not None and "://" not in str(scheduler):
        raise ValueError(f"--scheduler: expected an address such as tcp://HOST:8786, but found {scheduler!r}")
    workers: Any = given.get("workers")
    if workers is not None and (isinstance(workers, bool) or not hasattr(workers, "__index__") or workers < 1):
        raise ValueError(f"--workers: expected a number of tasks at a time, but found {workers!r}")
    if arrays is not None and not _listed(arrays):
        raise ValueError("--arrays: expected names of arrays, but found none")
    if not isinstance(given.get("codec", ""), str):
        raise ValueError(f"--codec: expected a codec's name, such as zstd, but found {given['codec']!r}")
    if not isinstance(given.get("verify", False), bool | np.bool_):
        raise ValueError(f"--verify: expected true or false, but found {given['verify']!r}")
    if workers is not None and scheduler is not None:
        raise ValueError("--workers: expected --workers or --scheduler, whose workers run the tasks, but found both")
    for name in ("sel", "isel"):
        if not isinstance(given.get(name, {}), Mapping):
            raise ValueError(f"--{name}: expected DIM=LABEL, but found {given[name]!r}")
    _check_method(given)
    return Options(
        arrays=None if arrays is None else tuple(str(name).strip("/") for name in _listed(arrays)),
        chunks=extents("chunks", given.get("chunks")), shards=shards, codec=given.get("codec"), zarr_format=zarr_format,
        dtype=_dtype(given.get("dtype")), sel=given.get("sel", {}), isel=given.get("isel", {}), method=given.get("method"),
        tolerance=given.get("tolerance"), memory=_bytes(given.get("memory")),
        workers=None if workers is None else int(workers), scheduler=scheduler, verify=bool(given.get("verify", False)),
        storage_options=_pairs("storage_options", given.get("storage_options")),
        target_options=_pairs("target_options", given.get("target_options")),
    )


def _check_method(given: Mapping[str, Any]) -> None:
    """Raises ValueError where ``method`` or ``tolerance`` have no effect, as the reader does."""
    name = next((name for name in ("method", "tolerance") if given.get(name) is not None), None)
    if name is None:
        return
    if all(isinstance(label, slice) for label in given.get("sel", {}).values()):
        raise ValueError(f"--{name}: expected labels in --sel that aren't ranges, but found none")
    if given.get("method") is None:
        raise ValueError("--tolerance: expected --method too, such as --method nearest")


def extents(name: str, given: Any) -> dict[str, int] | None:
    """Converts ``DIM=EXTENT,DIM=EXTENT``, or a dictionary, to a dictionary whose entries are checked."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        given = [f"{dim}={extent}" for dim, extent in cast("Mapping[str, Any]", given).items()]
    found: dict[str, int] = {}
    for word in [word for text in _listed(given) for word in str(text).split(",")]:
        dim, _, text = word.strip().rpartition("=")
        if not dim or not text.lstrip("-").isdigit() or (int(text) < 1 and int(text) != -1):
            raise ValueError(f"--{name}: expected DIM=EXTENT,DIM=EXTENT with extents from 1 on, or -1 for all, but found {word!r}")
        if dim in found:
            raise ValueError(f"--{name}: expected each dimension once, but found {dim!r} twice")
        found[dim] = int(text)
    return found


def _listed(given: Any) -> list[Any]:
    return values.items(given)


def _dtype(given: Any) -> np.dtype[Any] | None:
    if given is None:
        return None
    try:
        found = np.dtype(given)
    except TypeError:
        raise ValueError(f"--dtype: expected a type of NumPy's, such as float32, but found {given!r}") from None
    if found.kind not in "iuf" or found.itemsize > 8:
        raise ValueError(f"--dtype: expected an integer or floating-point type of at most 8 bytes, but found {given!r}")
    if not found.isnative:
        raise ValueError(f"--dtype: expected a type without a byte order, which is the machine's, but found {given!r}")
    return found


def _bytes(given: Any) -> int | None:
    """Returns a number of bytes, given as a number or as text such as ``2GiB``."""
    if given is None:
        return None
    found = values.byte_count("--memory", str(given))
    if found < 1:
        raise ValueError(f"--memory: expected a number of bytes above 0, found {given!r}")
    return found


def _pairs(name: str, given: Any) -> dict[str, str]:
    """Converts ``NAME=VALUE ...``, or a dictionary, to a dictionary of text, as words of a command would give it."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        entries = ((key, value) for key, value in cast("Mapping[Any, Any]", given).items() if value is not None)
        return {str(key): str(value).lower() if isinstance(value, bool) else str(value) for key, value in entries}
    found: dict[str, str] = {}
    for word in _listed(given):
        key, equals, value = str(word).partition("=")
        if not equals:
            raise ValueError(f"--{name}: expected NAME=VALUE, but found {word!r}")
        found[key] = value
    return found

"""Codecs of the target, as zarr-python takes them, and their names on the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from .._selection.stores import needed

NAMES = "none, zstd, gzip, lz4 (Zarr v2), blosc-lz4, blosc-lz4hc, blosc-zstd, blosc-zlib, blosc-blosclz"
_NAME = re.compile(
    r"(?P<kind>none|zstd|gzip|lz4|blosc-(?P<cname>lz4hc|lz4|zstd|zlib|blosclz)(?:-(?P<shuffle>shuffle|bitshuffle|noshuffle))?)"
    r"(?::(?P<level>-?\d+))?(?P<checksum>\+crc32c)?"
)
_LEVELS = {"zstd": (3, -131072, 22), "gzip": (5, 0, 9), "lz4": (1, 1, 65537)}
_BLOSC_LEVELS = {"lz4": 5, "lz4hc": 9, "zstd": 3, "zlib": 5, "blosclz": 5}
CNAMES = tuple(_BLOSC_LEVELS)
# The most bytes that these codecs compress at a time.
_MOST = {"blosc": 2147483631, "lz4": 2113929216}


@dataclass(frozen=True)
class Codecs:
    """The codecs of an array's chunks.

    Attributes:
        compressors, filters, serializer: As zarr-python's ``create_array`` takes them.
        order: The order of elements in a chunk of Zarr v2.
        index: How shards of Zarr v3 store their index: ``index_codecs`` and ``index_location``. None: as zarr-python does.
        left_out: The names of the source's codecs that are left out, since they lose values, or are made for another type or shape.
    """

    compressors: Any
    filters: Any = ()
    serializer: Any = "auto"
    order: str = "C"
    index: Mapping[str, Any] | None = None
    left_out: tuple[str, ...] = ()

    def but_for(self, names: Sequence[str]) -> Codecs:
        """Returns these codecs, which lack those of the source with these names."""
        return replace(self, left_out=tuple(dict.fromkeys(names)))

    def arguments(self, zarr_format: int, chunks: tuple[int, ...], shards: tuple[int, ...] | None) -> dict[str, Any]:
        """Returns the arguments of ``create_array`` for chunks in shards, or without any."""
        given: dict[str, Any] = {"compressors": self.compressors, "filters": self.filters, "chunks": chunks}
        if zarr_format == 2:
            return given | {"order": self.order}
        if shards is None or self.index is None or self.serializer == "auto":
            return given | {"shards": shards, "serializer": self.serializer}
        # zarr-python's argument for shards takes no codecs of the index.
        config = {"chunk_shape": chunks, "codecs": [*self.filters, self.serializer, *self.compressors], **self.index}
        sharding = {"name": "sharding_indexed", "configuration": config}
        return {"compressors": (), "filters": (), "chunks": shards, "shards": None, "serializer": sharding}


def check(name: str) -> None:
    """Raises ValueError if there is no codec of this name, or not with this level."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(
            f"--codec: expected one of {NAMES}, each with :LEVEL, of Blosc with -bitshuffle or -noshuffle before it, in Zarr "
            f"v3 with +crc32c at the end; found {name!r}"
        )
    if match["level"] is not None:
        _, least, most = (0, 0, 9) if match["cname"] else _LEVELS.get(match["kind"], (0, 0, -1))
        if not least <= int(match["level"]) <= most:
            levels = f"a level from {least} to {most}" if least <= most else "no level"
            raise ValueError(f"--codec: {match['kind']}: expected {levels}, found {match['level']}")


def named(name: str, zarr_format: int, itemsize: int) -> Codecs:
    """Returns a codec of the command line for elements of ``itemsize`` bytes.

    Raises:
        ValueError: There is no codec of the name, or not in this format.
    """
    check(name)
    match = _NAME.fullmatch(name)
    assert match is not None
    kind, cname = match["kind"], match["cname"]
    level = int(match["level"]) if match["level"] else (_BLOSC_LEVELS[cname] if cname else _LEVELS.get(kind, (0, 0, 0))[0])
    if zarr_format == 2:
        if match["checksum"]:
            raise ValueError("--codec: expected no +crc32c in Zarr v2, which has one compressor; give --format 3")
        return Codecs(_of_v2(kind, cname, level, match["shuffle"] or "shuffle"))
    if kind == "lz4":
        raise ValueError("--codec: expected blosc-lz4 in Zarr v3, which has no lz4 alone; or give --format 2")
    codecs = needed("zarr.codecs", "rechunk")
    made: list[Any] = []
    if cname:
        shuffle = match["shuffle"] or "shuffle"
        made.append(codecs.BloscCodec(cname=cname, clevel=level, shuffle=shuffle, typesize=max(1, min(itemsize, 255))))
    elif kind != "none":
        made.append(codecs.ZstdCodec(level=level) if kind == "zstd" else codecs.GzipCodec(level=level))
    if match["checksum"]:
        made.append(codecs.Crc32cCodec())
    return Codecs(tuple(made))


def _of_v2(kind: str, cname: str | None, level: int, shuffle: str) -> Any:
    numcodecs = needed("numcodecs", "rechunk")
    if cname:
        return numcodecs.Blosc(cname, level, {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}[shuffle])
    match kind:
        case "zstd":
            return numcodecs.Zstd(level=level)
        case "gzip":
            return numcodecs.GZip(level=level)
        case "lz4":
            return numcodecs.LZ4(acceleration=level)
        case _:
            return None


def largest_chunk(chain: Codecs) -> int | None:
    """Returns the most bytes of a chunk that the compressors take; None if there is no limit."""
    given: Any = chain.compressors
    found = cast("Sequence[Any]", given if isinstance(given, list | tuple) else [given])
    names = [_name(one) for one in found if one]
    return min((_MOST[name] for name in names if name in _MOST), default=None)


def _name(codec: Any) -> str:
    """Returns the name of a codec of zarr-python's or numcodecs', or of its metadata."""
    config: Any = codec
    if not isinstance(codec, Mapping):
        config = codec.get_config() if hasattr(codec, "get_config") else codec.to_dict()
    return str(config.get("id") or config.get("name")).removeprefix("numcodecs.")

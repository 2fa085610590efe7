"""Codecs of the target: by a name from the command line, or those of the source."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from .._selection.stores import needed

NAMES = "none, zstd, gzip, lz4 (Zarr v2), blosc-lz4, blosc-lz4hc, blosc-zstd, blosc-zlib, blosc-blosclz"
_NAME = re.compile(
    r"(?P<kind>none|zstd|gzip|lz4|blosc-(?P<cname>lz4hc|lz4|zstd|zlib|blosclz)(?:-(?P<shuffle>shuffle|bitshuffle|noshuffle))?)"
    r"(?::(?P<level>-?\d+))?(?P<checksum>\+crc32c)?"
)
_LEVELS = {"zstd": (3, -131072, 22), "gzip": (5, 0, 9), "lz4": (1, 1, 65537)}
_BLOSC_LEVELS = {"lz4": 5, "lz4hc": 9, "zstd": 3, "zlib": 5, "blosclz": 5}
# Filters that lose information. The values that they decode to are stored without them.
_LOSSY = ("fixedscaleoffset", "quantize", "bitround", "astype", "scale_offset", "cast_value")

# The most bytes that these codecs compress at a time.
_MOST = {"blosc": 2147483631, "lz4": 2113929216}


@dataclass(frozen=True)
class Codecs:
    """The codecs of an array, as zarr-python's ``create_array`` takes them."""

    compressors: Any
    filters: Any = ()
    serializer: Any = "auto"

    def arguments(self, zarr_format: int) -> dict[str, Any]:
        given: dict[str, Any] = {"compressors": self.compressors, "filters": self.filters}
        return given if zarr_format == 2 else given | {"serializer": self.serializer}


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


def kept(array: Any, zarr_format: int, same_type: bool, itemsize: int) -> Codecs:
    """Returns the codecs of the source, for elements of ``itemsize`` bytes. Filters stay if they lose nothing, and if
    the format and the type stay.

    Raises:
        ValueError: The codecs aren't known in the other format.
    """
    if array.metadata.zarr_format == zarr_format:
        filters = tuple(one for one in array.filters if _name(one) not in _LOSSY) if same_type else ()
        if zarr_format == 2:
            return Codecs(array.compressors or None, filters or None)
        # The order of the axes of a chunk in storage is the writer's choice, not a filter of values.
        serializer = array.serializer if same_type else "auto"
        compressors = tuple(one if same_type else _resized(one, itemsize) for one in array.compressors)
        return Codecs(compressors, tuple(one for one in filters if _name(one) != "transpose"), serializer)
    if not array.compressors:
        return Codecs(None if zarr_format == 2 else ())
    names = [_told(one) for one in array.compressors]
    if len(names) != 1 or names[0] is None:
        shown = ", ".join(_name(one) for one in array.compressors)
        raise ValueError(
            f"--format: array '{array.path}': expected --codec too, since its codecs ({shown}) aren't the same in Zarr "
            f"v{zarr_format}"
        )
    if names[0].startswith("lz4") and zarr_format == 3:
        names[0] = "blosc-lz4"
    return named(names[0], zarr_format, itemsize)


def _resized(codec: Any, itemsize: int) -> Any:
    """Returns a codec of Zarr v3 for elements of another size. Blosc, which shuffles the bytes of elements, must know
    the size."""
    if _name(codec) != "blosc":
        return codec
    kind = cast(Any, type(codec))
    return kind.from_dict({"name": "blosc", "configuration": codec.to_dict()["configuration"] | {"typesize": itemsize}})


def _config(codec: Any) -> dict[str, Any]:
    return codec.get_config() if hasattr(codec, "get_config") else codec.to_dict()


def _name(codec: Any) -> str:
    config = _config(codec)
    return str(config.get("id") or config.get("name")).removeprefix("numcodecs.")


def _told(codec: Any) -> str | None:
    """Returns a compressor's name on the command line; None if it has none."""
    config = _config(codec)
    config = config.get("configuration", config)
    match _name(codec):
        case "zstd" | "gzip" as kind:
            return f"{kind}:{config['level']}"
        case "lz4":
            return "lz4"
        case "blosc":
            shuffle = config["shuffle"]
            names = {0: "noshuffle", 1: "shuffle", 2: "bitshuffle", -1: "shuffle"}
            shuffle = names[shuffle] if isinstance(shuffle, int) else getattr(shuffle, "value", shuffle)
            cname = getattr(config["cname"], "value", config["cname"])
            found = f"blosc-{cname}-{shuffle}:{config['clevel']}"
            return found if _NAME.fullmatch(found) else None
        case _:
            return None

"""The codecs of the source for the target: each is kept, is left out and told, or is refused. None is changed without a word.

Codecs are taken as metadata, since a codec's place in its chain decides what it does: a transposition changes the shape that
shards within shards divide, and a filter is made for the type that it gets.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .._selection.stores import needed
from .._text import shape as _told
from .codecs import CNAMES, Codecs

# Filters that lose information. The values that they decode to are stored without them.
_LOSSY = ("fixedscaleoffset", "quantize", "bitround", "astype", "scale_offset", "cast_value")
# Codecs of bytes that give back what they got.
_EXACT = (
    "zstd", "gzip", "zlib", "bz2", "lzma", "lz4", "blosc", "shuffle", "crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3",
)
# Serializers of text and bytes, and of numbers, that give back what they got.
_SERIALIZERS = ("vlen-utf8", "vlen-bytes", "pcodec")

Metadata = Mapping[str, Any]


def kept(name: str, array: Any, zarr_format: int, dtype: np.dtype[Any], dims: Sequence[int], chunks: Sequence[int]) -> Codecs:
    """Returns the codecs of the source for the target's chunks.

    Args:
        name: The array's name, for errors.
        array: zarr-python's array, which :func:`check_read` has taken.
        zarr_format: The target's.
        dtype: The target's type, native. Filters that are made for another type are left out.
        dims: The dimensions of the source that the target has.
        chunks: The target's chunks along these.

    Raises:
        ValueError: A codec can't be taken over. The message says to give ``--codec``.
    """
    same = dtype == native(array.dtype)
    taken = _Taken(name, dtype)
    before = array.metadata.zarr_format
    if before == 2:
        filters = taken.filters_of_v2(array, same)
        (compressor,) = taken.compressors([one.get_config() for one in array.compressors], same) or (None,)
        order = array.metadata.order if len(dims) > 1 else "C"
        if zarr_format == 2:
            codec = needed("numcodecs", "rechunk").get_codec
            found = Codecs(None if compressor is None else codec(compressor), [codec(one) for one in filters] or None, order=order)
        else:
            taken.refuse_other_format(filters, 3)
            filters = [] if order == "C" else [_transpose(list(range(len(dims)))[::-1])]
            found = Codecs(taken.in_v3(compressor), filters)
    else:
        filters, serializer, compressors = taken.chain(_inner(array), list(range(array.ndim)), set(dims), same)
        if zarr_format == 3:
            found = Codecs(compressors, filters, serializer, index=_index(array))
            _check_divided(name, [*filters, serializer, *compressors], chunks)
        else:
            order = taken.order_of_v2(filters, len(dims))
            taken.refuse_other_format([serializer] if _name(serializer) not in ("bytes", "vlen-utf8", "vlen-bytes") else [], 2)
            found = Codecs(taken.in_v2(compressors), None, order=order)
    return found.but_for(taken.left_out)


def _index(array: Any) -> dict[str, Any] | None:
    """Returns how the source's shards store their index, or None without shards."""
    if array.shards is None:
        return None
    config = _config(array.metadata.to_dict()["codecs"][0])
    found = {name: config[name] for name in ("index_codecs", "index_location") if name in config}
    # Any other codec may depend on the number of dimensions. Readers don't know one.
    plain = all(_name(one) in ("bytes", "crc32c") for one in found.get("index_codecs", ()))
    return found if plain else None


def has_shards_within(array: Any) -> bool:
    """Returns whether the source's chunks consist of smaller ones: shards within shards, or shards under other codecs."""
    return array.metadata.zarr_format == 3 and any(_name(one) == "sharding_indexed" for one in _inner(array))


def check_read(name: str, array: Any) -> None:
    """Raises ValueError where zarr-python would read wrong values, or can't tell the array's chunks."""
    if array.metadata.zarr_format == 2:
        return
    codecs = list(array.metadata.to_dict()["codecs"])
    try:
        chunks = array.shards or array.chunks
    except NotImplementedError:
        grid = array.metadata.to_dict()["chunk_grid"]["name"]
        raise ValueError(
            f"array {name!r}: expected a regular chunk grid, but found one that is {grid}; leave the array out with --arrays"
        ) from None
    for outer, inner in _levels(codecs, chunks):
        if not _divides(outer, inner):
            raise ValueError(
                f"array {name!r}: expected shards of whole chunks, but found shards of {_told(outer)} and chunks of {_told(inner)} "
                "in its metadata; leave the array out with --arrays"
            )
    if _has_turned_filter(codecs) and not _reads_filters():
        version = needed("zarr", "rechunk").__version__
        raise ValueError(
            f"array {name!r}: zarr-python {version} reads wrong values where a filter of numcodecs follows a transposition, or "
            "comes before big-endian bytes; install a later zarr-python (pip install --upgrade zarr), or leave the array out with "
            "--arrays"
        )


class _Taken:
    """Takes codecs over for one array, and notes those that are left out."""

    def __init__(self, name: str, dtype: np.dtype[Any]):
        self._name, self._dtype = name, dtype
        self.left_out: list[str] = []

    def chain(
        self, codecs: Sequence[Metadata], axes: list[int], dims: set[int], same: bool
    ) -> tuple[list[Metadata], Metadata, list[Metadata]]:
        """Returns the filters, the serializer and the compressors of a chain of Zarr v3. ``axes``: the source's dimensions, in
        the order in which they come in. ``dims``: those that the target has. ``same``: whether elements have the source's
        type."""
        filters: list[Metadata] = []
        for i, codec in enumerate(codecs):
            match _name(codec):
                case "transpose":
                    stored = [axes[k] for k in _order(codec)]
                    places = [axis for axis in axes if axis in dims]
                    filters.append(_transpose([places.index(axis) for axis in stored if axis in dims]))
                    axes = stored
                case "bytes":
                    # Elements of a byte have no order; others may follow with --dtype.
                    serializer = {"name": "bytes", "configuration": {"endian": _config(codec).get("endian") or "little"}}
                    return filters, serializer, self.compressors(codecs[i + 1 :], same)
                case "sharding_indexed":
                    config = _config(codec)
                    within = self.chain(config["codecs"], axes, dims, same)
                    if not dims:
                        # zarr-python can't write a shard without dimensions, which is a single chunk.
                        self.left_out.append("sharding_indexed")
                        return [*filters, *within[0]], within[1], [*within[2], *self.compressors(codecs[i + 1 :], same)]
                    extents = [extent for axis, extent in zip(axes, config["chunk_shape"], strict=True) if axis in dims]
                    inner = {"chunk_shape": extents, "codecs": [*within[0], within[1], *within[2]]}
                    made = {"name": "sharding_indexed", "configuration": {**config, **inner}}
                    return filters, made, self.compressors(codecs[i + 1 :], same)
                case name if name in _SERIALIZERS and same:
                    return filters, codec, self.compressors(codecs[i + 1 :], same)
                case _:
                    same = self._filter(codec, same, filters)
        raise self._unknown("none that makes bytes of elements")

    def filters_of_v2(self, array: Any, same: bool) -> list[Metadata]:
        filters: list[Metadata] = []
        for one in array.filters:
            config = one.get_config()
            if _name(config) in _EXACT:
                filters += self.compressors([config], same)
            elif _name(config) not in ("vlen-utf8", "vlen-bytes"):
                # Text and bytes have the filter of their type.
                same = self._filter(config, same, filters)
        return filters

    def _filter(self, codec: Metadata, same: bool, filters: list[Metadata]) -> bool:
        """Adds a filter, or leaves it out. Returns whether elements behind it have the type that they have in the source."""
        name, config = _name(codec), _config(codec)
        if name == "delta":
            dtype = native(np.dtype(config["dtype"]))
            exact = dtype.kind in "iu" and native(np.dtype(config.get("astype") or config["dtype"])) == dtype
            if same and exact and dtype == self._dtype:
                # In v2 the source's bytes may be in the other order.
                both = {"dtype": dtype.str, "astype": dtype.str}
                filters.append({**codec, "configuration": {**config, **both}} if "name" in codec else {**codec, **both})
                return True
        elif name == "packbits":
            if same and self._dtype.kind == "b":
                filters.append(codec)
                return True
        elif name not in _LOSSY:
            raise self._unknown(name)
        self.left_out.append(name)
        return False

    def compressors(self, codecs: Sequence[Metadata], same: bool) -> list[Metadata]:
        """Returns codecs of bytes. Those that shuffle the bytes of elements are told the elements' size."""
        found: list[Metadata] = []
        for codec in codecs:
            if _name(codec) not in _EXACT:
                raise self._unknown(_name(codec))
            size = next((name for name in ("typesize", "elementsize") if name in _config(codec)), None)
            if same or size is None:
                found.append(codec)
            elif "name" in codec:
                found.append({**codec, "configuration": {**_config(codec), size: self._dtype.itemsize}})
            else:
                found.append({**codec, size: self._dtype.itemsize})
        return found

    def order_of_v2(self, filters: Sequence[Metadata], ndim: int) -> str:
        """Returns the order of elements in Zarr v2 that transpositions stand for. Raises ValueError for any other filter."""
        axes = list(range(ndim))
        self.refuse_other_format([one for one in filters if _name(one) != "transpose"], 2)
        for one in filters:
            axes = [axes[i] for i in _order(one)]
        if axes not in (sorted(axes), sorted(axes)[::-1]):
            self.refuse_other_format(filters, 2)
        return "C" if axes == sorted(axes) else "F"

    def refuse_other_format(self, codecs: Sequence[Metadata], zarr_format: int) -> None:
        """Raises ValueError if there are any codecs."""
        if codecs:
            shown = ", ".join(map(_name, codecs))
            raise ValueError(
                f"--format: array {self._name!r}: expected --codec too, since its codecs ({shown}) aren't the same in Zarr "
                f"v{zarr_format}"
            )

    def in_v3(self, compressor: Metadata | None) -> list[Metadata]:
        if compressor is None:
            return []
        config = dict(compressor)
        match _name(compressor):
            case "zstd":
                found = {"level": config["level"], "checksum": config.get("checksum", False)}
            case "gzip":
                found = {"level": config["level"]}
            case "blosc" if config["cname"] in CNAMES:
                size = self._dtype.itemsize
                # -1 chooses by the size of elements.
                shuffle = {0: "noshuffle", 1: "shuffle", 2: "bitshuffle", -1: "bitshuffle" if size == 1 else "shuffle"}
                found = {key: config[key] for key in ("cname", "clevel", "blocksize")}
                found |= {"shuffle": shuffle[config["shuffle"]], "typesize": max(1, min(size, 255))}
            case _:
                self.refuse_other_format([compressor], 3)
                raise AssertionError
        return [{"name": _name(compressor), "configuration": found}]

    def in_v2(self, compressors: Sequence[Metadata]) -> Any:
        if not compressors:
            return None
        if len(compressors) > 1:
            self.refuse_other_format(compressors, 2)
        (codec,) = compressors
        config = dict(_config(codec))
        match _name(codec):
            case "zstd" | "gzip" | "lz4":
                pass
            case "blosc" if config["cname"] in CNAMES:
                # numcodecs takes the size of elements from the data.
                if config.pop("typesize", self._dtype.itemsize) != self._dtype.itemsize and config["shuffle"] != "noshuffle":
                    self.refuse_other_format(compressors, 2)
                config["shuffle"] = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}.get(config["shuffle"], config["shuffle"])
            case _:
                self.refuse_other_format(compressors, 2)
        return needed("numcodecs", "rechunk").get_codec({"id": _name(codec), **config})

    def _unknown(self, what: str) -> ValueError:
        return ValueError(
            f"array {self._name!r}: expected codecs that give back all values, but found {what}, of which that isn't known; "
            "give --codec"
        )


def _inner(array: Any) -> list[Metadata]:
    """Returns the codecs of the array's chunks, in shards where the array has shards."""
    codecs = list(array.metadata.to_dict()["codecs"])
    return list(_config(codecs[0])["codecs"]) if array.shards is not None else codecs


def _check_divided(name: str, codecs: Sequence[Metadata], chunks: Sequence[int]) -> None:
    for outer, inner in _levels(codecs, chunks):
        if not _divides(outer, inner):
            raise ValueError(
                f"--chunks: array {name!r}: expected chunks that its shards within shards divide, but found {_told(outer)} for "
                f"those of {_told(inner)}; give other chunks, or --codec, which leaves these shards out"
            )


def _levels(codecs: Sequence[Metadata], shape: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Yields for each codec of shards in a chain, and in the chains within it, the shape that it gets and that of its chunks."""
    outer = list(shape)
    for codec in codecs:
        if _name(codec) == "transpose":
            outer = [outer[i] for i in _order(codec)]
        elif _name(codec) == "sharding_indexed":
            inner = list(_config(codec)["chunk_shape"])
            yield outer, inner
            yield from _levels(_config(codec)["codecs"], inner)


def _divides(outer: Sequence[int], inner: Sequence[int]) -> bool:
    return len(outer) == len(inner) and all(part > 0 and whole % part == 0 for whole, part in zip(outer, inner, strict=True))


def _has_turned_filter(codecs: Sequence[Metadata]) -> bool:
    """Returns whether a filter of numcodecs gets elements in another order than they lie in memory, or its bytes are swapped."""
    turned = filtered = False
    for codec in codecs:
        config = _config(codec)
        if _name(codec) == "sharding_indexed" and _has_turned_filter(config["codecs"]):
            return True
        if _name(codec) == "transpose":
            turned = True
        elif str(codec["name"]).startswith("numcodecs.") and _name(codec) not in _EXACT:
            filtered = True
        if filtered and (turned or (_name(codec) == "bytes" and config.get("endian") == "big")):
            return True
    return False


@functools.cache
def _reads_filters() -> bool:
    """Returns whether zarr-python reads what it wrote with a filter of numcodecs between a transposition and big-endian
    bytes. Version 3.1 doesn't."""
    zarr = needed("zarr", "rechunk")
    values = np.arange(6, dtype="i4").reshape(2, 3)
    delta = {"name": "numcodecs.delta", "configuration": {"dtype": "<i4", "astype": "<i4"}}
    chain = {"filters": [_transpose([1, 0]), delta], "serializer": {"name": "bytes", "configuration": {"endian": "big"}}}
    with warnings.catch_warnings():
        # Ignores warnings about codecs without a specification: the source has them too.
        warnings.simplefilter("ignore")
        array = zarr.create_array({}, shape=(2, 3), chunks=(2, 3), dtype="i4", compressors=(), **chain)
        array[...] = values
        return bool((array[...] == values).all())


def _order(codec: Metadata) -> list[int]:
    return [int(axis) for axis in _config(codec)["order"]]


def _transpose(order: Sequence[int]) -> dict[str, Any]:
    return {"name": "transpose", "configuration": {"order": list(order)}}


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Returns a type in the machine's byte order. NumPy's type for text has none."""
    return dtype if dtype.kind == "T" else dtype.newbyteorder("=")


def _config(codec: Metadata) -> Metadata:
    return (codec.get("configuration") or {}) if "name" in codec else codec


def _name(codec: Metadata) -> str:
    return str(codec.get("id") or codec.get("name")).removeprefix("numcodecs.")

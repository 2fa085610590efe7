"""Random stores for random arguments: small, in memory-backed folders, and each with as many kinds of arrays as go together.

A number gives one set of stores, for ever.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from support.stores import CODECS_V2, CODECS_V3, DTYPES, Layout, write_array

# Names of the four dimensions: along the first stores are joined.
NAMES = (("time", "level", "latitude", "longitude"), ("t", "c", "y", "x"), ("sample", "band", "row", "column"))
# The dimensions that an array has, by their places in NAMES.
SHAPES = ((0, 2, 3), (0, 1, 2, 3), (0, 2), (0, 1), (0,), (1, 2, 3), (0, 3), (2, 3), (3,))


@dataclass
class Written:
    """An array that all stores of a set have. Its name has its groups in front."""

    name: str
    dims: tuple[str, ...]
    dtype: str
    is_packed: bool = False


@dataclass
class Stores:
    """A set of stores that are read together, and what a reader may ask of them."""

    number: int
    paths: list[Path]
    dims: tuple[str, ...]
    # By store, the length of each of dims.
    lengths: list[dict[str, int]]
    arrays: list[Written] = field(default_factory=list)
    # Whether the stores differ only in their first dimension.
    is_joinable: bool = True
    has_names: bool = True
    formats: list[int] = field(default_factory=list)
    # An array with a store of its own: its location, and its dimensions.
    own: tuple[Path, tuple[str, ...]] | None = None
    # Dimensions with coordinates.
    labelled: tuple[str, ...] = ()
    # Values of arrays that zarr-python doesn't read, by store and name.
    kept: dict[tuple[Path, str], np.ndarray] = field(default_factory=dict)


def values_of(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers that differ from element to element, as far as the type has as many, with what is special among them."""
    d = np.dtype(dtype)
    count = int(np.prod(shape))
    if d.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    numbers = rng.permutation(count) + int(rng.integers(0, 50))
    if d.kind in "iu":
        info = np.iinfo(d)
        flat = (numbers % (info.max // 2)).astype(d)
        special: list[Any] = [info.min, info.max]
    elif d.kind == "M":
        return (numbers * 3600).astype("datetime64[s]").astype(d).reshape(shape)
    else:
        flat = (numbers * 0.37 - 5).astype(d)
        special = [np.nan, np.inf, -np.inf, -0.0, np.nan]
        if d.kind == "c":
            flat = flat + (flat * 1j).astype(d)
    for one in special[: count // 4]:
        flat[rng.integers(0, count)] = one
    return flat.reshape(shape)


def write(number: int, folder: Path) -> Stores:
    """Writes the set of stores with this number into a folder."""
    rng = np.random.default_rng([11, number])
    count = int(rng.choice([1, 1, 1, 2, 2, 3]))
    is_joinable = count == 1 or bool(rng.random() < 0.55)
    has_names = bool(rng.random() < 0.9)
    names = NAMES[rng.integers(len(NAMES))] if has_names else ("dim_0", "dim_1", "dim_2", "dim_3")
    shared = {names[1]: int(rng.integers(1, 5)), names[2]: int(rng.integers(1, 7)), names[3]: int(rng.integers(1, 7))}
    lengths = []
    for _ in range(count):
        own = shared if is_joinable else shared | {d: int(rng.integers(1, 7)) for d in names[2:] if rng.random() < 0.6}
        lengths.append({names[0]: int(rng.choice([1, 2, 3, 5, 6, 8, 11, 14]))} | own)
    found = Stores(number, [folder / f"{i}.zarr" for i in range(count)], names, lengths, is_joinable=is_joinable)
    found.has_names = has_names
    formats = [int(rng.choice([2, 3]))] * count if rng.random() < 0.7 else [int(n) for n in rng.choice([2, 3], count)]
    found.formats = formats
    for path, zarr_format in zip(found.paths, formats, strict=True):
        zarr.open_group(str(path), mode="w", zarr_format=zarr_format)
    _write_arrays(found, rng, formats)
    _write_coordinates(found, rng, formats)
    for i, path in enumerate(found.paths):
        ends = _ends(rng, lengths[i][names[0]])
        write_array(path, "meta/ends", ends, zarr_format=formats[i], layout=Layout((int(rng.integers(1, 4)),)))
    return found


def _write_arrays(found: Stores, rng: np.random.Generator, formats: list[int]) -> None:
    # Without names only arrays whose dimensions are the first ones are what they say.
    shapes = list(SHAPES) if found.has_names else [(0, 1, 2, 3), (0, 1), (0,), (0, 1, 2)]
    kinds = [shapes[0]] + [shapes[rng.integers(len(shapes))] for _ in range(int(rng.integers(1, 5)))]
    for i, kind in enumerate(kinds):
        dims = tuple(found.dims[k] for k in kind)
        dtype = str(rng.choice(["float32", "float32", "int16", "float64", *DTYPES]))
        # Fill values of Zarr v2 are missing values, so stores of both formats are packed in different ways.
        is_packed = bool(rng.random() < 0.2) and len(set(formats)) == 1
        group = str(rng.choice(["", "", "", "g/", "g/h/"])) if found.has_names else ""
        one = Written(f"{group}v{i}", dims, dtype, is_packed)
        attributes: dict[str, Any] = {}
        if is_packed:
            one.dtype = str(rng.choice(["int16", "uint8", "int32", "float32"]))
            attributes = {"scale_factor": float(rng.choice([0.1, 0.5, 3.0]))}
            attributes |= {"add_offset": float(rng.choice([-5.0, 273.15]))} if rng.random() < 0.6 else {}
            attributes |= {"missing_value": 7} if rng.random() < 0.5 else {}
        codec_v3, codec_v2 = str(rng.choice(sorted(CODECS_V3))), str(rng.choice(sorted(CODECS_V2)))
        big_endian, order = bool(rng.random() < 0.2), str(rng.choice(["C", "C", "F"]))
        for path, lengths, zarr_format in zip(found.paths, found.lengths, formats, strict=True):
            shape = tuple(lengths[d] for d in dims)
            # Chunks of joined stores may differ.
            chunks = tuple(int(rng.integers(1, n + 2)) for n in shape)
            shards = tuple(c * int(rng.integers(1, 4)) for c in chunks) if rng.random() < 0.35 else None
            counts = [-(-n // c) for n, c in zip(shape, (shards if zarr_format == 3 else None) or chunks, strict=True)]
            missing = (tuple(int(rng.integers(n)) for n in counts),) if rng.random() < 0.15 else ()
            write_array(
                path,
                one.name,
                values_of(rng, one.dtype, shape),
                zarr_format=zarr_format,
                dims=dims if found.has_names else None,
                codec=codec_v3 if zarr_format == 3 else codec_v2,
                attributes=attributes,
                missing=missing,
                layout=Layout(chunks, shards=shards if zarr_format == 3 else None, order=order, big_endian=big_endian),
            )
        found.arrays.append(one)
    if not found.has_names:
        return
    if rng.random() < 0.25:
        dtype = str(rng.choice(["complex64", "datetime64[s]"]))
        dims = tuple(found.dims[k] for k in (0, 2))
        for path, lengths, zarr_format in zip(found.paths, found.lengths, formats, strict=True):
            values = values_of(rng, dtype, tuple(lengths[d] for d in dims))
            write_array(path, "other", values, zarr_format=zarr_format, dims=dims, layout=Layout((2, 2)))
        found.arrays.append(Written("other", dims, dtype))
    if rng.random() < 0.35:
        _write_rectilinear(found, rng)
    if len(found.paths) == 1 and rng.random() < 0.5:
        path = found.paths[0].parent / "own.zarr"
        dims = tuple(found.dims[k] for k in ((0, 2), (0,), (0, 2, 3))[rng.integers(3)])
        values = values_of(rng, "int32", tuple(found.lengths[0][d] for d in dims))
        write_array(path, "own", values, dims=dims, layout=Layout(tuple(int(rng.integers(1, n + 1)) for n in values.shape)))
        found.own = path / "own", dims


def _write_rectilinear(found: Stores, rng: np.random.Generator) -> None:
    """An array whose chunks have unequal lengths, in a group of its own: zarr-python before 3.2 doesn't read it."""
    dims = tuple(found.dims[k] for k in ((0, 2), (0,), (0, 1, 3))[rng.integers(3)])
    for path, lengths in zip(found.paths, found.lengths, strict=True):
        values = values_of(rng, "int32", tuple(lengths[d] for d in dims))
        edges = [sorted({0, n, *(int(e) for e in rng.integers(0, n + 1, 2))}) for n in values.shape]
        document = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(values.shape),
            "data_type": "int32",
            "fill_value": 0,
            "chunk_grid": {
                "name": "rectilinear",
                "configuration": {"kind": "inline", "chunk_shapes": [np.diff(e).tolist() for e in edges]},
            },
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "attributes": {},
            "dimension_names": list(dims),
        }
        folder = path / "uneven" / "u"
        folder.mkdir(parents=True)
        (folder / "zarr.json").write_text(json.dumps(document))
        for place in np.ndindex(*(len(e) - 1 for e in edges)):
            chunk = values[tuple(slice(e[k], e[k + 1]) for e, k in zip(edges, place, strict=True))]
            (folder / ("c." + ".".join(map(str, place)))).write_bytes(np.ascontiguousarray(chunk).tobytes())
        found.kept[path, "uneven/u"] = values
    found.arrays.append(Written("uneven/u", dims, "int32"))


def _write_coordinates(found: Stores, rng: np.random.Generator, formats: list[int]) -> None:
    if not found.has_names:
        return
    kinds = [str(rng.choice(k)) for k in (("dates", "dates", "numbers", "none"), ("up", "mixed", "none"), ("down", "none"))]
    total = sum(lengths[found.dims[0]] for lengths in found.lengths)
    gaps = rng.choice([1, 1, 1, 1, 6], total) if rng.random() < 0.4 else np.ones(total, np.int64)
    along = np.cumsum(gaps)
    calendar = str(rng.choice(["standard", "standard", "proleptic_gregorian", "noleap"]))
    at, permuted = 0, bool(rng.random() < 0.3)
    for path, lengths, zarr_format in zip(found.paths, found.lengths, formats, strict=True):
        n = lengths[found.dims[0]]
        if kinds[0] != "none":
            attributes = {"units": "hours since 2019-12-31T20:00", "calendar": calendar} if kinds[0] == "dates" else {}
            dtype = "int64" if kinds[0] == "dates" else "float64"
            coordinates = along[at : at + n].astype(dtype)
            _write_along(path, found.dims[0], coordinates, zarr_format, attributes)
            at += n
        if kinds[1] != "none":
            level = np.array([1000, 850, 500, 250][: lengths[found.dims[1]]], "int32")
            level = rng.permutation(level) if kinds[1] == "mixed" and permuted else level
            _write_along(path, found.dims[1], level, zarr_format, {})
        if kinds[2] != "none":
            _write_along(path, found.dims[2], 60.0 - 2.5 * np.arange(lengths[found.dims[2]]), zarr_format, {})
    found.labelled = tuple(d for d, kind in zip(found.dims, kinds, strict=False) if kind != "none")


def _write_along(path: Path, dim: str, values: np.ndarray, zarr_format: int, attributes: dict[str, Any]) -> None:
    layout = Layout((max(len(values) // 2, 1),))
    write_array(path, dim, values, zarr_format=zarr_format, dims=(dim,), layout=layout, attributes=attributes)


def _ends(rng: np.random.Generator, length: int) -> np.ndarray:
    """Ends of episodes, some of them perhaps empty; the last one need not be the length."""
    ends = sorted(int(e) for e in rng.integers(0 if rng.random() < 0.2 else 1, length + 1, int(rng.integers(1, 4))))
    if rng.random() < 0.8:
        ends = sorted(set(ends))
    return np.array(ends if rng.random() < 0.3 or ends[-1] == length else [*ends, length], np.int64)

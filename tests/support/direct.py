"""Writes common arrays file by file, in a fraction of the time that zarr-python takes.

The files are those of zarr-python to the byte: test_direct.py compares them. What isn't common is left to zarr-python.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import google_crc32c
import numcodecs
import numpy as np

if TYPE_CHECKING:
    from support.stores import Layout


def write(
    path: Path, name: str, values: np.ndarray, *, zarr_format: int, codecs: Any, layout: Layout,
    dims: Sequence[str | None] | None, fill_value: Any, attributes: dict[str, Any], missing: Sequence[tuple[int, ...]],
) -> bool:
    """Writes an array, and the group at ``path`` where there is none. ``codecs`` is what zarr.create_array takes as
    compressors. Returns False, and writes nothing, if the array isn't a common one."""
    is_common = values.dtype.kind in "biuf" and values.dtype.isnative and values.size and values.ndim and not layout.shards
    if not is_common or "/" in name or not isinstance(fill_value, int | float) or (path / name).exists():
        return False
    if values.dtype.kind != "f" and not (isinstance(fill_value, int) and fill_value == values.dtype.type(fill_value)):
        return False
    fill = values.dtype.type(fill_value)
    how = (values, layout, codecs, dims, fill, attributes)
    try:
        documents = _documents_v2(*how) if zarr_format == 2 else _documents_v3(*how)
    except TypeError:  # attributes that aren't of JSON
        return False
    if not _make_group(path, zarr_format):
        return False
    (path / name).mkdir()
    for file, document in documents.items():
        (path / name / file).write_text(document)
    _write_chunks(path / name, values, zarr_format, codecs, layout, fill, set(missing))
    return True


def _json(document: Any) -> str:
    return json.dumps(document, indent=2)


def _make_group(path: Path, zarr_format: int) -> bool:
    """Makes a group if nothing is there; returns whether there is one then."""
    file = ".zgroup" if zarr_format == 2 else "zarr.json"
    try:
        return json.loads((path / file).read_text()).get("node_type", "group") == "group"
    except FileNotFoundError:
        if path.is_dir() and os.listdir(path) and zarr_format == 2:
            return False
    path.mkdir(parents=True, exist_ok=True)
    if zarr_format == 2:
        (path / ".zgroup").write_text(_json({"zarr_format": 2}))
        (path / ".zattrs").write_text(_json({}))
    else:
        (path / "zarr.json").write_text(_json({"attributes": {}, "zarr_format": 3, "node_type": "group"}))
    return True


def _fill_in_json(fill: np.generic) -> Any:
    if fill.dtype.kind == "f" and not np.isfinite(fill):
        return "NaN" if np.isnan(fill) else "Infinity" if fill > 0 else "-Infinity"
    return fill.item()


def _documents_v3(
    values: np.ndarray, layout: Layout, codecs: Any, dims: Any, fill: np.generic, attributes: dict[str, Any],
) -> dict[str, str]:
    transposed = [{"name": "transpose", "configuration": {"order": [*range(values.ndim)][::-1]}}] if layout.order == "F" else []
    to_bytes: dict[str, Any] = {"name": "bytes"}
    if values.dtype.itemsize > 1:
        to_bytes["configuration"] = {"endian": "big" if layout.big_endian else "little"}
    return {"zarr.json": _json({
        "shape": list(values.shape),
        "data_type": values.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(layout.chunks)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": _fill_in_json(fill),
        "codecs": [*transposed, to_bytes, *(codec.to_dict() for codec in codecs)],
        "attributes": attributes,
        **({} if dims is None else {"dimension_names": list(dims)}),
        "zarr_format": 3, "node_type": "array", "storage_transformers": [],
    })}


def _documents_v2(
    values: np.ndarray, layout: Layout, codec: Any, _dims: Any, fill: np.generic, attributes: dict[str, Any],
) -> dict[str, str]:
    array = {
        "shape": list(values.shape), "chunks": list(layout.chunks), "dtype": _stored(values.dtype, layout).str,
        "fill_value": _fill_in_json(fill), "order": layout.order, "filters": None, "dimension_separator": ".",
        # As zarr-python leaves out what is the default.
        "compressor": codec and {k: v for k, v in codec.get_config().items() if (k, v) != ("checksum", False)}, "zarr_format": 2,
    }
    return {".zarray": _json(array), ".zattrs": _json(attributes)}


def _stored(dtype: np.dtype, layout: Layout) -> np.dtype:
    return dtype.newbyteorder(">") if layout.big_endian else dtype


def _encoder(codec: Any) -> Callable[[Any], bytes]:
    """Returns what encodes bytes as a codec of zarr-python's v3 does."""
    told = codec.to_dict()
    name, config = told["name"], told.get("configuration", {})
    if name == "crc32c":
        return lambda content: bytes(content) + np.uint32(google_crc32c.value(bytes(content))).tobytes()
    if name == "blosc":
        return codec._blosc_codec.encode
    return numcodecs.get_codec({"id": name.removeprefix("numcodecs."), **config}).encode


def _write_chunks(
    folder: Path, values: np.ndarray, zarr_format: int, codecs: Any, layout: Layout, fill: np.generic,
    missing: set[tuple[int, ...]],
) -> None:
    if zarr_format == 2:
        encoders, base, separator = ([codecs.encode] if codecs else []), f"{folder}/", "."
    else:
        encoders, base, separator = [_encoder(codec) for codec in codecs], f"{folder}/c/", "/"
    dtype = _stored(values.dtype, layout)
    ranges = [range(-(-n // c)) for n, c in zip(values.shape, layout.chunks, strict=True)]
    if separator == "/":
        for place in itertools.product(*ranges[:-1]):
            os.makedirs(base + "/".join(map(str, place)), exist_ok=True)
    size = math.prod(layout.chunks)
    for place in itertools.product(*ranges):
        if place in missing:
            continue
        chunk = values[tuple(slice(i * c, (i + 1) * c) for i, c in zip(place, layout.chunks, strict=True))]
        if chunk.size != size:
            whole = np.full(layout.chunks, fill, values.dtype)
            whole[tuple(slice(n) for n in chunk.shape)] = chunk
            chunk = whole
        content: Any = np.ascontiguousarray(chunk.T if layout.order == "F" else chunk, dtype)
        if zarr_format == 3:
            content = content.reshape(-1).view("u1")
        for encode in encoders:
            content = encode(content)
        file = os.open(base + separator.join(map(str, place)), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            written = os.write(file, content)
            assert written == memoryview(content).nbytes, "the disk is full"
        finally:
            os.close(file)

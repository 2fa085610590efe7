"""The recipe for GeoTIFF: tiles of each compression and predictor that cloud-optimised GeoTIFFs have, read through the references
that examples/geotiff.py writes, and compared with libtiff's values."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dali_zarr.torch import Loader
from support.tiff import tiff

imagecodecs = pytest.importorskip("imagecodecs")
references = runpy.run_path(str(Path(__file__).parents[1] / "examples/geotiff.py"))["references"]
SIZE, TILE = (45, 70), (16, 32)
FORMATS = {"u": 1, "i": 2, "f": 3}
NUMBERS = {"none": 1, "lzw": 5, "jpeg": 7, "jpeg-tables": 7, "deflate": 8, "jpeg2k": 34712, "zstd": 50000, "webp": 50001}


def scene(bands: int, dtype: str) -> np.ndarray:
    y, x, band = np.mgrid[0 : SIZE[0], 0 : SIZE[1], 0:bands]
    values = (np.sin(x / (7 + band)) + np.cos(y / (5 + band)) + 2) / 4 + np.random.default_rng(1).normal(0, 0.02, (*SIZE, bands))
    d = np.dtype(dtype)
    return (values.clip(0, 1) * (1 if d.kind == "f" else np.iinfo(d).max)).astype(d)


def predicted(tile: np.ndarray, predictor: int) -> Any:
    """A tile of pixels as differences. TIFF's floating-point predictor gives bytes."""
    if predictor == 1:
        return tile.tobytes()
    encode = imagecodecs.delta_encode if predictor == 2 else imagecodecs.floatpred_encode
    return np.ascontiguousarray(encode(tile.astype(tile.dtype.newbyteorder("=")), axis=1)).astype(tile.dtype).tobytes()


def encoded(tile: np.ndarray, compression: str, predictor: int) -> tuple[bytes, bytes]:
    """A tile (y, x, band) and the tables beside it."""
    picture = tile[..., 0] if tile.shape[-1] == 1 else tile
    match compression:
        case "none":
            return predicted(tile, predictor), b""
        case "lzw":
            return imagecodecs.lzw_encode(predicted(tile, predictor)), b""
        case "deflate":
            return imagecodecs.zlib_encode(predicted(tile, predictor)), b""
        case "zstd":
            return imagecodecs.zstd_encode(predicted(tile, predictor)), b""
        case "webp":
            return imagecodecs.webp_encode(picture, lossless=True), b""
        case "jpeg2k":
            return imagecodecs.jpeg2k_encode(picture, codecformat="j2k", reversible=True), b""
    whole = imagecodecs.jpeg8_encode(picture, level=90)
    return split_tables(whole) if compression == "jpeg-tables" else (whole, b"")


def split_tables(whole: bytes) -> tuple[bytes, bytes]:
    at, tables, rest = 2, b"", b""
    while whole[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(whole[at + 2 : at + 4])
        is_table = whole[at + 1] in (0xDB, 0xC4)
        tables, rest = (tables + whole[at:end], rest) if is_table else (tables, rest + whole[at:end])
        at = end
    return b"\xff\xd8" + rest + whole[at:], b"\xff\xd8" + tables + b"\xff\xd9"


def write(path: Path, values: np.ndarray, compression: str, predictor: int = 1, planar: bool = False, **how: Any) -> None:
    """Writes (y, x, band), with tiles at the edges filled up."""
    bands, d = values.shape[-1], values.dtype
    padded = np.pad(values, [(0, -SIZE[0] % TILE[0]), (0, -SIZE[1] % TILE[1]), (0, 0)], mode="edge")
    parts = [padded[..., k : k + 1] for k in range(bands)] if planar else [padded]
    tiles, tables = [], b""
    for part in parts:
        for y in range(0, SIZE[0], TILE[0]):
            for x in range(0, SIZE[1], TILE[1]):
                tile, tables = encoded(np.ascontiguousarray(part[y : y + TILE[0], x : x + TILE[1]]), compression, predictor)
                tiles.append(tile)
    is_ycbcr = compression.startswith("jpeg") and compression != "jpeg2k" and bands == 3
    tags: dict[int, tuple[str, tuple[int, ...]]] = {
        256: ("H", (SIZE[1],)), 257: ("H", (SIZE[0],)), 258: ("H", (8 * d.itemsize,) * bands), 259: ("H", (NUMBERS[compression],)),
        262: ("H", (6 if is_ycbcr else 2 if bands == 3 else 1,)), 277: ("H", (bands,)), 284: ("H", (2 if planar else 1,)),
        317: ("H", (predictor,)), 322: ("H", (TILE[1],)), 323: ("H", (TILE[0],)), 339: ("H", (FORMATS[d.kind],) * bands),
    }
    tags |= {347: ("B", tuple(tables))} if tables else {}
    tags |= {530: ("H", (2, 2))} if is_ycbcr else {}
    path.write_bytes(tiff(tags, tiles, **how))


def read(path: Path) -> np.ndarray:
    path.with_suffix(".json").write_text(json.dumps(references(path)))
    loader = Loader(
        path.with_suffix(".json"), arrays=["image"], storage_options={"virtual_chunks": path.parent.as_uri() + "/"}, batch_size=9,
        device="cpu",
    )
    return np.concatenate([batch["image"].numpy() for batch in loader])


CASES = [
    ("none", 1, "u2", 1), ("lzw", 1, "u1", 3), ("lzw", 2, "u2", 4), ("lzw", 2, "u1", 1), ("deflate", 2, "i2", 1),
    ("deflate", 2, "u2", 3),
    ("deflate", 3, "f4", 1), ("deflate", 3, "f4", 2), ("zstd", 2, "u2", 3), ("zstd", 3, "f4", 1), ("webp", 1, "u1", 3),
    ("webp", 1, "u1", 4), ("jpeg", 1, "u1", 1), ("jpeg", 1, "u1", 3), ("jpeg-tables", 1, "u1", 3), ("jpeg-tables", 1, "u1", 1),
    ("jpeg2k", 1, "u2", 1), ("jpeg2k", 1, "u1", 3), ("jpeg2k", 1, "u2", 4),
]


@pytest.mark.parametrize(("compression", "predictor", "dtype", "bands"), CASES)
def test_tiles_are_read_as_libtiff_reads_them(tmp_path, compression, predictor, dtype, bands):
    values = scene(bands, dtype)
    write(tmp_path / "a.tif", values, compression, predictor)
    expected = values
    if compression != "jpeg2k":  # which libtiff lacks
        expected = imagecodecs.tiff_decode((tmp_path / "a.tif").read_bytes()).reshape(values.shape)
    np.testing.assert_array_equal(read(tmp_path / "a.tif").reshape(values.shape), expected)
    if compression not in ("jpeg", "jpeg-tables"):
        np.testing.assert_array_equal(expected, values)


@pytest.mark.parametrize(
    "how", [{"planar": True}, {"order": ">"}, {"big": True}, {"order": ">", "big": True, "planar": True}], ids=str,
)
def test_other_forms_of_files(tmp_path, how):
    values = scene(3, ("<" if how.get("order") != ">" else ">") + "u2")
    write(tmp_path / "a.tif", values, "deflate", 2, **how)
    found = read(tmp_path / "a.tif")
    found = np.moveaxis(found.reshape(3, *SIZE), 0, -1) if how.get("planar") else found.reshape(values.shape)
    np.testing.assert_array_equal(found, values)


def test_tiles_that_arent_stored_are_zero(tmp_path):
    values = scene(1, "u1")
    write(tmp_path / "a.tif", values, "deflate")
    refs = references(tmp_path / "a.tif")
    assert len([key for key in refs["refs"] if key.startswith("image/0")]) == 3
    data = bytearray((tmp_path / "a.tif").read_bytes())
    # The length of the first tile, in the list of lengths.
    lengths = b"".join(entry[2].to_bytes(4, "little") for key, entry in refs["refs"].items() if isinstance(entry, list))
    at = bytes(data).index(lengths)
    data[at : at + 4] = bytes(4)
    (tmp_path / "a.tif").write_bytes(data)
    values[: TILE[0], : TILE[1]] = 0
    np.testing.assert_array_equal(read(tmp_path / "a.tif").reshape(values.shape), values)

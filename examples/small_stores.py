"""Writes the small stores that the documentation and the other examples read.

One store for each field, with random values and real structure: a reanalysis, 40 hours and two days of one, demonstrations of a
robot, single cells, an image with labels, and a GeoTIFF. All take a few seconds and 40 MB.
"""

import argparse
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import zarr

LEVELS = [1000, 850, 500, 300, 100]


def write(group: Any, name: str, values: Any, chunks: tuple[int, ...], dims: str = "", **attributes: Any) -> None:
    """One array. ``dims`` are the names of its dimensions, separated by spaces."""
    values = np.asarray(values)
    group.create_array(
        name, shape=values.shape, chunks=chunks, dtype=values.dtype, dimension_names=dims.split() or None, attributes=attributes,
    )[...] = values


def weather(path: Path, times: int, hours: int, start: str) -> None:
    """``t2m`` and ``z`` every ``hours`` hours, a land-sea mask, and coordinates. A chunk has 24 times."""
    rng, group = np.random.default_rng(0), zarr.open_group(path, mode="w")
    t2m = 280 + rng.standard_normal((times, 12, 20), "float32").cumsum(axis=2)
    z = np.linspace(500, 50000, 5, dtype="float32")[:, None, None] + rng.standard_normal((times, 5, 12, 20), "float32")
    write(group, "t2m", t2m.astype("float32"), (24, 12, 20), "time latitude longitude", units="K", long_name="2 metre temperature")
    write(group, "z", z, (24, 5, 12, 20), "time level latitude longitude", units="m**2 s**-2", long_name="geopotential")
    write(group, "lsm", rng.random((12, 20), "float32"), (12, 20), "latitude longitude")
    write(group, "time", np.arange(times) * hours, (times,), "time", units=f"hours since {start}", calendar="standard")
    write(group, "level", LEVELS, (5,), "level", units="hPa")
    write(group, "latitude", np.linspace(82.5, -82.5, 12), (12,), "latitude", units="degrees_north")
    write(group, "longitude", np.arange(20) * 18.0, (20,), "longitude", units="degrees_east")


def demonstrations(path: Path, episodes: int = 200) -> None:
    """Images and actions of all episodes, one after the other, and where each episode ends."""
    rng, group = np.random.default_rng(1), zarr.open_group(path, mode="w")
    ends = rng.integers(20, 40, episodes).cumsum()
    write(group, "data/img", rng.integers(0, 256, (ends[-1], 16, 16, 3), "uint8"), (64, 16, 16, 3))
    write(group, "data/action", rng.random((ends[-1], 2), "float32"), (512, 2))
    write(group, "meta/episode_ends", ends, (episodes,))


def cells(path: Path, rows: int = 2000, genes: int = 500) -> None:
    """Counts as a sparse matrix, as AnnData writes it, with an age, a type and 50 components for each cell."""
    rng, group = np.random.default_rng(2), zarr.open_group(path, mode="w")
    counts = rng.random((rows, genes)) < 0.1
    indptr = np.concatenate([[0], counts.sum(axis=1).cumsum()])
    attributes = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [rows, genes]}
    matrix = group.create_group("X", attributes=attributes)
    write(matrix, "data", rng.integers(1, 9, indptr[-1]).astype("float32"), (4096,))
    write(matrix, "indices", counts.nonzero()[1].astype("int32"), (4096,))
    write(matrix, "indptr", indptr, (rows + 1,))
    write(group, "obs/age", rng.integers(20, 80, rows).astype("float32"), (rows,))
    attributes = {"encoding-type": "categorical", "encoding-version": "0.2.0", "ordered": False}
    kinds = group.create_group("obs/cell_type", attributes=attributes)
    names = kinds.create_array("categories", shape=(3,), chunks=(3,), dtype=str, attributes={"encoding-type": "string-array"})
    names[:] = np.array(["B", "NK", "T"], dtype=object)
    write(kinds, "codes", rng.choice([-1, 0, 1, 2], rows, p=[0.05, 0.25, 0.1, 0.6]).astype("int8"), (rows,))  # -1: not known
    write(group, "obsm/X_pca", rng.standard_normal((rows, 50), "float32"), (500, 50))


def image(path: Path) -> None:
    """An OME-Zarr 0.5 image (channel, z, y, x) of two resolutions, and its labels ``cells`` (z, y, x)."""
    found = np.random.default_rng(3).integers(0, 9, (24, 64, 64), "uint16")
    write_image(path, np.stack([found, found + 100]), "czyx")
    zarr.open_group(path / "labels", mode="w").attrs["ome"] = {"version": "0.5", "labels": ["cells"]}
    write_image(path / "labels" / "cells", found, "zyx")


def write_image(path: Path, values: Any, axes: str) -> None:
    group, sizes = zarr.open_group(path, mode="w"), []
    for level, factor in enumerate((1, 2)):
        coarse = values[..., ::factor, ::factor]
        write(group, str(level), coarse, (1,) * (len(axes) - 3) + (8, 32, 32), " ".join(axes))
        scale = [float(factor) if axis in "yx" else 1.0 for axis in axes]
        sizes.append({"path": str(level), "coordinateTransformations": [{"type": "scale", "scale": scale}]})
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": [{"name": axis} for axis in axes], "datasets": sizes}]}


def geotiff(path: Path, size: int = 512, tile: int = 128) -> None:
    """A scene of four bands in tiles, with deflate and the horizontal predictor, as cloud-optimised GeoTIFFs have them. It lacks
    overviews and a map projection, which readers of tiles don't need."""
    y, x = np.mgrid[0:size, 0:size] / 40
    bands = np.stack([np.sin(x + k) + np.cos(y - k) for k in range(3)], -1)
    bands = np.concatenate([bands, bands.mean(-1, keepdims=True)], -1) + np.random.default_rng(4).normal(0, 0.05, (size, size, 4))
    values = (3000 + 800 * bands).astype("<u2")
    offsets, lengths, data = list[int](), list[int](), bytearray(b"II*\0\0\0\0\0")
    for top in range(0, size, tile):
        for left in range(0, size, tile):
            pixels = values[top : top + tile, left : left + tile]
            differences = np.concatenate([pixels[:, :1], np.diff(pixels, axis=1)], axis=1)  # modulo 65536
            offsets.append(len(data))
            data += zlib.compress(differences.tobytes())
            lengths.append(len(data) - offsets[-1])
    tags: dict[int, tuple[str, Any]] = {
        256: ("H", (size,)), 257: ("H", (size,)), 258: ("H", (16,) * 4), 259: ("H", (8,)), 262: ("H", (1,)), 277: ("H", (4,)),
        284: ("H", (1,)), 317: ("H", (2,)), 322: ("H", (tile,)), 323: ("H", (tile,)), 324: ("I", offsets), 325: ("I", lengths),
        338: ("H", (0,) * 3), 339: ("H", (1,) * 4),
    }
    entries = b""
    for tag, (kind, numbers) in tags.items():
        packed = struct.pack(f"<{len(numbers)}{kind}", *numbers)
        if len(packed) > 4:
            data += b"\0" * (len(data) % 2)
            packed, place = struct.pack("<I", len(data)), packed
            data += place
        entries += struct.pack("<HHI4s", tag, {"H": 3, "I": 4}[kind], len(numbers), packed)
    data += b"\0" * (len(data) % 2)
    data[4:8] = struct.pack("<I", len(data))
    path.write_bytes(bytes(data) + struct.pack("<H", len(tags)) + entries + b"\0" * 4)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    weather(folder / "era5.zarr", 4 * 1461, 6, "2015-01-01")
    weather(folder / "hours.zarr", 40, 1, "2020-01-01")
    weather(folder / "days.zarr", 48, 1, "2020-01-01")
    demonstrations(folder / "pusht.zarr")
    cells(folder / "cells.zarr")
    image(folder / "image.zarr")
    geotiff(folder / "scene.tif")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("example-data"), help="default: %(default)s")
    chosen = parser.parse_args().folder
    main(chosen)
    print(f"wrote {', '.join(sorted(store.name for kind in ('*.zarr', '*.tif') for store in chosen.glob(kind)))} to {chosen}")

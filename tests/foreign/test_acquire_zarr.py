"""What acquire-zarr streams from cameras: v3 with shards that are never whole, pyramids, whatever the frames were appended in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.configurations import values as random_values
from support.foreign import Foreign, compare, tensorstore, writer, zarr_python

aqz = writer("acquire_zarr")
writer("tensorstore")

TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64")


def _write(rng: np.random.Generator, folder: Path, key: str, pyramid: bool, dtype: str | None = None) -> np.ndarray:
    dtype = dtype or str(rng.choice(TYPES))
    shape = tuple(int(n) for n in (rng.integers(2, 9), rng.integers(1, 4), rng.integers(16, 49), rng.integers(16, 49)))
    kinds = (aqz.DimensionType.TIME, aqz.DimensionType.CHANNEL, aqz.DimensionType.SPACE, aqz.DimensionType.SPACE)
    dimensions = []
    for k, (name, kind, extent) in enumerate(zip("tcyx", kinds, shape)):
        chunk = int(rng.integers(1, extent + 1)) if k < 2 else int(rng.integers(extent // 3, extent + 1))
        chunks = -(-extent // chunk)
        dimensions.append(
            aqz.Dimension(
                name=name, kind=kind, array_size_px=0 if k == 0 else extent, chunk_size_px=chunk,
                shard_size_chunks=int(rng.integers(1, chunks + 1)),
            )
        )
    compressions = [
        None,
        aqz.CompressionSettings(compressor=aqz.Compressor.ZSTD, codec=aqz.CompressionCodec.ZSTD, level=int(rng.integers(1, 10))),
        aqz.CompressionSettings(
            compressor=aqz.Compressor.BLOSC1, level=int(rng.integers(1, 10)), shuffle=int(rng.integers(0, 3)),
            codec=aqz.CompressionCodec.BLOSC_LZ4 if rng.random() < 0.5 else aqz.CompressionCodec.BLOSC_ZSTD,
        ),
    ]
    compression = compressions[int(rng.integers(0, 3))]
    array = aqz.ArraySettings(
        output_key=key, data_type=np.dtype(dtype), dimensions=dimensions, **({"compression": compression} if compression else {}),
        **({"downsampling_method": aqz.DownsamplingMethod.DECIMATE} if pyramid else {}),
    )
    stream = aqz.ZarrStream(aqz.StreamSettings(store_path=str(folder), arrays=[array], overwrite=True))
    values = random_values(rng, dtype, shape)
    # Frames come in pieces that have nothing to do with chunks.
    at = 0
    while at < shape[0]:
        piece = int(rng.integers(1, 4))
        stream.append(values[at : at + piece], key=key)
        at += piece
    stream.close()
    return values


def random_array(rng: np.random.Generator, folder: Path) -> Foreign:
    """A stream of frames of any type."""
    values = _write(rng, folder, "kamera/a", False)
    references = {
        "what was written": values, "zarr-python": zarr_python(folder, "kamera/a"), "tensorstore": tensorstore(folder, "kamera/a"),
    }
    return Foreign(folder, "kamera/a", references, list("tcyx"))


@pytest.mark.parametrize("seed", range(10))
def test_random(tmp_path, device, seed):
    """A fixed sample of streams."""
    compare(device, random_array(np.random.default_rng(seed), tmp_path / "a.zarr"), seed)


def test_pyramid(tmp_path, device):
    """The levels that it computes while it streams."""
    _write(np.random.default_rng(1), tmp_path / "a", "p", True, "uint16")
    levels = sorted(child.name for child in (tmp_path / "a" / "p").iterdir() if child.is_dir())
    assert len(levels) > 1
    for level in levels:
        name = f"p/{level}"
        references = {"zarr-python": zarr_python(tmp_path / "a", name), "tensorstore": tensorstore(tmp_path / "a", name)}
        compare(device, Foreign(tmp_path / "a", name, references, list("tcyx")))


# For the long search by tests/random_foreign.py.
RANDOM = (random_array,)

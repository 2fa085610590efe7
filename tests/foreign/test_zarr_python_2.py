"""What zarr-python 2 wrote, by whom most stores in the world were written: every filter of numcodecs, arrays that grew and shrank,
nested folders and zip archives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.configurations import CNAMES
from support.configurations import values as random_values
from support.foreign import Foreign, compare, missing
from support.stores import DTYPES

HERE = Path(__file__).resolve().parent
ENVIRONMENT = HERE.parents[1] / "build" / "foreign" / "zarr2"
if not ENVIRONMENT.is_dir():
    missing("zarr-python 2")


def _codecs(rng: np.random.Generator, dtype: np.dtype) -> list[dict[str, Any]]:
    """Filters, and a compressor or none."""
    size, name = dtype.itemsize, dtype.str
    filters: list[dict[str, Any]] = [{"id": "shuffle", "elementsize": size}]
    if dtype.kind in "iu":
        filters.append({"id": "delta", "dtype": name, "astype": name})
    if dtype.kind == "f":
        filters.append({"id": "astype", "encode_dtype": "<f4", "decode_dtype": name})
        filters.append({"id": "quantize", "digits": 2, "dtype": name, "astype": name})
        filters.append({"id": "fixedscaleoffset", "offset": 3, "scale": 10, "dtype": name, "astype": "<i4"})
    if dtype.kind == "f" and size < 8 and name[0] != ">":
        filters.append({"id": "bitround", "keepbits": 5})
    if dtype.kind == "b":
        filters = [{"id": "packbits"}]
    checks = [{"id": name} for name in ("crc32", "adler32", "fletcher32")]
    compressors = [
        {"id": "zlib", "level": int(rng.integers(0, 10))}, {"id": "gzip", "level": int(rng.integers(0, 10))},
        {"id": "bz2", "level": int(rng.integers(1, 10))}, {"id": "zstd", "level": int(rng.integers(-5, 10))},
        {"id": "lz4", "acceleration": 1}, {"id": "lzma", "format": 1, "check": -1, "preset": 1, "filters": None},
        {
            "id": "blosc", "cname": str(rng.choice(CNAMES)), "clevel": int(rng.integers(0, 10)),
            "shuffle": int(rng.integers(-1, 3)), "blocksize": int(rng.choice([0, 0, 512])),
        },
    ]
    chosen = [filters[int(rng.integers(0, len(filters)))]] if rng.random() < 0.4 else []
    chosen.append(compressors[int(rng.integers(0, len(compressors)))])
    return chosen + ([checks[int(rng.integers(0, len(checks)))]] if rng.random() < 0.2 else [])


def random_array(rng: np.random.Generator, folder: Path) -> Foreign:
    """An array of any type, by any filters and compressor, however it came to its shape."""
    dtype = np.dtype(str(rng.choice([*DTYPES, "datetime64[s]", "timedelta64[ns]"])))
    dtype = dtype.newbyteorder(str(rng.choice(["<", "<", ">"])))
    shape = tuple(int(n) for n in rng.integers(1, 20, int(rng.integers(1, 5))))
    times = dtype.kind in "mM"
    values = random_values(rng, "int64" if times else dtype.newbyteorder("=").name, shape)
    if dtype.kind == "f":
        values = np.nan_to_num(values, posinf=1.0, neginf=1.0).clip(-1e4, 1e4)
    values = values.view(dtype.newbyteorder("=")) if times else values
    store, compressed = str(rng.choice(["directory", "nested", "zip"])), bool(rng.random() < 0.9)
    # What was never written has no value where there is no fill value.
    how = "whole" if store == "zip" else str(rng.choice(["whole", "appended", "shrunk", "grown"]))
    fill: Any = [None if how == "whole" else 1, 0, 1][int(rng.integers(0, 3))]
    if times and how != "whole":
        fill = "NaT"
    folder = folder.with_suffix(".zip") if store == "zip" else folder
    name = str(rng.choice(["a", "deep/er/a b"]))
    result = folder.with_suffix(".result.npy")
    np.save(folder.with_suffix(".npy"), values)
    job = {
        "values": str(folder.with_suffix(".npy")), "result": str(result), "folder": str(folder), "store": store, "name": name,
        "codecs": [] if times or not compressed else _codecs(rng, dtype), "compressed": compressed,
        "how": how, "consolidated": bool(rng.random() < 0.5),
        "attributes": {"_ARRAY_DIMENSIONS": [f"x{i}" for i in range(len(shape))]},
        "arguments": {
            "shape": shape, "chunks": [int(rng.integers(1, n + 3)) for n in shape], "dtype": dtype.str,
            "order": str(rng.choice(["C", "F"])), "fill_value": fill,
            "write_empty_chunks": store == "zip" or bool(rng.random() < 0.5),
        },
    }
    environment = os.environ | {"PYTHONPATH": str(ENVIRONMENT)}
    command = [sys.executable, "-W", "ignore", str(HERE / "write_zarr2.py"), json.dumps(job)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    later = zarr.storage.ZipStore(folder, mode="r") if store == "zip" else str(folder)
    references = {"zarr-python 2": np.load(result), "zarr-python 3": np.asarray(zarr.open_group(later, mode="r")[name][...])}
    return Foreign(folder, name, references, job["attributes"]["_ARRAY_DIMENSIONS"])


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.filterwarnings("ignore")
def test_random(tmp_path, device, seed):
    """A fixed sample of arrays."""
    compare(device, random_array(np.random.default_rng(seed), tmp_path / "a.zarr"), seed)


# For the long search by tests/random_foreign.py.
RANDOM = (random_array,)

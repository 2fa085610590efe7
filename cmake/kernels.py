"""Compiles the kernels to one fat binary that drivers of CUDA 12 load too: code of CUDA 13's compiler needs a driver of CUDA 13.

PyPI has no nvcc of CUDA 12, but two libraries that do its work: NVRTC compiles, nvFatbin puts the results into one file. No GPU is
needed.

    python cmake/kernels.py SITE TARGET    # SITE: the folder with the packages nvidia-cuda-nvrtc-cu12 and nvidia-nvfatbin-cu12
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

KERNELS = Path(__file__).parents[1] / "src/kernels"

# NVRTC has no headers of the host. The kernels take these names from them.
HEADERS = {
    "cmath": "",
    "cstring": "",
    "cstddef": "#define offsetof(type, member) ((size_t)__INTADDR__(&(((type*)0)->member)))\n",
    "cstdint": "".join(
        f"typedef signed {c} int{n}_t; typedef unsigned {c} uint{n}_t;\n"
        f"#define UINT{n}_MAX ((uint{n}_t)~(uint{n}_t)0)\n"
        f"#define INT{n}_MAX ((int{n}_t)(UINT{n}_MAX >> 1))\n#define INT{n}_MIN ((int{n}_t)(-INT{n}_MAX - 1))\n"
        for n, c in ((8, "char"), (16, "short"), (32, "int"), (64, "long"))
    ) + "typedef unsigned long uintptr_t;\n",
}


def architectures() -> list[str]:
    """What build.rs compiles for, unless CUDAARCHS names others: machine code as ``sm_90``, PTX as ``compute_90``."""
    if os.environ.get("CUDAARCHS") == "native":
        raise ValueError("CUDAARCHS: expected numbers as in 80-real;90, but found native: a wheel is for other machines too")
    (found,) = re.findall(r'ARCHITECTURES: &str = "([^"]+)"', (KERNELS / "build.rs").read_text())
    names: list[str] = []
    for one in (os.environ.get("CUDAARCHS") or found).split(";"):
        number, _, kind = one.partition("-")
        names += [f"sm_{number}"] * (kind != "virtual") + [f"compute_{number}"] * (kind != "real")
    return names


def library(site: Path, name: str) -> ctypes.CDLL:
    (found,) = site.glob(f"nvidia/*/lib/{name}")
    return ctypes.CDLL(str(found))


def checked(status: int, what: str) -> None:
    if status:
        raise RuntimeError(f"{what} failed with status {status}")


def texts(words: list[str]) -> Any:
    return (ctypes.c_char_p * len(words))(*(word.encode() for word in words))


def compiled(site: Path, architecture: str) -> bytes:
    """Machine code for ``sm_90``, or PTX for ``compute_90``."""
    nvrtc = library(site, "libnvrtc.so.12")
    source = KERNELS / "cuda/kernels.cu"
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    checked(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), source.name.encode(), len(HEADERS),
                                     texts(list(HEADERS.values())), texts(list(HEADERS))), "nvrtcCreateProgram")
    options = [f"--gpu-architecture={architecture}", "--std=c++17", f"--include-path={source.parent}"]
    failed = nvrtc.nvrtcCompileProgram(program, len(options), texts(options))
    checked(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)), "nvrtcGetProgramLogSize")
    log = ctypes.create_string_buffer(size.value)
    checked(nvrtc.nvrtcGetProgramLog(program, log), "nvrtcGetProgramLog")
    said = log.value.decode()
    # As nvcc is asked to: a warning is an error.
    if failed or said.strip():
        raise RuntimeError(f"NVRTC could not compile {source} for {architecture} without a word:\n{said}")
    kind = "CUBIN" if architecture.startswith("sm_") else "PTX"
    checked(getattr(nvrtc, f"nvrtcGet{kind}Size")(program, ctypes.byref(size)), f"nvrtcGet{kind}Size")
    code = ctypes.create_string_buffer(size.value)
    checked(getattr(nvrtc, f"nvrtcGet{kind}")(program, code), f"nvrtcGet{kind}")
    checked(nvrtc.nvrtcDestroyProgram(ctypes.byref(program)), "nvrtcDestroyProgram")
    return code.raw


def joined(site: Path, parts: dict[str, bytes]) -> bytes:
    """One fat binary of all. Compressed as all drivers of CUDA 12 can read: they know the mode "speed", not all the later ones."""
    nvfatbin = library(site, "libnvfatbin.so.12")
    handle, size = ctypes.c_void_p(), ctypes.c_size_t()
    options = ["-64", "-compress-all", "-compress-mode=speed"]
    checked(nvfatbin.nvFatbinCreate(ctypes.byref(handle), texts(options), ctypes.c_size_t(len(options))), "nvFatbinCreate")
    for architecture, code in parts.items():
        kind, _, number = architecture.partition("_")
        one = (handle, code, ctypes.c_size_t(len(code)), number.encode(), b"kernels")
        if kind == "sm":
            checked(nvfatbin.nvFatbinAddCubin(*one), f"nvFatbinAddCubin ({architecture})")
        else:
            checked(nvfatbin.nvFatbinAddPTX(*one, b""), f"nvFatbinAddPTX ({architecture})")
    checked(nvfatbin.nvFatbinSize(handle, ctypes.byref(size)), "nvFatbinSize")
    binary = ctypes.create_string_buffer(size.value)
    checked(nvfatbin.nvFatbinGet(handle, binary), "nvFatbinGet")
    checked(nvfatbin.nvFatbinDestroy(ctypes.byref(handle)), "nvFatbinDestroy")
    return binary.raw


def main(site: Path, target: Path) -> None:
    """Does nothing if the kernels haven't changed since."""
    sources = [Path(__file__), KERNELS / "build.rs", *(KERNELS / "cuda").iterdir()]
    if target.exists() and all(source.stat().st_mtime < target.stat().st_mtime for source in sources):
        return
    names = architectures()
    with ProcessPoolExecutor(min(len(names), os.cpu_count() or 1)) as workers:
        parts = dict(zip(names, workers.map(partial(compiled, site), names)))
    target.with_suffix(".new").write_bytes(joined(site, parts))
    target.with_suffix(".new").replace(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

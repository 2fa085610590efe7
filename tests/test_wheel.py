"""What a wheel promises, as far as it shows without building one. tests/wheel.py is what `make wheel-test` runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from email.parser import HeaderParser
from pathlib import Path

import dali_zarr
import pytest
from dali_zarr import _build

ROOT = Path(__file__).parents[1]
PACKAGE = Path(dali_zarr.__file__).parent
ENGINE = PACKAGE / _build.LIBRARY
OPERATORS = [dali_zarr.plugin_path(version) for version in _build.DALI_VERSIONS]
# What manylinux_2_28 has, of GCC 8 and glibc 2.28.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}


def told(tool: str, *words: object) -> str:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} isn't installed")
    return subprocess.run([tool, *map(str, words)], capture_output=True, text=True, check=True).stdout


def cmake(*words: object) -> subprocess.CompletedProcess[str]:
    import cmake

    tool = Path(cmake.CMAKE_BIN_DIR) / "cmake"
    environment = os.environ | {"DALI_ZARR_CUDA_INCLUDE": str(ROOT)}
    return subprocess.run([str(word) for word in (tool, *words)], env=environment, capture_output=True, text=True, check=False)


def test_the_metadata(tmp_path):
    """As pip reads it, by the backend of the build."""
    script = "import sys; from scikit_build_core.build import prepare_metadata_for_build_wheel as made; print(made(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", script, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True)
    found = HeaderParser().parsestr((tmp_path / done.stdout.split()[-1] / "METADATA").read_text())
    assert (found["Name"], found["Version"], found["Requires-Python"]) == ("dali-zarr", dali_zarr.__version__, ">=3.11")
    plain = [one for one in found.get_all("Requires-Dist") if "extra ==" not in one]
    assert plain == ["numpy"], "DALI's builds for CUDA 12 and 13 have different names: the extras bring one"
    extras = ["anemoi", "annbatch", "credit", "diffusion-policy", "lightning", "physicsnemo", "transformers", "viscy", "xbatcher"]
    assert found.get_all("Provides-Extra") == ["cuda12", "cuda13", *extras]
    versions = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["dali-zarr"]["dali"]
    for extra, name in (("cuda12", "nvidia-dali-cuda120"), ("cuda13", "nvidia-dali-cuda130")):
        (one,) = (one for one in found.get_all("Requires-Dist") if extra in one)
        assert re.match(r"[\w-]+", one)[0] == name
        assert f">={versions[0]}" in one and f"<={versions[-1]}" in one


def test_what_the_package_has():
    libraries = {file.name for file in ENGINE.parent.iterdir() if file.is_file()}
    assert libraries == {ENGINE.name, *(operator.name for operator in OPERATORS)}
    assert (PACKAGE / "include/dali_zarr.h").is_file()
    assert (ENGINE.parent / "cmake/dali_zarr/dali_zarrConfig.cmake").is_file()


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda path: path.stem)
def test_operators_and_the_engine_fit(operator):
    """The Rust half of the bridge is the engine's, the C++ half is the operator's, and nothing of C++ is between them."""
    exported = {line.split()[-1] for line in told("nm", "-D", "--defined-only", ENGINE).splitlines()}
    wanted = {line.split()[-1] for line in told("nm", "-D", "--undefined-only", operator).splitlines()}
    bridge = {name for name in wanted if name.startswith(("cxxbridge1$", "dali_zarr$engine$"))}
    assert any(name.endswith("$ZarrReader$next_batch") for name in bridge)
    assert bridge <= exported
    assert not [name for name in exported if name.startswith("_Z") or "$cxx_string$" in name or name == "cxxbridge1$error"]
    assert told("nm", "-D", "--defined-only", operator) == ""


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda path: path.stem)
def test_operators_need_no_newer_system_than_the_wheel_promises(operator):
    """shim/compat.cc has what newer compilers ask of their libraries. `make wheel` asks for GCC 12 or older."""
    compilers = re.findall(r"GCC: \(.*?\) (\d+)\.", told("readelf", "--string-dump=.comment", operator))
    if max(map(int, compilers), default=0) > 12:
        pytest.skip(f"GCC {max(compilers)} compiled it")
    needed = re.findall(r"Name: ([A-Z]+)_([\d.]+) ", told("readelf", "--version-info", "--wide", operator))
    assert {"GLIBC", "GLIBCXX"} <= {name for name, _ in needed}
    of_system = [(name, version) for name, version in needed if name in NEWEST]  # DALI's symbols have versions too
    newer = [f"{name}_{version}" for name, version in of_system if tuple(map(int, version.split("."))) > NEWEST[name]]
    assert newer == []


def test_an_operator_isnt_built_for_a_library_without_its_bridge(tmp_path):
    """Such as an installed one: what cargo wrote lies beside the one that cargo built."""
    done = cmake("-S", ROOT / "cmake", "-B", tmp_path, f"-DPython_EXECUTABLE={sys.executable}", f"-DDALI_ZARR_LIBRARY={ENGINE}")
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert "bridge was not found: operators need what cargo wrote beside" in said and "-DDALI_ZARR_WITH_DALI=OFF" in said


def test_the_python_package_isnt_built_without_the_operator(tmp_path):
    done = cmake("-S", ROOT / "cmake", "-B", tmp_path, "-DSKBUILD=2", "-DDALI_ZARR_WITH_DALI=OFF", f"-DDALI_ZARR_LIBRARY={ENGINE}")
    assert done.returncode != 0
    assert "The Python package needs the operator" in " ".join(done.stderr.split())

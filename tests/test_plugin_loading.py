"""Loading the plugin: what it needs, what it refuses, and that it can be loaded again."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import dali_zarr
import nvidia.dali
import pytest
from dali_zarr import _build, _load
from support.pipelines import run_script

ENGINE = Path(dali_zarr.__file__).parent / _build.LIBRARY
OPERATOR = dali_zarr.plugin_path()


def python(code, *arguments):
    """Runs ``code`` in a fresh interpreter; gives what it printed. Anything on stderr but DALI's warnings is an error."""
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_another_dali_is_refused_with_what_to_install():
    with pytest.raises(ImportError) as caught:
        _load.check_dali_version("2.1.0", "/somewhere/nvidia/dali")
    message = str(caught.value)
    newest = _build.DALI_VERSIONS[-1]
    assert f'pip install "nvidia-dali-cuda130=={newest}"' in message
    for part in (*_build.DALI_VERSIONS, "2.1.0", "/somewhere", "nvidia-dali-cuda120"):
        assert part in message


def test_the_operator_is_that_of_the_dali_that_is_installed():
    assert OPERATOR.name == f"libdali_zarr_dali-{nvidia.dali.__version__}.so"
    for version in _build.DALI_VERSIONS:
        assert dali_zarr.plugin_path(version).is_file()
        assert dali_zarr.plugin_path(f"{version}+build.1") == dali_zarr.plugin_path(version)
    with pytest.raises(ValueError, match=r"expected a DALI of .*, but found 2\.1\.0"):
        dali_zarr.plugin_path("2.1.0")


def test_the_extras_allow_the_versions_that_the_wheel_is_built_for():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    versions = project["tool"]["dali-zarr"]["dali"]
    assert versions == sorted(versions, key=lambda v: [int(part) for part in v.split(".")])
    for cuda, name in (("cuda12", "cuda120"), ("cuda13", "cuda130")):
        (requirement,) = project["project"]["optional-dependencies"][cuda]
        assert requirement == f"nvidia-dali-{name}>={versions[0]},<={versions[-1]}"


def test_the_version_is_compared_before_the_library_is_loaded():
    out = python(
        """
import nvidia.dali
nvidia.dali.__version__ = "1.2.3"
try:
    import dali_zarr
except ImportError as error:
    print(error)
assert "libdali_zarr" not in open("/proc/self/maps").read()
assert not hasattr(nvidia.dali.fn, "zarr_reader")
"""
    )
    assert "built for NVIDIA DALI" in out and "1.2.3" in out


def test_missing_dali_is_said():
    out = python(
        """
import importlib.abc, sys
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "nvidia.dali":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
try:
    import dali_zarr
except ImportError as error:
    print(error)
"""
    )
    assert "needs NVIDIA DALI" in out and 'pip install "nvidia-dali-cuda130==' in out


def test_importing_prints_nothing():
    done = subprocess.run([sys.executable, "-c", "import dali_zarr"], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("first", ["import dali_zarr", "import nvidia.dali.fn", "import nvidia.dali.experimental.dynamic"])
def test_imports_in_any_order(first):
    out = run_script(
        first
        + """
import dali_zarr
import nvidia.dali.experimental.dynamic as dynamic
from nvidia.dali import fn, ops
print(fn.zarr_reader.__name__, fn.readers.zarr.__name__, ops.readers.Zarr.__name__, dynamic.readers.Zarr.__name__)
""",
        imports="only torch",
    )
    assert out.split() == ["zarr_reader", "zarr", "Zarr", "Zarr"]


def test_loading_again_is_harmless(tmp_path):
    """The same file, and a copy of it, which the dynamic linker takes for another library."""
    copy = shutil.copy(OPERATOR, tmp_path / "libcopy.so")
    out = python(
        """
import sys
import dali_zarr, importlib
from nvidia.dali import fn, plugin_manager
for path in sys.argv[1:]:
    plugin_manager.load_library(path)
wrapped = fn.zarr_reader
dali_zarr._load.load()
importlib.reload(dali_zarr)
assert fn.zarr_reader is wrapped
print("loaded")
""",
        OPERATOR,
        copy,
    )
    assert out.strip() == "loaded"


def dynamic(library):
    """The libraries that the dynamic linker has to find before this one can be used at all, and where it looks first."""
    if shutil.which("readelf") is None:
        pytest.skip("readelf isn't installed")
    told = subprocess.run(["readelf", "--dynamic", "--wide", library], capture_output=True, text=True, check=True).stdout

    def values(tag):
        return [line.split("[")[1].split("]")[0] for line in told.splitlines() if f"({tag})" in line]

    return values("NEEDED"), values("RPATH") + values("RUNPATH")


def test_the_engine_needs_neither_dali_nor_driver_nor_nvcomp():
    needed, path = dynamic(ENGINE)
    assert not [name for name in needed if name.startswith(("libdali", "libcuda", "libnvcomp", "libnv"))]
    assert path == []


def test_the_operator_needs_dali_and_the_engine_beside_it():
    needed, path = dynamic(OPERATOR)
    assert {"libdali.so", "libdali_zarr.so"} <= set(needed)
    assert not [name for name in needed if name.startswith(("libcuda", "libnvcomp", "libnv"))]
    assert path == ["$ORIGIN"]


def test_command_line():
    for arguments in (["--version"], []):
        done = subprocess.run([sys.executable, "-m", "dali_zarr", *arguments], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0
        assert "dali_zarr" in done.stdout

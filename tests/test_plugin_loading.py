"""Loading the plugin: what it needs, what it refuses, and that it can be loaded again."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import dali_zarr
import pytest
from dali_zarr import _build, _load
from support.pipelines import run_script

LIBRARY = Path(dali_zarr.__file__).parent / _build.LIBRARY


def python(code, *arguments):
    """Runs ``code`` in a fresh interpreter; gives what it printed. Anything on stderr but DALI's warnings is an error."""
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_another_dali_is_refused_with_what_to_install():
    with pytest.raises(ImportError) as caught:
        _load.check_dali_version("2.3.0", "/somewhere/nvidia/dali")
    message = str(caught.value)
    for part in (_build.DALI_VERSION, "2.3.0", "/somewhere", f"pip install nvidia-dali-cuda130=={_build.DALI_VERSION}"):
        assert part in message


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
    assert "needs NVIDIA DALI" in out and "pip install nvidia-dali-cuda130" in out


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
    copy = shutil.copy(LIBRARY, tmp_path / "libcopy.so")
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
        LIBRARY,
        copy,
    )
    assert out.strip() == "loaded"


def test_the_library_needs_neither_driver_nor_nvcomp():
    """What the dynamic linker has to find before the library can be used at all."""
    if shutil.which("readelf") is None:
        pytest.skip("readelf isn't installed")
    dynamic = subprocess.run(["readelf", "--dynamic", "--wide", LIBRARY], capture_output=True, text=True, check=True).stdout
    needed = [line.split("[")[1].split("]")[0] for line in dynamic.splitlines() if "(NEEDED)" in line]
    assert "libdali.so" in needed
    assert not [name for name in needed if name.startswith(("libcuda", "libnvcomp", "libnv"))]
    assert not [line for line in dynamic.splitlines() if "RPATH" in line or "RUNPATH" in line]


def test_nvcomp_is_found_in_its_wheel(monkeypatch):
    """DALI's wheel requires nvCOMP's, so it is there; without it there is nothing to tell, and no error."""
    (directory,) = _load.nvcomp_dirs()
    assert list(Path(directory).glob("libnvcomp.so*"))
    monkeypatch.setattr(_load.importlib.util, "find_spec", lambda name: None)
    assert _load.nvcomp_dirs() == []


def test_command_line():
    for arguments in (["--version"], []):
        done = subprocess.run([sys.executable, "-m", "dali_zarr", *arguments], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0
        assert "dali_zarr" in done.stdout

"""Loads the plugin into DALI, once it is certain that the two fit.

A plugin is bound to the DALI that it was built for: every symbol of DALI carries its version, and loading against
another one fails in the dynamic linker with a message about symbols. So versions are compared first.
"""

import importlib.util
import os
import sys
from pathlib import Path

from . import _dynamic, _errors, _native, _wrap
from ._build import DALI_VERSION, VERSION
from ._build import LIBRARY as _LIBRARY

LIBRARY = Path(__file__).parent / _LIBRARY


def plugin_path() -> Path:
    """The library with the operator: for ``nvidia.dali.plugin_manager.load_library`` in a process that doesn't import this package,
    and for ``plugin_libs`` of Triton's DALI backend. It fits one version of DALI, ``dali_zarr.DALI_VERSION``."""
    return LIBRARY


def check_dali_version(installed: str, location: str) -> None:
    """Raises ImportError unless ``installed`` is the version that the plugin was built for."""
    if installed.split("+")[0] == DALI_VERSION:
        return
    raise ImportError(
        f"dali_zarr {VERSION} was built for NVIDIA DALI {DALI_VERSION}, but DALI {installed} is installed in "
        f"{location}. Install the one that fits (pip install nvidia-dali-cuda130=={DALI_VERSION}), or build "
        f"dali_zarr from source against DALI {installed} (pip install --no-build-isolation --no-deps, in its source "
        "folder)."
    )


def nvcomp_dirs() -> list[str]:
    """The folders in which the wheel of nvCOMP keeps its libraries; empty where it isn't installed.

    Nothing is imported: whether nvCOMP is needed at all is known only when a reader is opened.
    """
    try:
        spec = importlib.util.find_spec("nvidia.libnvcomp")
    except ModuleNotFoundError:
        return []
    roots = spec.submodule_search_locations if spec else None
    return [str(found) for root in roots or [] for name in ("lib64", "lib") if (found := Path(root, name)).is_dir()]


def separate_streams() -> None:
    """Asks CUDA for as many hardware queues as the reader has streams and more, unless the user set a number.

    With the default of 8, streams share queues: a copy of one then waits for the decoding of another, and zstd is read
    at half the speed. The driver reads the variable when CUDA is initialised, so this package should be imported before.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


def load() -> None:
    """Makes the operator exist in DALI. Does nothing the second time.

    Raises:
        ImportError: DALI is missing, or is another version than the plugin was built for.
        RuntimeError: the library can't be loaded.
    """
    separate_streams()
    try:
        import nvidia.dali as dali
    except ModuleNotFoundError as error:
        if error.name not in ("nvidia", "nvidia.dali"):
            raise
        raise ImportError(
            f"dali_zarr needs NVIDIA DALI {DALI_VERSION}, which isn't installed in {sys.prefix}: "
            f"pip install nvidia-dali-cuda130=={DALI_VERSION}"
        ) from error
    check_dali_version(dali.__version__, str(Path(dali.__file__).parent))

    from nvidia.dali import plugin_manager

    plugin_manager.load_library(str(LIBRARY))
    _native.bind(LIBRARY)
    _native.set_nvcomp_dirs(nvcomp_dirs())
    _wrap.wrap_functions()
    _dynamic.add_operator()
    _errors.hook()

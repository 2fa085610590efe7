"""Loads the plugin into DALI, once it is certain that the two fit.

The plugin is two libraries: the engine, which knows nothing of DALI, and the operator, of which there is one for each version of
DALI. Every symbol of DALI carries its version, and loading an operator against another version fails in the dynamic linker with a
message about symbols. So the version is looked up first.
"""

import os
import sys
from pathlib import Path

from . import _calls, _dynamic, _native, _wrap
from ._build import DALI_VERSIONS, VERSION
from ._build import LIBRARY as _LIBRARY

LIBRARY = Path(__file__).parent / _LIBRARY


def plugin_path(dali_version: str | None = None) -> Path:
    """The library with the operator: for ``nvidia.dali.plugin_manager.load_library`` in a process that doesn't import this package,
    and for ``plugin_libs`` of Triton's DALI backend.

    Args:
        dali_version: The version of DALI that loads it, one of ``dali_zarr.DALI_VERSIONS``. By default the one that is installed.

    Raises:
        ValueError: There is no operator for this version of DALI.
    """
    if dali_version is None:
        import nvidia.dali as dali

        dali_version = str(dali.__version__)
    version = dali_version.split("+")[0]
    if version not in DALI_VERSIONS:
        raise ValueError(f"expected a DALI of {_versions()}, for which dali_zarr {VERSION} was built, but found {dali_version}")
    return LIBRARY.parent / f"libdali_zarr_dali-{version}.so"


def _versions() -> str:
    """Returns the versions of DALI that there is an operator for, as text."""
    *others, last = DALI_VERSIONS
    return f"{', '.join(others)} or {last}" if others else last


def _advice() -> str:
    return f'pip install "nvidia-dali-cuda130=={DALI_VERSIONS[-1]}", or nvidia-dali-cuda120 where the driver is one of CUDA 12'


def check_dali_version(installed: str, location: str) -> None:
    """Raises ImportError unless there is an operator for the version ``installed``."""
    if installed.split("+")[0] in DALI_VERSIONS:
        return
    raise ImportError(
        f"dali_zarr {VERSION} was built for NVIDIA DALI {_versions()}, but DALI {installed} is installed in {location}. Install "
        f"one that fits ({_advice()}), or build dali_zarr from source against DALI {installed} (pip install --no-build-isolation "
        "--no-deps, in its source folder)."
    )


def separate_streams() -> None:
    """Asks CUDA for more hardware queues than the reader has streams, unless the user set a number.

    With the default of 8, streams share queues: a copy of one then waits for the decoding of another, and zstd is read
    at half the speed. The driver reads the variable when CUDA is initialised, so this package should be imported before.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


def load() -> None:
    """Makes the operator exist in DALI. Does nothing the second time.

    Raises:
        ImportError: DALI is missing, or there is no operator for its version.
        RuntimeError: the library can't be loaded.
    """
    separate_streams()
    try:
        import nvidia.dali as dali
    except ModuleNotFoundError as error:
        if error.name not in ("nvidia", "nvidia.dali"):
            raise
        raise ImportError(
            f"dali_zarr needs NVIDIA DALI {_versions()}, which isn't installed in {sys.prefix}: {_advice()}"
        ) from error
    check_dali_version(dali.__version__, str(Path(dali.__file__).parent))

    from nvidia.dali import plugin_manager

    plugin_manager.load_library(str(plugin_path(dali.__version__)))
    _native.bind(LIBRARY)
    _wrap.wrap_functions()
    _dynamic.add_operator()
    _calls.hook()

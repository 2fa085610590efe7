"""Reads Zarr arrays in NVIDIA DALI pipelines.

Importing this package makes the operator known to DALI::

    import dali_zarr
    from nvidia.dali import pipeline_def

    @pipeline_def(batch_size=16, num_threads=4, device_id=0)
    def pipeline():
        return dali_zarr.zarr_reader(device="gpu", path="era5.zarr", arrays=["t2m", "Z500"], name="reader")

:func:`zarr_reader` is the operator as a typed function; ``fn.zarr_reader``, ``fn.readers.zarr`` and ``ops.readers.Zarr`` are the
same operator. :class:`dali_zarr.torch.Loader` gives batches without a pipeline.
:func:`explain` says what a reader would do, :func:`counters` what one has done. :func:`statistics` finds what ``mean`` and
``stddev`` take, and :func:`rechunk` writes a store in chunks that are faster to train from.
"""

import importlib
from types import ModuleType

from . import _load
from ._arguments.types import ReaderArguments
from ._bad_chunks import BadChunk, bad_chunks
from ._build import DALI_VERSIONS, VERSION
from ._failures import error_details
from ._inspect import Explanation, counters, explain, stats
from ._load import plugin_path
from ._loading.mixture import Mixture, mix
from ._reader import describe, zarr_reader
from ._rechunk.function import rechunk
from ._selection.datasets import from_xarray
from ._selection.splits import splits
from ._statistics.accepted import TakenArguments
from ._statistics.compute import statistics

__all__ = [
    "DALI_VERSIONS", "BadChunk", "Explanation", "Mixture", "__version__", "bad_chunks", "counters", "error_details", "explain",
    "from_xarray", "mix", "plugin_path", "rechunk", "splits", "statistics", "stats", "zarr_reader",
]
__version__ = VERSION

_load.load()
describe(zarr_reader, ReaderArguments, last=["device", "preserve", "bytes_per_sample_hint"])
describe(explain, ReaderArguments)
describe(statistics, TakenArguments)


def __getattr__(name: str) -> ModuleType:
    """The parts for PyTorch and JAX, which are imported when they are used."""
    if name in ("jax", "torch"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

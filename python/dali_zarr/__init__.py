"""Reads Zarr arrays in NVIDIA DALI pipelines.

Importing this package makes the operator known to DALI::

    import dali_zarr
    from nvidia.dali import pipeline_def

    @pipeline_def(batch_size=16, num_threads=4, device_id=0)
    def pipeline():
        return dali_zarr.zarr_reader(device="gpu", path="era5.zarr", arrays=["t2m", "Z500"], name="reader")

:func:`zarr_reader` is the operator as a typed function; ``fn.zarr_reader``, ``fn.readers.zarr`` and ``ops.readers.Zarr`` are the
same operator. :func:`explain` says what a reader would do, :func:`stats` what one has done.
"""

from . import _load
from ._build import DALI_VERSION, VERSION
from ._inspect import Explanation, explain, stats
from ._reader import zarr_reader

__all__ = ["DALI_VERSION", "Explanation", "__version__", "explain", "stats", "zarr_reader"]
__version__ = VERSION

_load.load()

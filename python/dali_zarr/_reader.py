"""The operator as a typed function."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from . import _arguments, _dali
from ._arguments.types import (
    Bytes,
    DecodeDevice,
    Device,
    DType,
    Integers,
    Io,
    Method,
    Names,
    OutOfBounds,
    Path,
    Paths,
    Pick,
    Selection,
    Statistics,
    StorageOptions,
)
from ._loading import labels

if TYPE_CHECKING:
    from nvidia.dali.data_node import DataNode


def zarr_reader(
    *,
    # What is read
    path: Paths,
    storage_options: StorageOptions | None = None,
    arrays: Names | None = None,
    sel: Selection | None = None,
    isel: Selection | None = None,
    method: Method | None = None,
    tolerance: Any = None,
    pick: Pick | None = None,
    # How samples are cut
    dims: Names | None = None,
    window: Integers | None = None,
    step: Integers | None = None,
    random_crop: Names | None = None,
    stride: Integers | None = None,
    offsets: Integers | None = None,
    roi_start: Integers | None = None,
    roi_end: Integers | None = None,
    breaks: Integers | None = None,
    cross_stores: bool = True,
    out_of_bounds_policy: OutOfBounds = "drop",
    fill_value: float = 0.0,
    stack_arrays: bool = False,
    return_index: bool = False,
    # Values
    mask_and_scale: bool = False,
    mean: Statistics | None = None,
    stddev: Statistics | None = None,
    dtype: DType | None = None,
    # Order
    random_shuffle: bool = False,
    initial_fill: int = 1024,
    shuffle_after_epoch: bool = False,
    seed: int = -1,
    shard_id: int = 0,
    num_shards: int = 1,
    stick_to_shard: bool = False,
    pad_last_batch: bool = False,
    # Resources
    decode_device: DecodeDevice = "auto",
    prefetch_queue_depth: int | None = None,
    device_memory_limit: Bytes | None = None,
    host_memory_limit: Bytes | None = None,
    cache_size: Bytes = 0,
    cache_dir: Path = "",
    cache_dir_size: Bytes | None = None,
    cache_validate: bool = True,
    io: Io = "auto",
    use_o_direct: bool = False,
    io_threads: int | None = None,
    io_concurrency: int | None = None,
    decode_threads: int | None = None,
    # As every operator of DALI
    device: Device = "cpu",
    name: str | None = None,
    preserve: bool = False,
    bytes_per_sample_hint: int | list[int] = 0,
) -> DataNode | list[DataNode]:
    """Reads samples from Zarr arrays, in the definition of a DALI pipeline. It is ``fn.zarr_reader``, with types.

    A sample is a window into one or several arrays of a Zarr store (version 2 or 3). Where there is a list "for each of
    `dims`", it has as many entries as `dims`.

    What is read:
        path: A directory, zip archive, Icechunk repository, references, or a URL (``file``, ``s3``, ``gs``, ``az``, ``abfs``,
            ``http``, ``https``) of one; or a list of them, joined along the first of `dims`.
        storage_options: Options of remote stores, and which version of an Icechunk repository.
        arrays: Names of arrays. Default: the only one.
        sel: Labels by dimension, as of xarray's ``sel``: ``{"time": slice("2015", "2017"), "level": [500, 850]}``. Slices include
            their ends, dates may be partial, and a single label drops its dimension.
        isel: Positions by dimension, as of xarray's ``isel``.
        method, tolerance: How labels of `sel` that aren't coordinates are looked up: ``"nearest"``, ``"ffill"``, ``"bfill"``.
        pick: Indices to take along dimensions: ``{"level": [0, 5, -1]}``.

    How samples are cut:
        dims: Dimensions to cut along, by name or position. Default: the first of the first array that has most.
        window: Elements for each of `dims`: 0 one element, dimension dropped (default); -1 the whole region.
        step: Distance of sample starts for each of `dims`. Default: the window's length.
        random_crop: Those of `dims` along which the start is drawn anew in each epoch, instead of every `step`.
        stride: Distance of the elements in a sample for each of `dims`. Default: 1.
        offsets: Along the first of `dims`, one group of outputs for each. Default: ``[0]``.
        roi_start, roi_end: The part of each of `dims` that samples may touch; negative from the end. Default: all.
        breaks: Elements along the first of `dims` where something new begins: no sample reaches across.
        cross_stores: Whether samples may reach from one store into the next.
        out_of_bounds_policy: Windows that reach beyond the region or across a break: ``"drop"``, ``"pad"`` or ``"error"``.
        fill_value: What ``"pad"`` fills in, as a value of the output.
        stack_arrays: One output of channels instead of one for each array.
        return_index: One more output, int64: the sample's start in each of `dims`.

    Values:
        mask_and_scale: Apply ``_FillValue``, ``missing_value``, ``scale_factor``, ``add_offset``, ``_Unsigned`` as xarray does.
        mean, stddev: ``(x - mean) / stddev``: one number, one for each array, or one for each channel of a stack;
            or a file of them: JSON of :func:`dali_zarr.statistics`, makani's ``.npy``, or NetCDF by level.
        dtype: Type of the outputs: NumPy's, DALI's or PyTorch's, or a name. Default: the stored or decoded type, float32 with
            `mean` or `stddev`.

    Order:
        random_shuffle: A new order in each epoch.
        initial_fill: Among how many samples each is drawn, where chunks hold several.
        shuffle_after_epoch: The first epoch in order, later ones shuffled.
        seed: Of the order and of `random_crop`, the same on all shards. The default is a fixed seed.
        shard_id, num_shards: Which part of the samples this reader delivers.
        stick_to_shard: Keep to the shard instead of going on to the next after each epoch.
        pad_last_batch: Repeat a shard's last sample until all shards have equally many full batches.

    Resources:
        decode_device: ``"auto"``, ``"gpu"`` (an error where the GPU can't) or ``"cpu"``.
        prefetch_queue_depth: Batches prepared ahead. Default: what memory allows, 32 at most.
        device_memory_limit, host_memory_limit: Bytes, or text such as ``"8GiB"``.
        cache_size: Bytes of host memory that keep encoded chunks for later epochs.
        cache_dir, cache_dir_size: A folder on a local disk that keeps chunks of remote stores, and its limit in bytes.
        cache_validate: Ask the store, once for each object, whether what `cache_dir` holds is still so.
        io, use_o_direct: How chunks of local stores are read: ``"auto"``, ``"posix"`` or ``"gds"``; past the page cache.
        io_threads: Threads that read local stores, or drive the requests to remote ones.
        io_concurrency: Requests to remote stores under way at a time.
        decode_threads: Threads that decode on the CPU.

    As every operator of DALI:
        device: Where batches are delivered.
        name: The reader's name, for iterators and checkpoints.
        preserve, bytes_per_sample_hint: See DALI.

    Returns:
        The output, or a list of several: one for each of `arrays` (one altogether with `stack_arrays`) and each of `offsets`,
        offset by offset, and the index.

    Raises:
        TypeError, ValueError, IndexError: Here and when the pipeline is built, for arguments and metadata.
    """
    given = {key: value for key, value in locals().items() if _is_given(key, value)}
    if isinstance(path, list | tuple):
        asked, given = given, _arguments.of_operator(given)
        labels.check_stores(given, asked)
    return _dali.module("fn").zarr_reader(**given)


@functools.cache
def _defaults() -> dict[str, Any]:
    return {name: parameter.default for name, parameter in inspect.signature(zarr_reader).parameters.items()}


def _is_given(name: str, value: Any) -> bool:
    """Whether an argument has another value than its default; arrays of NumPy have."""
    default = _defaults()[name]
    return value is not default and not (type(value) is type(default) and value == default)

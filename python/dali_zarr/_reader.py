"""The operator as a typed function."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

from . import _arguments, _dali, _handles
from ._arguments.types import Device, Paths, ReaderArguments
from ._loading import labels

if TYPE_CHECKING:
    from nvidia.dali.data_node import DataNode


def zarr_reader(
    samples: DataNode | None = None,
    *,
    path: Paths | None = None,
    device: Device = "cpu",
    preserve: bool = False,
    bytes_per_sample_hint: int | list[int] = 0,
    **arguments: Unpack[ReaderArguments],
) -> DataNode | list[DataNode]:
    """Reads samples from Zarr arrays, in the definition of a DALI pipeline. It is ``fn.zarr_reader``, with types.

    A sample is a window into one or several arrays of a Zarr store (version 2 or 3). A list "for each of `dims`" has as
    many entries as `dims`; a dictionary from dimensions to values is accepted too. An argument "by output" is one value
    for all outputs, or a dictionary from names of outputs to values.

    Input:
        samples: Which samples a batch has, from another operator such as ``fn.external_source``: for each its number, a scalar
            of int64 or int32, or its row of `return_index`, a list. The batch has as many samples. Then the order isn't the
            reader's own, and the arguments of the order are refused, except `seed`. Default: the reader's own order.

    What is read:
        path: A directory, zip archive, Icechunk repository, references, or a URL (``file``, ``s3``, ``gs``, ``az``, ``abfs``,
            ``http``, ``https``, ``hf``) of one; or a list of them, joined along the first of `dims`. It may be left out if every
            one of `arrays` has a location of its own. Also a store, group or array of zarr-python, a store of obstore, a
            repository or session of Icechunk, a mapper of fsspec, or a lazily opened dataset of xarray.
        storage_options: Options of remote stores, and which version of an Icechunk repository.
        arrays: Names of arrays, or a dictionary from names of outputs to them. Default: the only one. A URL, an absolute path, or
            one that begins with ``./`` or ``../`` is an array with a store of its own, in step with the others along `dims`.
            Without `stack_arrays` only `dims` tie arrays together: their other dimensions may differ.
        groups: The groups of each store from which samples are cut, each like a store of its own: a name, a pattern (``"run_*"``,
            ``"*/*/*"``), a list of these, or True for all at the root. Without `dims` and `window` each group is one sample,
            whole. Samples may have other shapes in other groups.
        sel: Labels by dimension, as of xarray's ``sel``: ``{"time": slice("2015", "2017"), "level": [500, 850]}``. Slices include
            their ends, dates may be partial, and a single label drops its dimension. A list along `dims` says where samples start,
            in its order.
        isel: Positions by dimension, as of xarray's ``isel``. A list of bools along the first of `dims` selects
            elements; each gap in it acts as `breaks` do.
        method, tolerance: How labels of `sel` that aren't coordinates are looked up: ``"nearest"``, ``"ffill"``, ``"bfill"``.
        pick: Indices to take along dimensions: ``{"level": [0, 5, -1]}``; for single outputs ``{"target": {"level": [5]}}``.
        align: How arrays of another rate belong to the others along the first of `dims`, by output: ``{"sst": "previous"}``.
            ``"previous"`` takes the last element whose label isn't later, ``"nearest"`` the nearest one, ``"exact"`` the one with
            the same label, ``"linear"`` a value between two, ``"cyclic"`` the month, day or step of a year. A dictionary says more:
            ``{"method": "nearest", "tolerance": "6h", "dim": "month"}``; `tolerance` alone is for all of them. Samples that read an
            element to which none belongs are left out.

    How samples are cut:
        dims: Dimensions to cut along, by name or position. Default: those that `window` names, or the first of the first array that
            has most.
        window: Elements for each of `dims`. 0: one element, the dimension is dropped (default). -1: the whole region.
            By output too: ``{"image": {"t": 2}, "action": {"t": 16}}``; all windows of a sample begin at its start.
        step: Distance of sample starts for each of `dims`. Default: the (longest) window's length.
        overlap: Another way to give `step`: the (longest) window's length minus this number of elements. Where `stride`
            is 1, neighbouring samples share this many elements.
        scale_by: Reads arrays whose elements have other sizes: a sample is the same box in each of them, around the same centre.
            `window`, `step` and `overlap` are lengths in the unit of their places. ``"coordinates"``: places are OME-Zarr's
            transformations or evenly spaced coordinates, which are those of elements' centres; ``"corners"``: they are taken as
            those of elements' first edges. All else counts elements of the array `grid`.
        scale_method: With `scale_by`: where a box begins that begins between two elements of an array. ``"nearest"``: at
            the nearest one; of two, at the later one. ``"previous"``: at the one before. Default: ``"nearest"``.
        grid: With `scale_by`: the output whose array's elements samples start at. Default: the first one.
        random_crop: Those of `dims` along which each epoch draws the starts at random, instead of a start every `step`
            elements.
        samples_per_volume: How many samples there are for each start, each with random starts of its own. Default: 1.
        starts: Where samples start, instead of every `step` elements: a table with a row for each sample and a column
            for each of `dims`, as a ``.npy`` file, a Zarr array (a path, or a name in `path`) or an array in memory.
            With ``concat="samples"`` the number of the store is one more column, in front.
        stride: Distance of the elements in a sample for each of `dims`. Default: 1. By output too.
        offsets: Distances from a sample's start along the first of `dims`, in elements. There is a group of outputs for
            each offset. Default: ``[0]``.
        roi_start, roi_end: The part of each of `dims` that samples may touch; negative from the end. Default: all.
        breaks: Elements along the first of `dims` where a new segment begins: no sample reaches across. Or the name of
            an array with the end of each segment in its store (``"meta/episode_ends"``); the array may have a store of
            its own. Or ``"auto"``: breaks are where coordinates aren't evenly spaced.
        segments: Which of the segments between breaks are read: their numbers, a slice of them, or True or False for each. They are
            numbered over the whole dimension, whatever is selected of it. Default: all.
        missing_dates: What happens to samples that read dates whose data are missing, as stores of anemoi-datasets declare
            them: ``"skip"`` leaves them out, ``"keep"`` delivers their NaNs. Default: ``"skip"``.
        fill_missing: What takes the place of data that are missing, so that no sample is left out: ``"previous"`` (the last element
            before), ``"linear"`` (the value between the nearest elements, by labels), ``"nan"`` or NaN, or ``"mean"`` (0 after
            normalisation). The mask of `return_mask` is False there. Dates that lie regularly between others and that no store has
            are missing too: they become elements like others.
        concat: How several stores are put together. ``"dims"`` joins them to one axis, along the first of `dims`.
            ``"samples"`` cuts samples from each store on its own, one store after the other. Then stores may have any
            shapes, and a store in which no window fits has no samples. Default: ``"dims"``.
        cross_stores: Whether samples may reach from one store into the next. Default: ``True``.
        out_of_bounds_policy: Windows that reach beyond the region or across a break: ``"drop"``, ``"pad"``, ``"edge"`` (the first
            or last element inside is repeated) or ``"error"``. Default: ``"drop"``.
        pad_before, pad_after: How many elements outside of its segment a window may begin or end, for each of `dims`, with
            ``"pad"`` or ``"edge"``: a segment of length ``L`` has windows from ``-pad_before`` to ``L - window + pad_after``.
            Default: one grid of starts for all segments.
        fill_value: The value that ``"pad"`` fills in: a value of the output, rounded to the nearest one of its type. Default: 0.
            By output.
        stack_arrays: One output of channels instead of one for each array.
        transpose: The order of a sample's dimensions in the output: names or their positions in the sample, as a list or as one
            text: ``"time ensemble cell variable"``, ``["t", "c", "y", "x"]``. ``...`` stands for all others. The channels of a
            stack have the name ``"channel"``. By output.
        squeeze: The dimensions of one element that the output doesn't have: names or positions in the sample, or True for all of
            them. `transpose` orders what is left. By output.
        return_mask: One more output, bool: False for elements that were padded or repeated. Its shape is the (longest) window along
            each of `dims` that samples have, with a row for each offset in front if there are several. With `scale_by` there is one
            for each of `arrays`.
        return_index: One more output, int64: the sample's start in each of `dims`. Before it stand the store's number
            (with ``concat="samples"``) and the segment's number (with `breaks`, or with `pad_before` or `pad_after`
            beside ``cross_stores=False``).
        ragged: An array of offsets, one more than there are samples. A sample has the elements from its offset to the
            next one, so samples differ in the length of their first dimension. ``"X/indptr"`` gives the rows of
            AnnData's CSR matrix. The array may have a store of its own.
        ragged_ends: The same with an array of ends, one for each sample: ``"meta/episode_ends"`` gives whole episodes.
        max_length: The most elements that are read of a ragged sample.

    Values:
        mask_and_scale: Apply ``_FillValue``, ``missing_value``, ``scale_factor``, ``add_offset``, ``_Unsigned`` as xarray does.
            Default: to the arrays that have ``scale_factor`` or ``add_offset``. By output.
        fillna: The value that replaces NaNs before `mean` and `stddev` are applied, as xarray's ``fillna`` does: NaNs
            that are stored and those that decoding makes, but not those of `fill_value`. :func:`dali_zarr.counters`
            tells how many (``nans_replaced``). By output; outputs that aren't named stay as they are.
        mean, stddev: ``(x - mean) / stddev``: one number, one for each array, or one for each channel of a stack;
            or a file of them: what :func:`dali_zarr.statistics` wrote, a store of anemoi-datasets, makani's ``.npy``, or NetCDF by
            level. By output, where an array may have a list, one for each of its `channels`:
            ``{"action": [...], "image": 127.5}``; outputs that aren't named stay as they are.
        channels: Names of the dimensions whose elements have a `mean` and a `stddev` of their own, or their positions
            (``-1``). Default where `mean` or `stddev` is a list: the only dimension that samples have whole and that
            has as many elements. Default where it is a file: the dimensions that :func:`dali_zarr.statistics` was told,
            or that the file has. By output.
        dtype: Type of the outputs: NumPy's, DALI's, PyTorch's or JAX's, or a name. Default: the stored or decoded type, float32
            with `mean` or `stddev`. ``"bfloat16"`` comes from loaders as the framework's own, and in pipelines as its bits
            (uint16). By output.

    Order:
        random_shuffle: A new order in each epoch.
        initial_fill: The number of samples that are shuffled together, where chunks hold several samples. Default: all samples, if
            the chunks of an epoch decode to at most 512 MiB, otherwise as many as have chunks of 256 MiB, and at least 1024.
        shuffle_after_epoch: Delivers the first epoch in order, later ones shuffled.
        weights: How often each sample comes, relative to the others, one number for each, given as `starts` is. Samples are drawn,
            as by torch's ``WeightedRandomSampler``.
        num_samples: With `weights`: samples in an epoch. Default: as many as there are.
        replacement: With `weights`: whether a sample may come several times in an epoch. Default: ``True``.
        seed: Seed of the order and of `random_crop`, the same on all shards. The default is a fixed seed. The pipeline's
            seed is another one, and may differ on each rank.
        shard_id, num_shards: Which part of the samples this reader delivers.
        stick_to_shard: Keep to the shard instead of going on to the next after each epoch.
        pad_last_batch: Repeat a shard's last sample until all shards have equally many full batches.

    Resources:
        decode_device: Where chunks are decoded: ``"auto"`` (on the GPU, where it can), ``"gpu"`` (an error where it can't) or
            ``"cpu"``. Default: ``"auto"``.
        on_bad_chunk: What becomes of a chunk whose bytes can't be decoded: ``"error"``; ``"nan"`` (its elements are NaN, or in
            outputs of whole numbers the fill value); or ``"skip"`` (the next sample instead of one that needs it).
            :func:`dali_zarr.bad_chunks` lists them. Default: ``"error"``.
        prefetch_queue_depth: Batches prepared ahead. Default: what memory allows, 32 at most. With ``device="cpu"``
            also no more than 512 MiB in all, but at least 4 batches.
        device_memory_limit, host_memory_limit: Bytes, or text such as ``"8GiB"``.
        cache_size: Bytes of host memory that keep encoded chunks for later epochs.
        cache_dir, cache_dir_size: A folder on a local disk that keeps chunks of remote stores, and its limit in bytes.
        cache_validate: Ask the store, once for each object, whether what `cache_dir` holds of it is still current. Default:
            ``True``.
        io: How chunks of local stores are read: ``"posix"``, or ``"gds"`` by GPUDirect Storage. Default: ``"posix"``.
        use_o_direct: Whether local stores are read past the page cache.
        io_threads: Threads that read local stores, or drive the requests to remote ones.
        io_concurrency: Requests to remote stores under way at a time.
        decode_threads: Threads that decode on the CPU. By default there is one for each core, and half of them decode
            chunks that a GPU could decode while a model trains.

    As every operator of DALI:
        device: Where batches are delivered, ``"cpu"`` or ``"gpu"``. Default: ``"cpu"``.
        name: The reader's name, for iterators and checkpoints.
        preserve, bytes_per_sample_hint: See DALI.

    Returns:
        The output, or a list where there are several: one for each of `arrays` (one in all with `stack_arrays`) and
        each of `offsets`, offset by offset; then the mask and the index.

    Raises:
        TypeError, ValueError, IndexError: Here and when the pipeline is built, for arguments and metadata.
    """
    others = {"device": device, "preserve": preserve, "bytes_per_sample_hint": bytes_per_sample_hint}
    defaults = {name: parameter.default for name, parameter in inspect.signature(zarr_reader).parameters.items()}
    given = {name: value for name, value in (others | arguments).items() if not _is(value, defaults.get(name))}
    if path is not None:
        given["path"] = path
    given = _handles.translated(given)
    path = given.get("path")
    arrays: Any = given.get("arrays")
    by_output = cast("dict[str, Any]", arrays) if isinstance(arrays, dict) else None
    named = _arguments.values.items(arrays or []) if by_output is None else list(by_output.values())
    if isinstance(path, list | tuple) or any(_arguments.names.is_location(str(name)) for name in named):
        asked, given = given, _arguments.resolved(given)
        labels.check_stores(given, asked)
    inputs = () if samples is None else (samples,)
    return _dali.module("fn").zarr_reader(*inputs, **given)


def _is(value: Any, default: Any) -> bool:
    """Returns whether a value is the default. A NumPy array never is."""
    return value is default or (type(value) is type(default) and value == default)


def describe(function: Callable[..., Any], arguments: Any, last: Sequence[str] = ()) -> None:
    """Sets the signature that ``help`` and notebooks show for a function. Instead of ``**arguments`` it has the names
    and types of the TypedDict ``arguments``. Defaults come from the operator's schema, which DALI knows once the
    library is loaded. The function's own parameters come first, except the ``last`` ones."""
    schema, own = _dali.schema(), inspect.Signature.from_callable(function)
    kind = inspect.Parameter.KEYWORD_ONLY
    hints: dict[str, Any] = arguments.__annotations__
    listed = [
        inspect.Parameter(name, kind, default=_default(schema, name), annotation=getattr(hint, "__forward_arg__", hint))
        for name, hint in hints.items() if name not in own.parameters
    ]
    named = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    first = [one for one in named if one.name not in last]
    function.__dict__["__signature__"] = own.replace(parameters=[*first, *listed, *(own.parameters[name] for name in last)])


def _default(schema: Any, name: str) -> Any:
    """The schema's default; None for an empty list, and where there is none."""
    if not schema.HasArgument(name) or not schema.HasArgumentDefaultValue(name):
        return None
    default = ast.literal_eval(schema.GetArgumentDefaultValueString(name))
    return None if default == [] else default

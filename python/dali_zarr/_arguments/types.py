"""The reader's arguments with their types: what ``fn.zarr_reader`` takes, and with it the loaders and ``explain``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypedDict, Union

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from types import EllipsisType

    import torch
    from nvidia.dali.types import DALIDataType


class _HasStore(Protocol):
    """Groups and arrays of zarr-python, and sessions of Icechunk."""

    @property
    def store(self) -> Any: ...


class _Lists(Protocol):
    """Stores of zarr-python, with Icechunk's."""

    @property
    def list_prefix(self) -> Any: ...


class _HasFiles(Protocol):
    """Mappers of fsspec, and paths of universal_pathlib."""

    @property
    def fs(self) -> Any: ...


class _HasPrefix(Protocol):
    """Stores of obstore."""

    @property
    def prefix(self) -> Any: ...


class _HasClient(Protocol):
    """obstore's store of an HTTP server."""

    @property
    def client_options(self) -> Any: ...


class _HasSessions(Protocol):
    """Repositories of Icechunk."""

    @property
    def readonly_session(self) -> Any: ...


class _HasVariables(Protocol):
    """Datasets of xarray."""

    @property
    def data_vars(self) -> Any: ...


Path: TypeAlias = str | os.PathLike[str]
# What users hold, by what it has: its packages may be missing.
Handle: TypeAlias = _HasStore | _Lists | _HasFiles | _HasPrefix | _HasClient | _HasSessions | _HasVariables
Paths: TypeAlias = Path | Handle | Sequence[Path | Handle]
Names: TypeAlias = str | Sequence[str]
# For each of dims, or along the first of them.
Integers: TypeAlias = int | Sequence[int] | npt.NDArray[np.integer[Any]]
# Integers, or a dictionary by dimension.
PerDim: TypeAlias = Integers | Mapping[str, int]
# The same as PerDim, or a dictionary of it by output.
PerDimOfOutput: TypeAlias = PerDim | Mapping[str, Integers] | Mapping[str, Mapping[str, int]]
# The same as PerDim and PerDimOfOutput; with ``scale_by`` lengths in units, too.
Lengths: TypeAlias = PerDim | float | Sequence[float] | Mapping[str, float]
LengthsOfOutput: TypeAlias = Lengths | PerDimOfOutput | Mapping[str, Sequence[float]] | Mapping[str, Mapping[str, float]]
# Names and patterns of groups; True means all.
Groups: TypeAlias = Literal[True] | Names
# Names, or names by output.
Arrays: TypeAlias = Names | Mapping[str, Path | Handle] | Handle | Sequence[str | Handle]
Numbers: TypeAlias = float | Sequence[float] | npt.NDArray[np.floating[Any]] | npt.NDArray[np.integer[Any]]
# Numbers, by output too, or a file of statistics.
Statistics: TypeAlias = Numbers | Path | Mapping[str, Numbers]
# Dimensions by name or by position.
Dims: TypeAlias = int | str | Sequence[int | str]
# Dims, or a dictionary of them by output.
Channels: TypeAlias = Dims | Mapping[str, Dims]
# Dimensions in their order, or all of them as one text with spaces; "..." or ... stands for the others.
Order: TypeAlias = Union[int, str, Sequence[Union[int, str, "EllipsisType"]]]  # noqa: UP007
# An order, or a dictionary of orders by output.
Orders: TypeAlias = Order | Mapping[str, Order]
# Dimensions that are dropped, or True for all of one element; or by output.
Squeezed: TypeAlias = bool | Order | Mapping[str, bool | Order]
# A number, or text such as "10GB" or "512MiB".
Bytes: TypeAlias = int | str
# Some types are in quotes: their packages may be missing when this is evaluated.
DType: TypeAlias = Union[str, type[Any], np.dtype[Any], "DALIDataType", "torch.dtype"]  # noqa: UP007
Pick: TypeAlias = Mapping[str, Any] | Mapping[int, Any] | Sequence[str]
# A .npy file, a Zarr array, or an array in memory: whatever NumPy makes an array of.
Table: TypeAlias = Path | npt.ArrayLike
# Labels or indices by dimension: one, a list, or a slice.
Selection: TypeAlias = Mapping[str, Any]
Method: TypeAlias = Literal["nearest", "pad", "ffill", "backfill", "bfill"]
StorageOptions: TypeAlias = Mapping[str, Any] | Sequence[str]
Device: TypeAlias = Literal["cpu", "gpu"]
Concat: TypeAlias = Literal["dims", "samples"]
ScaleBy: TypeAlias = Literal["coordinates", "corners"]
ScaleMethod: TypeAlias = Literal["nearest", "previous"]
MissingDates: TypeAlias = Literal["skip", "keep"]
# "nan" may be the number, too.
FillMissing: TypeAlias = Literal["previous", "nan", "mean", "linear"] | float
OutOfBounds: TypeAlias = Literal["drop", "pad", "edge", "error"]
# Elements, an array of ends (a name, or a location of its own), or "auto".
Breaks: TypeAlias = Integers | Path | Sequence[int | Path]
# Numbers of segments, a slice of them, or whether each is chosen.
Segments: TypeAlias = Integers | slice | Sequence[bool] | npt.NDArray[np.bool_]
DecodeDevice: TypeAlias = Literal["auto", "gpu", "cpu"]
Io: TypeAlias = Literal["posix", "gds"]
OnBadChunk: TypeAlias = Literal["error", "nan", "skip"]


class ElementArguments(TypedDict, total=False):
    """Arguments that say which elements of the arrays there are, and what values they have."""

    storage_options: StorageOptions | None
    sel: Selection | None
    isel: Selection | None
    method: Method | None
    tolerance: Any
    pick: Pick | None
    dims: Names | None
    roi_start: PerDim | None
    roi_end: PerDim | None
    breaks: Breaks | None
    concat: Concat
    cross_stores: bool
    mask_and_scale: bool | Mapping[str, bool] | None
    fillna: float | Mapping[str, float] | None


class SampleArguments(ElementArguments, total=False):
    """Arguments that say what is read, and how samples are cut."""

    arrays: Arrays | None
    groups: Groups | None
    align: Mapping[str, str | Mapping[str, Any]] | None
    window: LengthsOfOutput | None
    step: Lengths | None
    overlap: Lengths | None
    scale_by: ScaleBy | None
    scale_method: ScaleMethod
    grid: str | None
    random_crop: Names | None
    segments: Segments | None
    missing_dates: MissingDates
    fill_missing: FillMissing
    samples_per_volume: int
    starts: Table | None
    stride: PerDimOfOutput | None
    out_of_bounds_policy: OutOfBounds
    pad_before: PerDim | None
    pad_after: PerDim | None
    fill_value: float | Mapping[str, float]
    ragged: Path | None
    ragged_ends: Path | None
    max_length: int | None
    stack_arrays: bool
    transpose: Orders | None
    squeeze: Squeezed | None
    return_mask: bool
    mean: Statistics | None
    stddev: Statistics | None
    channels: Channels | None
    dtype: DType | Mapping[str, DType] | None


class OrderArguments(TypedDict, total=False):
    """Arguments that say in which order samples come."""

    random_shuffle: bool
    weights: Table | None
    num_samples: int | None
    replacement: bool
    initial_fill: int | None
    shuffle_after_epoch: bool
    seed: int
    stick_to_shard: bool


class ResourceArguments(TypedDict, total=False):
    """Arguments that say how chunks are read and decoded: where, in how much memory, by how many threads."""

    decode_device: DecodeDevice
    prefetch_queue_depth: int | None
    device_memory_limit: Bytes | None
    host_memory_limit: Bytes | None
    cache_size: Bytes
    cache_dir: Path
    cache_dir_size: Bytes | None
    cache_validate: bool
    io: Io
    use_o_direct: bool
    io_threads: int | None
    io_concurrency: int | None
    decode_threads: int | None


class LoaderArguments(SampleArguments, OrderArguments, ResourceArguments, total=False):
    """Arguments that a loader passes on as they are."""

    on_bad_chunk: OnBadChunk


class ReaderArguments(LoaderArguments, total=False):
    """All arguments of the reader except ``path``."""

    offsets: Integers | None
    return_index: bool
    shard_id: int
    num_shards: int
    pad_last_batch: bool
    name: str | None

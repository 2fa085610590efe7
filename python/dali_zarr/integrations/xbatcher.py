"""xbatcher's ``BatchGenerator``, with batches that are read and decoded ahead.

xbatcher itself says which patches a batch has, and makes its coordinates. It does so on a dataset of the same shape that takes no
memory. The values come from the reader.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Unpack, cast

import numpy as np
import numpy.typing as npt
import torch
import xarray as xr
import xbatcher

from .._arguments.types import ResourceArguments
from .._inspect import explain
from .._selection.datasets import described
from ..torch import Dataset, Loader

# A batch of more bytes is read in several pieces, since the reader prepares some pieces ahead.
_PIECE = 64 << 20

Array = npt.NDArray[Any]


class BatchGenerator:
    """In the place of ``xbatcher.BatchGenerator``: the same batches, in the same order.

    ::

        from dali_zarr.integrations.xbatcher import BatchGenerator

        generator = BatchGenerator(xr.open_zarr("era5.zarr")[["t2m"]], {"time": 4, "latitude": 16})
        for batch in generator:  # xarray.Dataset
            ...

    Iterating reads ahead. ``generator[i]`` reads one batch; it works in worker processes of a DataLoader too, as xbatcher's
    ``MapDataset`` asks for batches.
    """

    def __init__(
        self,
        ds: xr.Dataset | xr.DataArray,
        input_dims: Mapping[Hashable, int],
        input_overlap: Mapping[Hashable, int] | None = None,
        batch_dims: Mapping[Hashable, int] | None = None,
        concat_input_dims: bool = False,
        preload_batch: bool = True,
        cache: Any = None,
        cache_preprocess: Callable[..., Any] | None = None,
        **resources: Unpack[ResourceArguments],
    ):
        """Looks at the store; batches are read later.

        Args:
            ds: Opened lazily by ``xarray.open_zarr``, and selected, as of :func:`dali_zarr.from_xarray`.
            input_dims, input_overlap, batch_dims, concat_input_dims: As of xbatcher.
            preload_batch: Only True: batches are always in memory.
            cache, cache_preprocess: Only None. The reader's ``cache_size`` and ``cache_dir`` keep chunks instead.
            resources: The reader's arguments of memory, threads and caches.

        Raises:
            ValueError, TypeError: An argument has another value, the dataset can't be read (the message says why), or xbatcher
                refuses the sizes.
        """
        _check(preload_batch, cache, cache_preprocess, resources)
        if concat_input_dims and isinstance(ds, xr.DataArray):
            raise ValueError(
                "dali_zarr: xbatcher: concat_input_dims: expected a Dataset, since xbatcher fills the patches of a DataArray with "
                "NaN where their coordinates differ; give ds.to_dataset()"
            )
        self.ds = ds
        self.input_dims, self.batch_dims = dict(input_dims), dict(batch_dims or {})
        self.input_overlap, self.concat_input_dims = dict(input_overlap or {}), concat_input_dims
        self.preload_batch = preload_batch
        lengths = {dim: size for dim, size in self.batch_dims.items() if dim not in self.input_dims} | self.input_dims
        unknown = [dim for dim in self.input_overlap if dim not in lengths]
        if unknown:
            raise ValueError(
                f"dali_zarr: xbatcher: input_overlap: expected dimensions of input_dims or batch_dims, but found {unknown[0]!r}"
            )
        shapes = _without_values(ds)
        how: dict[str, Any] = {
            "input_dims": self.input_dims, "input_overlap": self.input_overlap, "batch_dims": self.batch_dims,
        }
        schema: Any = xbatcher.BatchSchema(shapes, concat_input_bins=concat_input_dims, **how)
        self._shapes = xbatcher.BatchGenerator(shapes, concat_input_dims=concat_input_dims, **how)
        # The dataset isn't kept for reading: code that loads it would change what the reader can take.
        whole = ds if isinstance(ds, xr.Dataset) else ds.to_dataset(name=_name(ds))
        arguments, stored = described(whole, None, None)
        lengths = _in_front(whole, arguments, stored, lengths)
        steps = {dim: size - self.input_overlap.get(dim, 0) for dim, size in lengths.items()}
        counts = {dim: (ds.sizes[dim] - size) // steps[dim] + 1 for dim, size in lengths.items()}
        self._batches = {key: _numbers(patches, steps, counts) for key, patches in schema.selectors.items()}
        window = {stored.get(str(dim), str(dim)): size for dim, size in lengths.items()}
        overlap = {stored.get(str(dim), str(dim)): size for dim, size in self.input_overlap.items() if size}
        more = {"overlap": overlap} if overlap else {}
        self._reader: dict[str, Any] = arguments | {"dims": list(window), "window": window} | more | resources
        self._check_outputs(whole, {there: here for here, there in stored.items()})
        self._dataset = Dataset(**self._reader, device="cpu")

    def _check_outputs(self, whole: xr.Dataset, own: Mapping[str, str]) -> None:
        """Checks that the reader gives what xarray would. ``own``: names of dimensions in the dataset, by those in the store."""
        told: list[dict[str, Any]] = cast("Any", explain(**self._reader))["outputs"]
        outputs: dict[str, Any] = {one["name"]: one for one in told}
        for name, output in outputs.items():
            if output["dtype"] != whole[name].dtype.name:
                raise TypeError(
                    f"dali_zarr: xbatcher: ds: expected variables that the reader decodes as xarray does, but {name!r} has the "
                    f"type {whole[name].dtype} and is read as {output['dtype']}; leave it out, or open the dataset without "
                    "decoding it"
                )
        # The dimensions of each variable's samples.
        self._dims: dict[str, tuple[str, ...]] = {
            name: tuple(own.get(dim, dim) for dim in output["dims"]) for name, output in outputs.items()
        }
        most = max((len(numbers) for numbers in self._batches.values()), default=1)
        self._piece = max(1, min(most, _PIECE // sum(one["sample_bytes"] for one in outputs.values())))

    def __len__(self) -> int:
        """The number of batches."""
        return len(self._batches)

    def __iter__(self) -> Iterator[xr.Dataset | xr.DataArray]:
        """Yields all batches; the reader works ahead."""
        pieces = [numbers[i : i + self._piece] for numbers in self._batches.values() for i in range(0, len(numbers), self._piece)]
        read = iter(Loader(**self._reader, device="cpu", batch_size=self._piece, batch_sampler=pieces))
        for key, numbers in self._batches.items():
            found = [next(read) for _ in range(0, len(numbers), self._piece)]
            yield self._made(key, {name: _joined([one[name] for one in found]) for name in self._dims})

    def __getitem__(self, idx: Any) -> xr.Dataset | xr.DataArray:
        """Returns a batch by its number, negative from the end.

        Raises:
            IndexError: There is no such batch.
            NotImplementedError: ``idx`` is no integer; as of xbatcher.
        """
        if not isinstance(idx, int):
            raise NotImplementedError(f"dali_zarr: xbatcher: expected an integer as the batch's number, but found {idx!r}")
        if not -len(self) <= idx < len(self):
            raise IndexError(f"dali_zarr: xbatcher: list index out of range: expected a number below {len(self)}, but found {idx}")
        key = list(self._batches)[idx] if idx < 0 else idx
        samples = self._dataset.__getitems__(self._batches[key])
        return self._made(key, {name: np.stack([one[name].numpy() for one in samples]) for name in self._dims})

    def _made(self, key: int, values: Mapping[str, Array]) -> xr.Dataset | xr.DataArray:
        """Returns a batch with values of the reader: by variable an array (patches, dimensions of a sample)."""
        batch: Any = self._shapes[key]
        if isinstance(batch, xr.DataArray):
            return batch.copy(data=self._placed(values[_name(batch)], _name(batch), batch))
        return batch.copy(data={name: self._placed(values[str(name)], str(name), one) for name, one in batch.data_vars.items()})

    def _placed(self, values: Array, name: str, wanted: Any) -> Array:
        """Returns the values of a variable with the dimensions of the batch. Those that it lacks are repeated; ``sample`` stands
        for several."""
        if self.concat_input_dims:
            dims: list[Any] = ["input_batch", *(f"{dim}_input" if dim in self.input_dims else dim for dim in self._dims[name])]
        else:
            values, dims = values[0], list(self._dims[name])
        levels: list[Any] = list(wanted.indexes["sample"].names) if "sample" in wanted.dims and "sample" not in dims else []
        order: list[Any] = [one for dim in wanted.dims for one in (levels if levels and dim == "sample" else [dim])]
        absent = [dim for dim in order if dim not in dims]
        lengths = [self.batch_dims.get(dim, self.ds.sizes[dim]) for dim in absent]
        whole = np.broadcast_to(values, lengths + list(values.shape))
        dims = absent + dims
        return np.ascontiguousarray(whole.transpose([dims.index(dim) for dim in order]).reshape(wanted.shape))


def _check(preload_batch: bool, cache: Any, cache_preprocess: Any, resources: Mapping[str, Any]) -> None:
    if not preload_batch:
        raise ValueError(
            "dali_zarr: xbatcher: preload_batch: expected True, but found False: batches are read ahead and in memory; leave out "
            "of ds the variables that aren't needed"
        )
    for name, value in (("cache", cache), ("cache_preprocess", cache_preprocess)):
        if value is not None:
            raise ValueError(
                f"dali_zarr: xbatcher: {name}: expected None, but found {type(value).__name__}: the reader keeps chunks and not "
                "batches; use cache_size or cache_dir"
            )
    unknown = [name for name in resources if name not in ResourceArguments.__annotations__]
    if unknown:
        raise TypeError(
            f"dali_zarr: xbatcher: expected arguments of xbatcher.BatchGenerator, and of the reader's resources "
            f"({', '.join(ResourceArguments.__annotations__)}), but found {unknown[0]!r}"
        )


def _name(array: xr.DataArray) -> str:
    """Returns the name that a DataArray has in a dataset."""
    return "array" if array.name is None else str(array.name)


def _without_values(ds: xr.Dataset | xr.DataArray) -> Any:
    """Returns the dataset with zeros, which share one byte."""
    if isinstance(ds, xr.DataArray):
        return ds.copy(data=np.broadcast_to(np.int8(0), ds.shape))
    return ds.copy(data={name: np.broadcast_to(np.int8(0), one.shape) for name, one in ds.data_vars.items()})


def _ndim(array: Any) -> int:
    return array.ndim


def _in_front(
    ds: Any, arguments: Mapping[str, Any], stored: Mapping[str, str], lengths: Mapping[Hashable, int],
) -> dict[Hashable, int]:
    """Returns the lengths of patches, first that of the dimension along which the reader joins stores."""
    if isinstance(arguments["path"], str) or len(arguments["path"]) == 1:
        return dict(lengths)
    front: Any = arguments["dims"][0] if "dims" in arguments else max(ds.data_vars.values(), key=_ndim).dims[0]
    front = {there: here for here, there in stored.items()}.get(front, front)
    return {front: lengths.get(front, ds.sizes[front])} | dict(lengths)


def _numbers(patches: list[dict[Hashable, slice]], steps: Mapping[Hashable, int], counts: Mapping[Hashable, int]) -> list[int]:
    """Returns the reader's numbers of patches: the last of the dimensions moves fastest. Patches are whole along dimensions that
    they don't name."""
    starts = np.array([[patch[dim].start // steps[dim] if dim in patch else 0 for dim in steps] for patch in patches], np.int64)
    shape = tuple(counts.values())
    return np.ravel_multi_index(tuple(starts.reshape(-1, len(shape)).T), shape).tolist()


def _joined(tensors: list[torch.Tensor]) -> Array:
    """Returns one array of the pieces of a batch. A single piece isn't copied."""
    return np.concatenate([one.numpy() for one in tensors]) if len(tensors) > 1 else tensors[0].numpy()

# annbatch isn't installed where this is checked, and the checker takes this module for it.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUntypedBaseClass=false, reportGeneralTypeIssues=false
"""annbatch's ``Loader``, whose matrices are read by this package.

annbatch keeps what it decides: its samplers say which cells come in which batches, and it gives their ``obs``, ``var`` and index.
Only ``X`` comes from the reader, which reads and decodes the next batches ahead.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from itertools import tee
from typing import Any

import anndata
import numpy as np
import zarr
from annbatch import Loader as TheirLoader
from annbatch.utils import convert
from scipy import sparse

from .._arguments.types import ResourceArguments
from ..torch import Loader as Reader


class _Order:
    """The batch sampler of the reader: the numbers of the cells of each batch."""

    requests: Iterable[dict[str, Any]] = ()

    def __iter__(self) -> Iterator[Any]:
        for request in self.requests:
            asked: Any = request["requests"]
            if not isinstance(asked, np.ndarray) or asked.dtype == object:
                ranges: Any = [np.arange(one.start, one.stop) for one in asked]
                asked = np.concatenate(ranges)
            for split in request["splits"]:
                yield asked[split]


class Loader(TheirLoader):
    """In the place of ``annbatch.Loader``: the same batches, by the same samplers.

    ::

        from dali_zarr.integrations.annbatch import Loader

        loader = Loader(batch_size=4096, chunk_size=32, preload_nchunks=512, shuffle=True, to="torch").use_collection(collection)
        for batch in loader:
            batch["X"], batch["obs"]
    """

    def __init__(self, *, to: str | None = None, preload_to_gpu: bool = False, **arguments: Any):
        """Takes annbatch's arguments. Data sets are added later, as for annbatch.

        Args:
            to: As of annbatch: ``"torch"``, ``"jax"``, or matrices of SciPy and NumPy.
            preload_to_gpu: Gives tensors on the GPU, where they are decoded too. This needs ``to="torch"``, and no CuPy.
            arguments: annbatch's other arguments, and the reader's arguments of memory, threads and caches.

        Raises:
            ValueError, TypeError: As of annbatch, or ``preload_to_gpu`` without ``to="torch"``.
        """
        self._resources: Any = {name: arguments.pop(name) for name in list(arguments) if name in ResourceArguments.__annotations__}
        if preload_to_gpu and to != "torch":
            raise ValueError(f'dali_zarr: annbatch: to: expected "torch" with preload_to_gpu=True, but found {to!r}')
        super().__init__(to=to, preload_to_gpu=False, **arguments)
        self._device = "cuda" if preload_to_gpu else "cpu"
        self._order, self._read, self._known = _Order(), None, 0

    def _iter(self) -> Iterator[dict[str, Any]]:
        """Yields the batches of an epoch: ``X``, ``obs``, ``var``, ``index``."""
        own: Any = self
        if not own._train_datasets:
            raise ValueError("dali_zarr: annbatch: expected data sets, but found none; call use_collection or add_adatas first")
        self._order.requests, requests = tee(own._batch_sampler.sample(own.n_obs))
        batches = iter(self._reader())
        for request in requests:
            rows, order = own._requests_to_dataset_rows(request["requests"])
            places = np.empty(order.size, np.intp)
            places[order] = np.arange(order.size)
            obs, index = own._maybe_accumulate_obs(rows), own._maybe_accumulate_indices(rows)
            for split in request["splits"]:
                yield {
                    "X": self._matrix(next(batches)), "obs": None if obs is None else obs.iloc[places[split]], "var": own._var,
                    "index": None if index is None else index[places[split]],
                }

    def _matrix(self, batch: Any) -> Any:
        """Returns ``X`` of a batch as annbatch gives it."""
        own: Any = self
        values = next(iter(batch.values()))
        if self._device != "cpu":
            return values
        if values.is_sparse_csr:
            parts = values.values().numpy(), values.col_indices().numpy(), values.crow_indices().numpy()
            values = sparse.csr_matrix(parts, shape=tuple(values.shape))
        else:
            values = values.numpy()
        return values if own._to is None else convert(values, False, own._to)

    def _reader(self) -> Reader:
        """Returns the reader of all data sets. It is made anew if some were added."""
        own: Any = self
        if self._read is not None and self._known == len(own._train_datasets):
            return self._read
        sizes = own._batch_sampler.batch_size
        if sizes is None:
            raise ValueError("dali_zarr: annbatch: batch_sampler: expected one with a batch_size, but found None: the largest size")
        self._read = Reader(
            **_stores(own._train_datasets, own.n_var), batch_sampler=self._order, batch_size=sizes, device=self._device,
            **self._resources,
        )
        self._known = len(own._train_datasets)
        return self._read


def _stores(datasets: list[Any], columns: int) -> dict[str, Any]:
    """Returns the reader's arguments for data sets of one kind."""
    if all(isinstance(one, anndata.abc.CSRDataset) for one in datasets):
        return {
            "path": [one.group for one in datasets], "arrays": ["data", "indices"], "ragged": "indptr", "collate": "csr",
            "columns": columns,
        }
    if not all(isinstance(one, zarr.Array) for one in datasets):
        kinds = sorted({type(one).__name__ for one in datasets})
        raise ValueError(
            f"dali_zarr: annbatch: expected matrices in Zarr, but found {', '.join(kinds)}; annbatch's own Loader takes these"
        )
    names = {posixpath.basename(one.path) for one in datasets}
    if len(names) > 1:
        raise ValueError(f"dali_zarr: annbatch: expected dense matrices of one name, but found {', '.join(sorted(names))}")
    rows: dict[str, Any] = {"dims": [0], "window": [0], "step": [1]}
    if names == {""}:
        return {"path": datasets} | rows
    groups = [zarr.open_group(one.store, path=posixpath.dirname(one.path), mode="r") for one in datasets]
    return {"path": groups, "arrays": sorted(names)} | rows

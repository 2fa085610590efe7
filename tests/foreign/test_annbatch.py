"""annbatch's own orders: its samplers say which cells come, and the reader gives the batches that annbatch's loader gives."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.foreign import writer

annbatch = writer("annbatch")
pytest.importorskip("jax")

import anndata  # noqa: E402
import pandas as pd  # noqa: E402
import scipy.sparse as sp  # noqa: E402
from annbatch import samplers  # noqa: E402
from dali_zarr.jax import Loader  # noqa: E402

CELLS, GENES, FILES = 300, 40, 3
SIZES = {"chunk_size": 8, "preload_nchunks": 6, "batch_size": 16}


@pytest.fixture(scope="module")
def collection(tmp_path_factory) -> Any:
    """A collection of two stores, with cells from three files, shuffled by annbatch."""
    base = tmp_path_factory.mktemp("annbatch")
    rng = np.random.default_rng(0)
    for k in range(FILES):
        matrix = sp.random(CELLS, GENES, 0.2, "csr", dtype="f4", random_state=k)
        obs = pd.DataFrame({"cell": np.arange(CELLS, dtype="i4") + k * CELLS, "age": rng.integers(20, 90, CELLS).astype("f4")})
        obs.index = [f"{k}-{i}" for i in range(CELLS)]
        anndata.AnnData(matrix, obs=obs, var=pd.DataFrame(index=[f"g{i}" for i in range(GENES)])).write_h5ad(base / f"{k}.h5ad")
    found = annbatch.DatasetCollection(str(base / "all.zarr"))
    paths = [base / f"{k}.h5ad" for k in range(FILES)]
    found.add_adatas(paths, shuffle=True, rng=rng, n_obs_per_chunk=8, shuffle_chunk_size=10, dataset_size=CELLS * FILES // 2)
    return found


def _paths(collection: Any) -> list[str]:
    root = Path(str(next(iter(collection)).store_path.store).removeprefix("file://"))
    return [str(root / group.path) for group in collection]


def _batches(sampler: Any) -> Iterator[list[int]]:
    """The numbers of the cells of each batch, as a sampler of annbatch's tells them."""
    for request in sampler.sample(CELLS * FILES):
        cells = np.concatenate([np.arange(one.start, one.stop) for one in request["requests"]])
        yield from (cells[split].tolist() for split in request["splits"])


class _Ordered:
    """A sampler of annbatch's, made anew with the same seed for each epoch, as batches of numbers."""

    def __init__(self, make: Any):
        self._make, self.batch_size = make, SIZES["batch_size"]

    def __iter__(self) -> Iterator[list[int]]:
        return _batches(self._make())

    def __len__(self) -> int:
        return self._make().n_batches(CELLS * FILES)


def _random(**how: Any) -> Any:
    return samplers.RandomSampler(**SIZES, rng=np.random.default_rng(7), **how)


ORDERS = {
    "sequential": lambda: samplers.SequentialSampler(**SIZES),
    "random": _random,
    "part": lambda: _random(mask=slice(100, 700), drop_last=True),
    "replacement": lambda: _random(replacement=True, num_samples=500),
    "rank": lambda: samplers.DistributedSampler(_random(), dist_info=lambda: (1, 2)),
}


@pytest.mark.parametrize("order", ORDERS)
def test_batches_are_those_of_annbatch(collection, order):
    def load(group: Any) -> Any:
        obs = anndata.io.read_elem(group["obs"])[["cell", "age"]]
        return anndata.AnnData(X=anndata.io.sparse_dataset(group["X"]), obs=obs)

    theirs = annbatch.Loader(batch_sampler=ORDERS[order](), preload_to_gpu=False).use_collection(collection, load_adata=load)
    ours = Loader(
        _paths(collection), arrays=["X/data", "X/indices", "obs/cell", "obs/age"], ragged="X/indptr", collate="csr",
        batch_sampler=_Ordered(ORDERS[order]), device="cpu", host_memory_limit="64MiB",
    )
    assert len(ours) == len(theirs)
    count = 0
    for own, other in itertools.zip_longest(ours, theirs):
        cells = np.asarray(own["obs/cell"]).tolist()
        assert cells == other["obs"]["cell"].tolist()
        np.testing.assert_array_equal(np.asarray(own["obs/age"]), other["obs"]["age"].to_numpy())
        parts = [np.asarray(own[f"X/{name}"]) for name in ("data", "indices", "indptr")]
        ends = parts[2][-1]
        matrix = sp.csr_matrix((parts[0][:ends], parts[1][:ends], parts[2]), shape=(len(cells), GENES))
        np.testing.assert_array_equal(matrix.toarray(), other["X"].toarray())
        count += len(cells)
    assert count > 400

"""Shuffled batches of 512 cells as sparse tensors of PyTorch, from a collection of 48,000 cells of 4,000 genes, of which 5 % are
counted: annbatch's own loader with zarr-python and with zarrs (if it is installed), and the adapter. It needs Python 3.12."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import annbatch
import anndata
import numpy as np
import pandas as pd
import scipy.sparse as sp
import zarr
from dali_zarr.integrations.annbatch import Loader

CELLS, GENES, FILES = 16000, 4000, 3


def write(folder: Path) -> Any:
    rng = np.random.default_rng(0)
    paths = []
    for k in range(FILES):
        matrix = sp.random(CELLS, GENES, 0.05, "csr", dtype="f4", random_state=k)
        matrix.data = np.ceil(matrix.data * 20)
        obs = pd.DataFrame({"kind": pd.Categorical(rng.choice(["B", "NK", "T"], CELLS))}, index=[f"{k}-{i}" for i in range(CELLS)])
        paths.append(folder / f"{k}.h5ad")
        anndata.AnnData(matrix, obs=obs, var=pd.DataFrame(index=[f"g{i}" for i in range(GENES)])).write_h5ad(paths[-1])
    found = annbatch.DatasetCollection(str(folder / "all.zarr"))
    found.add_adatas(paths, shuffle=True, rng=rng)
    return found


def load(group: Any) -> Any:
    return anndata.AnnData(anndata.io.sparse_dataset(group["X"]), obs=anndata.io.read_elem(group["obs"])[["kind"]])


def epoch(loader: Any, pipeline: str | None) -> int:
    with zarr.config.set({"codec_pipeline.path": pipeline} if pipeline else {}):
        return sum(len(batch["obs"]) for batch in loader)


def cases(folder: Path) -> Iterator[tuple[str, dict[str, Callable[[], int]]]]:
    warnings.simplefilter("ignore")
    collection = write(folder)
    # With the second limit the decoded chunks of the collection don't stay in memory from one epoch to the next.
    small: dict[str, Any] = {"host_memory_limit": "32MiB"}
    for name, chunk, count, more in (("32 cells", 32, 64, {}), ("512 cells", 512, 32, {}), ("32 cells in 32 MiB", 32, 64, small)):
        how: dict[str, Any] = {"batch_size": 512, "chunk_size": chunk, "preload_nchunks": count, "shuffle": True, "to": "torch"}
        theirs = annbatch.Loader(**how, preload_to_gpu=False).use_collection(collection, load_adata=load)
        ours = Loader(**how, **more).use_collection(collection, load_adata=load)
        epochs = {"annbatch": partial(epoch, theirs, None), "dali_zarr": partial(epoch, ours, None)}
        if importlib.util.find_spec("zarrs"):
            epochs["annbatch with zarrs"] = partial(epoch, theirs, "zarrs.ZarrsCodecPipeline")
        yield f"batches of 512 cells by runs of {name}", epochs

"""Rows of a sparse matrix of AnnData, with columns of obs and obsm: python single_cells.py [STORE]"""

import sys
from typing import Any

import torch
from dali_zarr.torch import Loader

if "--help" in sys.argv:
    sys.exit(print(__doc__))

loader = Loader(
    sys.argv[1] if len(sys.argv) > 1 else "cells.zarr",
    arrays=["X/data", "X/indices", "obs/age", "obsm/X_pca"],
    ragged="X/indptr",
    collate="csr",
    batch_size=512,
    random_shuffle=True,
    initial_fill=16384,
    drop_last=True,
)

sparse: Any = torch.sparse  # without types
model: torch.nn.Linear | None = None
for batch in loader:
    counts, age = batch["X"], batch["obs/age"]  # (cells, genes), sparse
    if model is None:
        model = torch.nn.Linear(counts.shape[1], 1).to(age.device)
    predicted: Any = sparse.mm(counts, model.weight.t()) + model.bias
    loss = torch.nn.functional.mse_loss(predicted[:, 0], age)
    print(f"{tuple(counts.shape)} with {counts.values().numel()} counts, loss {loss.item():.0f}")

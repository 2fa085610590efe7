"""Rows of a sparse matrix of AnnData, with columns of obs and obsm."""

import argparse
from typing import Any

import torch
from dali_zarr.torch import Loader

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("store", nargs="?", default="example-data/cells.zarr", help="default: %(default)s")
args = parser.parse_args()

loader = Loader(
    args.store,
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

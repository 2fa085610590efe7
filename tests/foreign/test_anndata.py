"""What anndata writes: X and layers, columns of obs, parts of sparse matrices, codes of categories, scalars of uns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.foreign import Foreign, compare, writer, zarr_python
from support.pipelines import build, same
from support.ragged import samples

anndata = writer("anndata")

import pandas as pd  # noqa: E402
import scipy.sparse as sp  # noqa: E402

CELLS, GENES = 60, 25


def _cells(rng: np.random.Generator, dense: bool) -> Any:
    counts = rng.poisson(0.3, (CELLS, GENES))
    obs = pd.DataFrame(
        {
            "total counts": counts.sum(1), "doublet": rng.random(CELLS) < 0.2, "quality": rng.random(CELLS).astype("float32"),
            "zelltyp/ü": pd.Categorical(rng.choice(["T", "B", "NK"], CELLS)),
            "age": pd.array([None if i % 3 else i for i in range(CELLS)], dtype="Int32"),
        },
        index=[f"cell {i}" for i in range(CELLS)],
    )
    obs.columns = [str(c).replace("/", " ") for c in obs.columns]
    return anndata.AnnData(
        X=counts.astype("float32") if dense else sp.csr_matrix(counts.astype("float32")), obs=obs,
        layers={"counts": counts.astype("int32"), "by gene": sp.csc_matrix(counts.astype("int64"))},
        obsm={"X_pca": rng.standard_normal((CELLS, 5))}, uns={"n": 3, "target sum": 1e4, "levels": np.arange(7)},
    )


def _expected(cells: Any, dense: bool) -> Iterator[tuple[str, np.ndarray]]:
    """Names of arrays of numbers, and their values by anndata's own account."""
    if dense:
        yield "X", cells.X
    matrices = {"layers/by gene": cells.layers["by gene"]} | ({} if dense else {"X": cells.X})
    for name, matrix in matrices.items():
        yield from ((f"{name}/{part}", getattr(matrix, part)) for part in ("data", "indices", "indptr"))
    yield "layers/counts", cells.layers["counts"]
    yield "obsm/X_pca", cells.obsm["X_pca"]
    yield from ((f"obs/{column}", cells.obs[column].to_numpy()) for column in ("total counts", "doublet", "quality"))
    yield "obs/zelltyp ü/codes", cells.obs["zelltyp ü"].cat.codes.to_numpy()
    yield "obs/age/mask", cells.obs["age"].isna().to_numpy()
    yield "uns/levels", cells.uns["levels"]


def _write(cells: Any, path: Path, zarr_format: int, chunks: dict[str, Any]) -> None:
    """Writes with these chunks, where an array has their rank."""
    import zarr

    def element(write: Any, store: Any, name: str, elem: Any, *, dataset_kwargs: Any, **_: Any) -> None:
        given = {}
        if isinstance(elem, np.ndarray) and elem.ndim == 2 and elem.dtype.kind in "biuf":
            given = chunks
        write(store, name, elem, dataset_kwargs=dict(dataset_kwargs) | given)

    root = zarr.open_group(str(path), mode="w", zarr_format=zarr_format)
    anndata.experimental.write_dispatched(root, "/", cells, callback=element)


def arrays(rng: np.random.Generator, folder: Path, zarr_format: int, dense: bool, **chunks: Any) -> Iterator[Foreign]:
    """All arrays of numbers of a store: as anndata reads them, and as zarr-python does."""
    _write(_cells(rng, dense), folder, zarr_format, chunks)
    for name, values in _expected(anndata.read_zarr(folder), dense):
        yield Foreign(folder, name, {"anndata": values, "zarr-python": zarr_python(folder, name)})


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dense", [True, False], ids=["dense", "sparse"])
@pytest.mark.timeout_s(300)
def test_every_array(tmp_path, device, zarr_format, dense):
    """Whole and in windows; windows of the parts of a sparse matrix are those of plain arrays."""
    chunks = {"chunks": (16, 10)} | ({"shards": (32, 20)} if zarr_format == 3 else {})
    for number, array in enumerate(arrays(np.random.default_rng(0), tmp_path / "a.zarr", zarr_format, dense, **chunks)):
        compare(device, array, number, tries=2)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("order", [{}, {"random_shuffle": True, "initial_fill": 20}], ids=["in-order", "shuffled"])
def test_rows_of_a_sparse_matrix(tmp_path, device, zarr_format, order):
    """The samples are rows as scipy has them, with columns of obs and obsm beside them."""
    cells = _cells(np.random.default_rng(1), False)
    _write(cells, tmp_path / "a", zarr_format, {})
    written = anndata.read_zarr(tmp_path / "a")
    matrix, totals, pca = written.X.tocsr(), written.obs["total counts"].to_numpy(), written.obsm["X_pca"]
    pipe = build(
        device, 7, path=tmp_path / "a", arrays=["X/data", "X/indices", "obs/total counts", "obsm/X_pca"], ragged="X/indptr",
        return_index=True, **order,
    )
    seen = []
    for batch in samples(pipe, 9):
        for data, indices, total, component, (row,) in zip(*batch, strict=True):
            expected = matrix[int(row)]
            same(data, expected.data, f"data of row {row}")
            same(indices, expected.indices, f"indices of row {row}")
            assert total == totals[row] and (component == pca[row]).all()
            seen.append(int(row))
    assert set(seen) == set(range(CELLS))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_matrix_by_columns_is_refused(tmp_path, zarr_format):
    _write(_cells(np.random.default_rng(0), False), tmp_path / "a", zarr_format, {})
    with pytest.raises(ValueError, match="stored by rows.*found csc_matrix.*convert it"):
        build(path=tmp_path / "a", arrays=["layers/by gene/data"], ragged="layers/by gene/indptr")


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
def test_batches_are_sparse_matrices(tmp_path):
    """By the shape that anndata writes."""
    torch = pytest.importorskip("dali_zarr.torch")
    _write(_cells(np.random.default_rng(2), False), tmp_path / "a", 3, {})
    matrix = anndata.read_zarr(tmp_path / "a").X
    arrays = ["X/data", "X/indices"]
    of = torch.Loader(
        tmp_path / "a", arrays=arrays, ragged="X/indptr", collate="csr", batch_size=11, random_shuffle=True, device="cpu",
    )
    for batch in of:
        assert batch["X"].shape == (len(batch.index), GENES)
        same(batch["X"].to_dense().numpy(), matrix[batch.index[:, 0].numpy()].toarray(), "rows")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_scalars(tmp_path, device, zarr_format):
    """Numbers of uns are arrays without a dimension."""
    cells = _cells(np.random.default_rng(0), True)
    _write(cells, tmp_path / "a", zarr_format, {})
    for name in ("n", "target sum"):
        references = {"written": np.asarray(cells.uns[name]), "zarr-python": zarr_python(tmp_path / "a", f"uns/{name}")}
        compare(device, Foreign(tmp_path / "a", f"uns/{name}", references))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_text_is_refused(tmp_path, zarr_format):
    """Names of cells are text, which DALI has no type for."""
    _write(_cells(np.random.default_rng(0), True), tmp_path / "a", zarr_format, {})
    with pytest.raises(TypeError, match="data type that DALI has"):
        build("cpu", 1, path=tmp_path / "a", arrays=["obs/_index"])

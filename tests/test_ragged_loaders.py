"""Ragged rows in loaders: nested and sparse tensors, lists and padding."""

from __future__ import annotations

import dali_zarr
import numpy as np
import pytest
import zarr
from support.pipelines import same
from support.ragged import ARRAYS, COLUMNS, DENSE, Store, write
from support.stores import Layout, write_array


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    return write(tmp_path_factory.mktemp("ragged") / "a.zarr", np.random.default_rng(0))


def loader(store: Store, device: str = "cpu", arrays=ARRAYS, batch_size=16, **args):
    from dali_zarr.torch import Loader

    limits = {"host_memory_limit": "128MiB"} | ({"device_memory_limit": "256MiB"} if device == "gpu" else {})
    return Loader(store.path, arrays=arrays, ragged="X/indptr", batch_size=batch_size, device=device, **limits, **args)


@pytest.mark.parametrize("args", [{}, {"random_shuffle": True}, {"max_length": 6, "pad_last_batch": True}], ids=str)
@pytest.mark.parametrize("how", [None, "nested", "padded"])
def test_torch_loader(store, device, how, args):
    pytest.importorskip("torch")
    of = loader(store, device, collate=how, **args)
    seen = []
    for batch in of:
        rows = batch["obs/label"].tolist()
        assert batch.index[:, 0].tolist() == rows
        for name in ARRAYS:
            found = batch[name].cpu()
            for i, row in enumerate(rows):
                expected = np.asarray(store.row(name, row, args.get("max_length")))
                if name in DENSE:
                    same(found[i].numpy(), expected, name)
                elif how == "padded":
                    length = int(batch["lengths"][i])
                    same(found[i, :length].numpy(), expected, name)
                    assert not found[i, length:].any()
                else:
                    start, end = found.offsets()[i : i + 2].tolist()
                    same(found.values()[start:end].numpy(), expected, name)
        seen += rows
    assert sorted(set(seen)) == list(range(100)) and len(seen) == (112 if args.get("pad_last_batch") else 100)
    with pytest.raises(AttributeError, match="coords"):
        _ = batch.coords
    assert "X/data" in repr(batch)


def test_nested_tensors_share_their_shape(store):
    """So that PyTorch can combine them."""
    torch = pytest.importorskip("torch")
    batch = next(iter(loader(store)))
    product = batch["X/data"] * batch["X/indices"].to(torch.float32)
    same(product.values().numpy(), (batch["X/data"].values() * batch["X/indices"].values()).numpy(), "product")


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
def test_csr(tmp_path, device):
    torch = pytest.importorskip("torch")
    sparse = pytest.importorskip("scipy.sparse")
    rng = np.random.default_rng(4)
    matrix = sparse.random(50, COLUMNS, density=0.02, format="csr", random_state=rng, dtype="float32")
    for name in ("data", "indices", "indptr"):
        write_array(tmp_path, f"X/{name}", getattr(matrix, name), layout=Layout((37,)))
    write_array(tmp_path, "label", np.arange(50), layout=Layout((9,)))
    store = Store(tmp_path, matrix.indptr, {})
    args = {"arrays": ["X/data", "X/indices", "label"], "collate": "csr", "random_shuffle": True}
    with pytest.raises(ValueError, match="columns: expected the number"):
        loader(store, device, **args)
    attributes = zarr.open_group(tmp_path, mode="r+")["X"].attrs
    attributes.update({"encoding-type": "csr_matrix", "shape": [50, COLUMNS]})
    with pytest.raises(ValueError, match="'X/indices', which holds the columns"):
        loader(store, device, **args, mean={"X/indices": 1.0})
    for narrow in (0, 3):
        with pytest.raises(ValueError, match=f"expected indices from 0 to {narrow - 1}, the columns"):
            next(iter(loader(store, device, **args, columns=narrow)))
    # What changes values doesn't touch the columns, which neither of these types could hold.
    halved = {"dtype": "float16", "mean": [0.0, 0.0, 0.0], "stddev": 2.0}
    for batch in loader(store, device, **args, **halved):
        expected = matrix[(2 * batch["label"]).int().tolist()]
        same(batch["X"].cpu().values().numpy(), (expected.data / 2).astype("float16"), "values")
        same(batch["X"].cpu().col_indices().numpy().astype(expected.indices.dtype), expected.indices, "columns")
    for told in ({}, {"columns": COLUMNS + 1}):
        for batch in loader(store, device, **args, **told):
            found, expected = batch["X"].cpu(), matrix[batch["label"].tolist()]
            assert found.layout == torch.sparse_csr and found.shape == (len(batch["label"]), COLUMNS + bool(told))
            for mine, theirs in (("values", "data"), ("col_indices", "indices"), ("crow_indices", "indptr")):
                same(getattr(found, mine)().numpy(), getattr(expected, theirs).astype(getattr(found, mine)().numpy().dtype), mine)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"collate": "csr"}, "expected the arrays 'data' and 'indices'"),
        ({"collate": "dense"}, "expected 'nested', 'padded' or 'csr'"),
        ({"columns": 3}, "expected collate='csr'"),
    ],
    ids=str,
)
def test_collate_is_checked(store, args, words):
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match=words):
        loader(store, **args)


def test_collate_needs_ragged_outputs(store):
    torch = pytest.importorskip("dali_zarr.torch")
    with pytest.raises(ValueError, match="collate: expected ragged"):
        torch.Loader(store.path, arrays=["obs/label"], collate="padded", device="cpu")


def test_a_transform_may_change_ragged_outputs(store):
    pytest.importorskip("torch")
    from nvidia.dali import fn, types

    def halved(arrays):
        return {"half": fn.cast(arrays["X/data"], dtype=types.FLOAT16), "row": arrays["obs/label"]}

    for batch in loader(store, transform=halved, arrays=["X/data", "obs/label"]):
        for i, row in enumerate(batch["row"].tolist()):
            start, end = batch["half"].offsets()[i : i + 2].tolist()
            same(batch["half"].values()[start:end].numpy(), store.row("X/data", row).astype("float16"), f"row {row}")


def test_loader_states(store):
    pytest.importorskip("torch")

    def rows(of):
        return [batch["obs/label"].tolist() for batch in of]

    straight = loader(store, random_shuffle=True)
    expected = rows(straight)
    begun = loader(store, random_shuffle=True)
    iterator = iter(begun)
    found = [next(iterator)["obs/label"].tolist() for _ in range(3)]
    state = begun.state_dict()
    again = loader(store, random_shuffle=True)
    again.load_state_dict(state)
    assert found + rows(again) == expected


def test_splits_of_rows(tmp_path):
    """By slices, lists and bools: each part has its rows, in the order of the store, and no other."""
    offsets = np.array([0, 3, 3, 7, 8, 12, 20])
    write_array(tmp_path, "data", np.arange(20), layout=Layout((6,)))
    write_array(tmp_path, "indptr", offsets)
    told = {"path": tmp_path, "arrays": ["data"], "ragged": "indptr", "random_shuffle": True, "device": "cpu"}
    from dali_zarr.torch import Loader

    for train, validation, expected in (
        (slice(0, 4), slice(4, None), {"train": [0, 1, 2, 3], "validation": [4, 5]}),
        ([0, 2, 5], [1, 4], {"train": [0, 2, 5], "validation": [1, 4]}),
        (np.array([True, False] * 3), np.array([False, True] * 3), {"train": [0, 2, 4], "validation": [1, 3, 5]}),
    ):
        parts = dali_zarr.splits(**told, train=train, validation=validation)
        for name, rows in expected.items():
            loader = Loader(**parts[name], batch_size=2)
            found = {int(i): row.tolist() for batch in loader for i, row in zip(batch.index[:, 0], batch["data"].unbind())}
            assert found == {i: list(range(offsets[i], offsets[i + 1])) for i in rows}
        assert not parts["validation"]["random_shuffle"]
    with pytest.raises(ValueError, match="expected parts without common rows, but train and test share 2"):
        dali_zarr.splits(**told, train=slice(0, 4), test=slice(2, None))
    with pytest.raises(ValueError, match="splits: validation: expected at least one of the 6 rows"):
        dali_zarr.splits(**told, train=slice(0, 4), validation=slice(6, None))
    with pytest.raises(ValueError, match="splits: starts: expected the rows in train, validation and test"):
        dali_zarr.splits(**told, starts=[1], train=slice(0, 4))
    with pytest.raises(ValueError, match="splits: by: expected ragged or ragged_ends"):
        dali_zarr.splits(path=tmp_path, arrays=["data"], by="rows", train=slice(0, 4))

"""Ragged rows in loaders: nested and sparse tensors, lists and padding."""

from __future__ import annotations

import dali_zarr
import numpy as np
import pytest
import zarr
from support.pipelines import run_script, same
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
@pytest.mark.parametrize("how", [None, "nested", "padded", "list"])
def test_torch_loader(store, device, how, args):
    pytest.importorskip("torch")
    of = loader(store, device, collate=how, **args)
    seen = []
    for batch in of:
        rows = [int(row) for row in batch["obs/label"]]
        assert batch.index[:, 0].tolist() == rows
        for name in ARRAYS:
            if how == "list":
                assert isinstance(batch[name], list) and len(batch[name]) == len(rows)
                for found, row in zip(batch[name], rows, strict=True):
                    same(found.cpu().numpy(), np.asarray(store.row(name, row, args.get("max_length"))), name)
                continue
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
    with pytest.raises(ValueError, match="columns: expected the number.*lacks the attributes 'encoding-type' and 'shape'"):
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
        ({"collate": "dense"}, "expected 'nested', 'list', 'padded' or 'csr'"),
        ({"columns": 3}, "expected collate='csr'"),
        ({"collate": "csr", "columns": -1}, "columns: expected a whole number of at least 0, but found -1"),
        ({"collate": "csr", "columns": 2.5}, "but found 2.5"),
    ],
    ids=str,
)
def test_collate_is_checked(store, args, words):
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match=words):
        loader(store, **args)


def jax_loader(store: Store, device: str = "cpu", arrays=ARRAYS, batch_size=16, **args):
    jax = pytest.importorskip("jax")
    if device == "gpu" and jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    from dali_zarr.jax import Loader

    limits = {"host_memory_limit": "128MiB"} | ({"device_memory_limit": "256MiB"} if device == "gpu" else {})
    args = {"dtype": {"obs/label": "int32"}, "ragged": "X/indptr"} | args
    return Loader(store.path, arrays=arrays, batch_size=batch_size, device=device, **limits, **args)


@pytest.mark.parametrize("args", [{}, {"random_shuffle": True}, {"max_length": 6, "pad_last_batch": True}], ids=str)
def test_jax_padded(store, device, args):
    """All batches have the shape of the longest sample, so that functions are compiled once."""
    seen, arrays = [], [name for name in ARRAYS if name != "X/xyz"]
    longest = args.get("max_length", int(np.diff(store.offsets).max()))
    for batch in jax_loader(store, device, arrays, collate="padded", **args):
        rows = batch["obs/label"].tolist()
        assert list(batch) == [*arrays, "lengths"] and batch["lengths"].dtype == np.int32
        assert len({tuple(array.devices()) for array in batch.values()}) == 1
        for name in arrays:
            found = np.asarray(batch[name])
            assert name in DENSE or found.shape[:2] == (len(rows), longest)
            for i, row in enumerate(rows):
                expected = np.asarray(store.row(name, row, args.get("max_length")))
                if name == "obs/label":
                    assert found[i] == expected
                elif name in DENSE:
                    same(found[i], expected, name)
                else:
                    length = int(batch["lengths"][i])
                    same(found[i, :length], expected, name)
                    assert not found[i, length:].any()
        seen += rows
    assert sorted(set(seen)) == list(range(100)) and len(seen) == (112 if args.get("pad_last_batch") else 100)


def test_jax_padded_of_float64(store, device):
    """DALI's operator that pads doesn't take it."""
    jax = pytest.importorskip("jax")
    longest = int(np.diff(store.offsets).max())
    with jax.enable_x64(True):
        for batch in jax_loader(store, device, ["X/xyz", "obs/label"], collate="padded"):
            found = np.asarray(batch["X/xyz"])
            for row, length, values in zip(batch["obs/label"].tolist(), batch["lengths"].tolist(), found, strict=True):
                same(values[:length], store.row("X/xyz", row), f"row {row}")
                assert len(values) == longest and not values[length:].any()


PADDED = """
import sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from dali_zarr.jax import Loader

sharding = NamedSharding(Mesh(np.array(jax.devices()), ("batch",)), P("batch"))
loader = Loader(sys.argv[1], arrays=["X/data", "obs/label"], ragged="X/indptr", batch_size=8, device="cpu", sharding=sharding,
                dtype={"obs/label": "int32"}, collate="padded", pad_last_batch=True, host_memory_limit="128MiB")
for batch in loader:
    assert all(len(array.sharding.device_set) == 4 for array in batch.values())
    for row, length, values in zip(batch["obs/label"].tolist(), batch["lengths"].tolist(), np.asarray(batch["X/data"])):
        print(row, length, len(values), values[:length].tobytes().hex(), values[length:].any())
"""


def test_jax_padded_over_devices(store):
    """All devices have the length of the longest sample of all."""
    pytest.importorskip("jax")
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    lines = [line.split(" ") for line in run_script(PADDED, str(store.path), env=flags).splitlines()]
    assert {int(line[0]) for line in lines} == set(range(100)) and len(lines) == 104
    for row, length, wide, values, rest in lines:
        expected = store.row("X/data", int(row))
        assert (int(length), values, rest) == (len(expected), expected.tobytes().hex(), "False")
        assert int(wide) == np.diff(store.offsets).max()


@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
@pytest.mark.parametrize("group", ["X/", ""], ids=["group", "root"])
def test_jax_csr(tmp_path, device, wide, group):
    """The parts of SciPy's matrices, from batches of which one is shorter and one has empty rows alone."""
    jax = pytest.importorskip("jax")
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.random(50, COLUMNS, density=0.02, format="lil", random_state=np.random.default_rng(4), dtype="float32")
    matrix[16:32] = 0
    matrix = matrix.tocsr()
    for name in ("data", "indices", "indptr"):
        values = getattr(matrix, name)
        write_array(tmp_path, group + name, values.astype("int64") if wide and name == "indices" else values, layout=Layout((37,)))
    write_array(tmp_path, "label", np.arange(50, dtype="int32"), layout=Layout((9,)))
    store = Store(tmp_path, matrix.indptr, {})
    args = {
        "arrays": [group + "data", group + "indices", "label"], "collate": "csr", "ragged": group + "indptr", "dtype": None,
    }
    with pytest.raises(ValueError, match="columns: expected the number"):
        jax_loader(store, device, **args)
    with pytest.raises(ValueError, match="expected indices from 0 to 2, the columns"):
        list(jax_loader(store, device, columns=3, **args))
    for x64 in (False, True):
        with jax.enable_x64(x64):
            sizes = []
            # What changes values doesn't touch the columns.
            for batch in jax_loader(store, device, columns=COLUMNS, **args, mean=[0.0, 0.0, 0.0], stddev=[2.0, 1.0, 1.0]):
                assert list(batch) == [*args["arrays"], group + "indptr"]
                expected = matrix[batch["label"].astype("int32").tolist()]
                assert batch[group + "indices"].dtype == batch[group + "indptr"].dtype == ("int64" if wide and x64 else "int32")
                for name in ("data", "indices", "indptr"):
                    values = getattr(expected, name) / (2 if name == "data" else 1)
                    np.testing.assert_array_equal(np.asarray(batch[group + name]), values)
                sizes.append((len(batch["label"]), batch[group + "data"].size))
            assert [samples for samples, _ in sizes] == [16, 16, 16, 2] and sizes[1] == (16, 0) and sizes[0][1] > 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"collate": "nested"}, "expected 'list', 'padded' or 'csr', since JAX has no nested arrays"),
        ({"collate": "dense"}, "expected 'nested', 'list', 'padded' or 'csr'"),
        ({"collate": "csr"}, "expected the arrays 'data' and 'indices'"),
        ({"collate": "padded", "columns": 3}, "expected collate='csr'"),
        ({"collate": "padded", "transform": dict}, "expected no transform with it.*have the transform pad"),
        ({"collate": "csr", "sharding": 1}, "expected no sharding with 'csr'"),
        ({"arrays": ["X/data"], "dtype": None}, "give collate='list', 'padded' or 'csr', or have a transform pad them"),
        ({"arrays": ["obs/label"], "ragged": None, "collate": "padded"}, "collate='padded': expected ragged or ragged_ends"),
        ({"arrays": ["obs/label"], "ragged": None, "collate": "list", "columns": 3}, "columns: expected ragged or ragged_ends"),
        ({"arrays": ["obs/label"], "ragged": None, "columns": 3}, "columns: expected ragged or ragged_ends with it"),
    ],
    ids=str,
)
def test_collate_of_jax_is_checked(store, args, words):
    with pytest.raises(ValueError, match=words):
        jax_loader(store, **args)


def test_collate_needs_ragged_outputs(store):
    torch = pytest.importorskip("dali_zarr.torch")
    for how in ("nested", "padded", "csr"):
        with pytest.raises(ValueError, match=f"collate='{how}': expected ragged"):
            torch.Loader(store.path, arrays=["obs/label"], collate=how, device="cpu")
    with pytest.raises(ValueError, match="columns: expected ragged"):
        torch.Loader(store.path, arrays=["obs/label"], collate="list", columns=3, device="cpu")


def test_a_transform_may_change_ragged_outputs(store):
    pytest.importorskip("torch")
    from nvidia.dali import fn, types

    def halved(arrays):
        return {"half": fn.cast(arrays["X/data"], dtype=types.FLOAT16), "row": arrays["obs/label"]}

    for batch in loader(store, transform=halved, arrays=["X/data", "obs/label"]):
        for i, row in enumerate(batch["row"].tolist()):
            start, end = batch["half"].offsets()[i : i + 2].tolist()
            same(batch["half"].values()[start:end].numpy(), store.row("X/data", row).astype("float16"), f"row {row}")


@pytest.mark.parametrize("how", ["nested", "padded"])
def test_a_last_sample_alone_is_ragged_after_a_transform(store, how):
    """Also beside what a transform makes dense."""
    pytest.importorskip("torch")
    from nvidia.dali import fn

    def doubled(arrays):
        return {"double": arrays["X/data"] * 2, "wide": fn.pad(arrays["X/data"], axes=[0], shape=[40]), "row": arrays["obs/label"]}

    batches = list(loader(store, collate=how, transform=doubled, arrays=["X/data", "obs/label"], batch_size=33))
    assert [len(batch["row"]) for batch in batches] == [33, 33, 33, 1]
    for batch in batches:
        assert ("lengths" in batch) == (how == "padded") and batch["double"].is_nested == (how == "nested")
        assert tuple(batch["wide"].shape) == (len(batch["row"]), 40)


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


def test_splits_of_rows_that_are_cut(tmp_path):
    """Along a further dimension, or with a step: parts are slices of rows."""
    from dali_zarr.torch import Loader

    offsets, values = np.array([0, 3, 3, 7, 8, 12, 20]), np.arange(80).reshape(20, 4)
    write_array(tmp_path, "data", values, layout=Layout((6, 4)), dims=("element", "y"))
    write_array(tmp_path, "indptr", offsets)
    told = {"path": tmp_path, "arrays": ["data"], "ragged": "indptr", "device": "cpu"}
    cut = {"dims": ["element", "y"], "window": {"y": 2}}
    parts = dali_zarr.splits(**told, **cut, train=slice(0, 4), validation=[4, 5])
    for name, rows in (("train", range(4)), ("validation", (4, 5))):
        (batch,) = Loader(**parts[name], batch_size=20)
        assert batch.index.tolist() == [[row, y] for row in rows for y in (0, 2)]
        for (row, y), found in zip(batch.index.tolist(), batch["data"].unbind(), strict=True):
            same(found.numpy(), values[offsets[row] : offsets[row + 1], y : y + 2], f"row {row}")
    for name, args in (("dims", cut), ("step", {"step": 2})):
        with pytest.raises(ValueError, match=f"splits: train: expected a slice of rows, since {name} is given"):
            dali_zarr.splits(**told, **args, train=[0, 2], validation=[1])

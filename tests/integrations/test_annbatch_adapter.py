"""The adapter's batches are those of annbatch's loader: matrices, obs, var and index, by its own samplers, from a collection that
annbatch has written."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import zarr

if sys.version_info < (3, 12):
    pytest.skip("annbatch needs Python 3.12", allow_module_level=True)
annbatch = pytest.importorskip("annbatch", reason="annbatch isn't installed: pip install annbatch")
torch = pytest.importorskip("torch")

import anndata  # noqa: E402
import pandas as pd  # noqa: E402
import scipy.sparse as sp  # noqa: E402
from annbatch import samplers  # noqa: E402
from dali_zarr.integrations.annbatch import Loader  # noqa: E402

CELLS, GENES, FILES = 300, 40, 3
SIZES = {"chunk_size": 8, "preload_nchunks": 6, "batch_size": 16}
SMALL = {"host_memory_limit": "64MiB"}


def written(folder, is_dense=False):
    """A collection of two stores, with cells from three files whose categories differ, shuffled by annbatch."""
    rng = np.random.default_rng(0)
    paths = []
    for k in range(FILES):
        matrix = sp.random(CELLS, GENES, 0.2, "csr", dtype="f4", random_state=k)
        obs = pd.DataFrame({"cell": np.arange(CELLS, dtype="i4") + k * CELLS, "age": rng.integers(20, 90, CELLS).astype("f4")})
        obs["kind"] = pd.Categorical(rng.choice(["B", "T"] if k else ["NK", "T"], CELLS))
        obs.index = [f"{k}-{i}" for i in range(CELLS)]
        data = anndata.AnnData(matrix.toarray() if is_dense else matrix, obs, pd.DataFrame(index=[f"g{i}" for i in range(GENES)]))
        paths.append(folder / f"{k}.h5ad")
        data.write_h5ad(paths[-1])
    found = annbatch.DatasetCollection(str(folder / "all.zarr"))
    found.add_adatas(paths, shuffle=True, rng=rng, n_obs_per_chunk=8, shuffle_chunk_size=10, dataset_size=CELLS * FILES // 2)
    return found


@pytest.fixture(scope="module", params=["sparse", "dense"])
def collection(request, tmp_path_factory):
    return written(tmp_path_factory.mktemp(request.param), request.param == "dense")


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    return written(tmp_path_factory.mktemp("cells"))


def load(group):
    """Some of obs, and X where it is stored."""
    x = group["X"] if isinstance(group["X"], zarr.Array) else anndata.io.sparse_dataset(group["X"])
    obs, var = (anndata.io.read_elem(group[name]) for name in ("obs", "var"))
    return anndata.AnnData(x, obs=obs[["cell", "age", "kind"]], var=var)


def same(own, other):
    assert list(own) == list(other) == ["X", "obs", "var", "index"]
    assert type(own["X"]) is type(other["X"]) and own["X"].dtype == other["X"].dtype and own["X"].shape == other["X"].shape
    if isinstance(own["X"], torch.Tensor):
        assert own["X"].layout == other["X"].layout and torch.equal(own["X"].to_dense(), other["X"].to_dense())
    elif not hasattr(own["X"], "indptr"):
        np.testing.assert_array_equal(np.asarray(own["X"]), np.asarray(other["X"]))
    else:
        for part in ("data", "indices", "indptr"):
            one, two = getattr(own["X"], part), getattr(other["X"], part)
            assert one.dtype == two.dtype
            np.testing.assert_array_equal(np.asarray(one), np.asarray(two))
    pd.testing.assert_frame_equal(own["obs"], other["obs"])
    pd.testing.assert_frame_equal(own["var"], other["var"])
    assert (own["index"] is None) == (other["index"] is None)
    if own["index"] is not None:
        np.testing.assert_array_equal(own["index"], other["index"])


def random(**how):
    return samplers.RandomSampler(**SIZES, rng=np.random.default_rng(7), **how)


ORDERS = {
    "in order": lambda: SIZES,
    "shuffled": lambda: SIZES | {"shuffle": True, "rng": np.random.default_rng(3)},
    "without the last batch": lambda: SIZES | {"shuffle": True, "rng": np.random.default_rng(3), "drop_last": True},
    "a part": lambda: {"batch_sampler": random(mask=slice(100, 700))},
    "replacement": lambda: {"batch_sampler": random(replacement=True, num_samples=500)},
    "the second of two ranks": lambda: {"batch_sampler": samplers.DistributedSampler(random(), dist_info=lambda: (1, 2))},
}


@pytest.mark.parametrize("to", [None, "torch", "jax"])
@pytest.mark.parametrize("order", ORDERS)
def test_batches_are_those_of_annbatch(collection, order, to):
    """Two epochs, the second with the sampler as the first one leaves it."""
    if to == "jax":
        pytest.importorskip("jax")
    how = {"to": to, "return_index": True}
    ours = Loader(**ORDERS[order](), **how, **SMALL).use_collection(collection, load_adata=load)
    theirs = annbatch.Loader(**ORDERS[order](), **how, preload_to_gpu=False).use_collection(collection, load_adata=load)
    assert isinstance(ours, annbatch.Loader) and len(ours) == len(theirs) and ours.n_obs == theirs.n_obs
    for _ in range(2):
        count = 0
        for own, other in zip(ours, theirs, strict=True):
            same(own, other)
            count += own["X"].shape[0]
        assert count > 400


def test_data_sets_that_are_added(sparse):
    groups = list(sparse)
    ours, theirs = Loader(**SIZES, **SMALL), annbatch.Loader(**SIZES, preload_to_gpu=False)
    for number, group in enumerate(groups):
        for loader in (ours, theirs):
            loader.add_adata(load(group))
        batches = list(ours)
        assert sum(batch["X"].shape[0] for batch in batches) == CELLS * FILES // 2 * (number + 1)
        for own, other in zip(batches, theirs, strict=True):
            same(own, other)


def test_matrices_without_a_group(tmp_path):
    values = np.arange(300, dtype="f4").reshape(100, 3)
    for number in range(2):
        zarr.save_array(tmp_path / f"{number}.zarr", values + number)
    loader = Loader(**SIZES, **SMALL).add_datasets([zarr.open_array(tmp_path / f"{number}.zarr", mode="r") for number in range(2)])
    np.testing.assert_array_equal(np.concatenate([batch["X"] for batch in loader]), np.concatenate([values, values + 1]))


def test_a_model_trains_alike(sparse):
    """Losses of ten steps."""
    losses = []
    for kind, how in ((Loader, SMALL), (annbatch.Loader, {"preload_to_gpu": False})):
        order = SIZES | {"shuffle": True, "rng": np.random.default_rng(3)}
        loader = kind(**order, to="torch", **how).use_collection(sparse, load_adata=load)
        torch.manual_seed(0)
        model, found = torch.nn.Linear(GENES, 1), []
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _, batch in zip(range(10), loader, strict=False):
            loss = (model(batch["X"].to_dense())[:, 0] - torch.from_numpy(batch["obs"]["age"].to_numpy())).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(float(loss))
        losses.append(found)
    assert len(set(losses[0])) == 10 and losses[0] == losses[1]


@pytest.mark.filterwarnings("ignore:Adding dataset with dtype")
def test_what_is_refused(sparse, tmp_path):
    groups = [zarr.open_group(tmp_path / f"{number}.zarr", mode="w") for number in range(2)]
    arrays = [group.create_array("x", data=np.zeros((50, 3), dtype)) for group, dtype in zip(groups, ("f4", "i4"), strict=True)]
    with pytest.raises((ValueError, TypeError), match="float32.*int32|int32.*float32"):
        next(iter(Loader(**SIZES, **SMALL).add_datasets(arrays)))
    with pytest.raises(ValueError, match='to: expected "torch" with preload_to_gpu=True, but found None'):
        Loader(**SIZES, preload_to_gpu=True)
    with pytest.raises(ValueError, match="expected data sets, but found none"):
        next(iter(Loader(**SIZES)))
    with pytest.raises(ValueError, match="expected matrices in Zarr, but found ndarray"):
        next(iter(Loader(**SIZES).add_dataset(np.zeros((100, 3), "f4"))))
    with pytest.raises(ValueError, match="Cannot specify batch_size when providing a custom sampler"):
        Loader(batch_sampler=random(), batch_size=4)
    with pytest.raises(TypeError, match="unexpected keyword argument 'workers'"):
        Loader(**SIZES, workers=2)

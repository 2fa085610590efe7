"""Loaders of stores that change between epochs: they keep their samples until they are refreshed."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from support.loaders import flat, make, numbers
from support.stores import Layout, write_array

torch = pytest.importorskip("torch", reason="the Loader for PyTorch needs it")

LENGTH = 40


def write(path: Path, length: int = LENGTH, chunk: int = 6, first: int = 0) -> Path:
    write_array(path, "n", np.arange(first, first + length), layout=Layout((chunk,)), dims=("time",))
    write_array(path, "time", np.arange(length) * 24, dims=("time",), attributes={"units": "hours since 2020-01-01"})
    write_array(path, "ends", np.array([5, 15, 20, 30, length]), dims=("episode",))
    write_array(path, "weight", np.ones(length), dims=("time",))
    return path


def append(path: Path, more: int = 10) -> None:
    """Appends to all arrays, as xarray and anemoi do."""
    group = zarr.open_group(str(path), mode="r+")
    length = group["n"].shape[0]
    for name, step in (("n", 1), ("time", 24)):
        group[name].resize((length + more,))
        group[name][length:] = np.arange(length, length + more) * step
    group["weight"].resize((length + more,))
    group["weight"][length:] = 1
    ends = group["ends"].shape[0]
    group["ends"].resize((ends + 1,))
    group["ends"][ends] = length + more


def finish(loader, batches: int | None = None) -> list[int]:
    """The numbers of an epoch, or of its first batches."""
    found: list[list[int]] = []
    for number, batch in enumerate(loader, 1):
        found.append(batch["n"].tolist())
        if number == batches:
            break
    return flat(found)


ARGUMENTS = {
    "in order": {}, "shuffled": {"random_shuffle": True, "initial_fill": 16},
    "open selection": {"sel": {"time": slice("2020-01-03", None)}}, "to the end": {"isel": {"time": slice(None, -5)}},
    "segments": {"breaks": "ends", "segments": [0, 2, 3]}, "even": {"breaks": "auto"},
    "drawn": {"weights": "weight"}, "ragged": {"ragged_ends": "ends"},
}


@pytest.mark.parametrize("how", ARGUMENTS)
@pytest.mark.parametrize("again", ["after a break", "by set_epoch", "by a state"])
def test_a_loader_keeps_its_samples(tmp_path, how, again, caplog):
    """Whatever makes it open the store anew. The log says once that the store has changed."""
    path = write(tmp_path / "a.zarr")
    arguments = {**ARGUMENTS[how], **({"collate": "padded", "batch_size": 1} if how == "ragged" else {})}
    whole = [finish(loader) for loader in [make(path, **arguments)] for _ in range(3)]
    loader = make(path, **arguments)
    before = len(loader), finish(loader, 1), loader.state_dict()
    append(path)
    caplog.set_level(logging.INFO, "dali_zarr")
    if again == "by set_epoch":
        loader.set_epoch(2)
    elif again == "by a state":
        loader.load_state_dict(before[2])
    found = finish(loader)
    expected = whole[2] if again == "by set_epoch" else whole[0][len(before[1]) :] if again == "by a state" else whole[1]
    assert found == expected
    assert len(loader) == before[0]
    told = [record.getMessage() for record in caplog.records if "the store has changed" in record.getMessage()]
    assert len(told) == 1 and "[50] now, and [40]" in told[0]
    if how == "in order":
        assert finish(loader) == whole[0]


def test_refresh_takes_what_there_is(tmp_path):
    """The length, the labels and the values, in the next epoch; it ends an iteration that is under way."""
    path = write(tmp_path / "a.zarr")
    loader = make(path, sel={"time": slice("2020-01-03", None)}, cache_size="16MiB")
    assert finish(loader) == list(range(2, 40)) and loader.epoch == 0
    under_way = iter(loader)
    assert next(under_way)["n"].tolist() == [2, 3, 4, 5] and loader.epoch == 1
    append(path)
    zarr.open_group(str(path), mode="r+")["n"][:12] = np.arange(12) + 1000
    loader.refresh()
    assert len(loader) == 12
    state = loader.state_dict()
    with pytest.raises(RuntimeError, match="refreshed"):
        next(under_way)
    for each in (loader, make(path, sel={"time": slice("2020-01-03", None)})):
        if each is not loader:
            each.load_state_dict(state)
        batches = list(each)
        assert each.epoch == 2
        assert flat(numbers(batches)) == [*range(1002, 1012), *range(12, 50)]
        assert str(batches[-1].coords["time"][-1])[:10] == "2020-02-19"
    # An epoch that wasn't begun keeps its number.
    loader.refresh()
    assert (finish(loader), loader.epoch) == ([*range(1002, 1012), *range(12, 50)], 3)
    loader.set_epoch(7)
    loader.refresh()
    assert (len(finish(loader)), loader.epoch) == (48, 7)


def test_states_of_other_samples_are_refused(tmp_path):
    path = write(tmp_path / "a.zarr")
    loader = make(path)
    finish(loader, 2)
    state = loader.state_dict()
    append(path)
    loader.load_state_dict(state)
    assert finish(loader) == list(range(8, 40))
    loader.refresh()
    with pytest.raises(ValueError, match="reader of other samples"):
        loader.load_state_dict(state)
    assert finish(loader) == list(range(50))
    old = make(path, isel={"time": slice(0, 40)})
    old.load_state_dict(state)
    assert finish(old) == list(range(8, 40))


def test_a_store_that_shrank(tmp_path):
    """It is an error that says so, each time, until the loader is refreshed."""
    path = write(tmp_path / "a.zarr")
    loader = make(path)
    finish(loader, 2)
    zarr.open_group(str(path), mode="r+")["n"].resize((20,))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"at least the shape \[40\] .* found \[20\]: the store has lost elements"):
            finish(loader)
    loader.refresh()
    assert (finish(loader), loader.epoch) == (list(range(20)), 1)


def test_what_fails_leaves_the_loader_as_it_was(tmp_path):
    """A store that is gone for a while."""
    path = write(tmp_path / "a.zarr")
    loader = make(path)
    finish(loader, 2)
    shutil.move(path, tmp_path / "b.zarr")
    with pytest.raises(ValueError, match=r"a\.zarr"):
        loader.refresh()
    shutil.move(tmp_path / "b.zarr", path)
    append(path)
    assert (finish(loader), loader.epoch) == (list(range(40)), 1)


def test_what_fails_can_be_tried_again(tmp_path):
    """The epoch that was set stays set, and an iteration that is under way goes on."""
    path = write(tmp_path / "a.zarr")
    loader = make(path)
    state = loader.state_dict()
    under_way = iter(loader)
    assert next(under_way)["n"].tolist() == [0, 1, 2, 3]
    shutil.move(path, tmp_path / "b.zarr")
    for fails in (loader.refresh, lambda: loader.load_state_dict(state)):
        with pytest.raises(ValueError, match=r"a\.zarr"):
            fails()
    shutil.move(tmp_path / "b.zarr", path)
    assert next(under_way)["n"].tolist() == [4, 5, 6, 7] and (loader.number, loader.epoch) == (1, 0)
    loader.set_epoch(7)
    shutil.move(path, tmp_path / "b.zarr")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"a\.zarr"):
            finish(loader)
    shutil.move(tmp_path / "b.zarr", path)
    assert (finish(loader), loader.epoch) == (list(range(40)), 7)


@pytest.mark.parametrize("length", [40, 43])
def test_a_chunk_that_was_partly_full(tmp_path, length):
    """The elements that came later in the last chunk aren't samples; nor are other dimensions that grew."""
    path = tmp_path / "a.zarr"
    values = np.arange(length * 3, dtype="float32").reshape(length, 3)
    write_array(path, "n", values, layout=Layout((8, 3), shards=(16, 3)), dims=("time", "x"))
    loader = make(path)
    first = np.concatenate([batch["n"].numpy() for batch in loader])
    next(iter(loader))
    array = zarr.open_array(str(path / "n"), mode="r+")
    array.resize((length + 9, 5))
    array[length:] = -1
    array[:, 3:] = -1
    np.testing.assert_array_equal(np.concatenate([batch["n"].numpy() for batch in loader]), first)
    loader.refresh()
    assert next(iter(loader))["n"].shape == (4, 5)


def test_repositories_keep_their_snapshot(tmp_path):
    icechunk = pytest.importorskip("icechunk", reason="the repository is made with it")
    path = tmp_path / "repo"
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)))

    def commit(values: np.ndarray) -> None:
        session = repo.writable_session("main")
        group = zarr.open_group(session.store, mode="a")
        if "n" not in group:
            group.create_array("n", shape=values.shape, dtype=values.dtype, chunks=(5,), dimension_names=["time"])
        array = group["n"]
        array.resize(values.shape)
        array[...] = values
        session.commit("all")

    commit(np.arange(20))
    loader = make(path)
    finish(loader, 2)
    commit(np.arange(30) + 100)
    assert finish(loader) == list(range(20))
    loader.refresh()
    assert finish(loader) == list(range(100, 130))


def test_the_loader_for_jax(tmp_path):
    jax = pytest.importorskip("jax", reason="the Loader for JAX needs it")
    from dali_zarr.jax import Loader

    assert jax.default_backend()
    path = write(tmp_path / "a.zarr")
    loader = Loader(path, arrays=["n"], device="cpu", batch_size=4, dtype="int32", host_memory_limit="128MiB")
    next(iter(loader))
    append(path)
    assert flat(numbers(loader)) == list(range(40)) and len(loader) == 10
    loader.refresh()
    assert len(loader) == 13 and flat(numbers(loader)) == list(range(50)) and loader.epoch == 2

"""dali_zarr.torch.Loader: its batches, epochs and states, by the values that come out."""

from __future__ import annotations

import copy
import itertools
import math
import os
import pickle
from pathlib import Path

import dali_zarr
import numpy as np
import pytest
import zarr
from support.loaders import HOURS, STEPS, fields, flat, make, numbers, write
from support.pipelines import run_script
from support.processes import start
from support.stores import write_array, write_era5

torch = pytest.importorskip("torch", reason="the Loader for PyTorch needs it")

from dali_zarr.torch import Batch, Loader  # noqa: E402


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("loader"))


# Batches.


def test_tensors_by_name(path, device):
    """Values equal the store's, types are PyTorch's, and the last batch is shorter."""
    loader = make(path, device, arrays=["field", "n", "u"])
    batches = list(loader)
    assert len(loader) == len(batches) == 6 and [len(b["n"]) for b in batches] == [4, 4, 4, 4, 4, 3]
    for i, batch in enumerate(batches):
        where = slice(4 * i, min(4 * i + 4, STEPS))
        assert list(batch) == ["field", "n", "u"] and isinstance(batch, Batch)
        assert all(t.device.type == ("cuda" if device == "gpu" else "cpu") for t in batch.values())
        assert [t.dtype for t in batch.values()] == [torch.float32, torch.int64, torch.uint16]
        np.testing.assert_array_equal(batch["field"].cpu().numpy(), fields()[where])
        np.testing.assert_array_equal(batch["u"].cpu().numpy(), np.arange(STEPS, dtype=np.uint16)[where] + 65000)
        assert batch.index.cpu().tolist() == [[n] for n in range(STEPS)[where]]


def test_offsets_in_names(path):
    (batch, *_) = make(path, offsets=[0, 6, -2], arrays=["n", "field"])
    assert list(batch) == ["n", "field", "n+6", "field+6", "n-2", "field-2"]
    assert batch["n+6"].tolist() == [8, 9, 10, 11] and batch["n-2"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("target", [6, [6, 7]], ids=str)
def test_nested_offsets(path, target):
    (batch, *_) = make(path, offsets={"input": 0, "target": target}, arrays=["n", "field"])
    assert list(batch) == ["input", "target"] and batch["input"]["n"].tolist() == [0, 1, 2, 3]
    name = "n" if target == 6 else "n+6"
    assert batch["target"][name].tolist() == [6, 7, 8, 9]
    assert (batch.coords["time"] == HOURS[:4]).all()
    assert (batch["target"].coords["time"] == HOURS[6:10] if target == 6 else HOURS[:4]).all()


def test_stacks(path):
    (batch, *_) = make(path, arrays=["field", "n"], stack_arrays=True, dtype="float32", offsets=[0, 1])
    assert {name: tuple(t.shape) for name, t in batch.items()} == {"stacked": (4, 2, 2, 3, 5), "stacked+1": (4, 2, 2, 3, 5)}
    (batch, *_) = make(path, arrays=["field"], stack_arrays=True, offsets={"input": 0, "target": 1})
    assert {name: tuple(t.shape) for name, t in batch.items()} == {"input": (4, 1, 2, 3, 5), "target": (4, 1, 2, 3, 5)}


def test_the_only_array_needs_no_name(tmp_path):
    write_array(tmp_path, "a", np.ones((5, 2), "float32"), dims=("t", "x"))
    (batch, *_) = Loader(tmp_path, device="cpu", batch_size=2)
    assert list(batch) == ["a"]


def test_outputs_of_one_name_are_refused(path):
    with pytest.raises(ValueError, match="expected each output once, but found 'n' twice"):
        make(path, arrays=["n", "n"])


def test_moving_a_batch(path):
    (batch, *_) = make(path, arrays=["field", "n"], offsets={"input": 0, "target": 1}, return_index=True)
    moved = batch.to("meta")
    assert isinstance(moved, Batch) and moved["input"]["field"].device.type == "meta"
    assert (moved["target"].coords["time"] == HOURS[1:5]).all() and moved.index is batch.index
    half = batch.to(dtype=torch.bfloat16)
    assert (half["input"]["field"].dtype, half["input"]["n"].dtype) == (torch.bfloat16, torch.int64)
    assert half["index"].dtype == torch.int64
    assert batch.to(torch.float64)["target"]["field"].dtype == torch.float64


def test_coordinates(path):
    """One label for each sample, or for each element of its window; times are datetime64."""
    (first, *_) = make(path, arrays=["field"], dims=["time", "lat", "lon"], window=[3, 0, -1], step=[1, 1, 1], stride=[2, 1, 1])
    coords = first.coords
    assert coords["time"].dtype == "datetime64[ns]" and coords["time"].shape == (4, 3)
    assert (coords["time"][0] == HOURS[[0, 2, 4]]).all()
    assert coords["lat"].tolist() == [0.5, 1.5, 2.5, 0.5]
    assert coords["lon"].tolist() == [[0, 1, 2, 3, 4]] * 4, "without coordinates, positions"


def test_batches_are_pytrees(path):
    """For torch.utils._pytree, as JAX's batches are for JAX: the batch that it makes has no coordinates."""
    pytree = torch.utils._pytree
    batch = next(iter(make(path, arrays=["row", "n"], offsets={"now": 0, "next": 1})))
    found = pytree.tree_map(lambda tensor: tensor.double(), batch)
    assert type(found) is type(found["next"]) is type(batch) and found["next"]["row"].dtype == torch.float64
    assert found["next"]["n"].tolist() == [1.0, 2.0, 3.0, 4.0] and found.index is None
    leaves, spec = pytree.tree_flatten(batch)
    assert len(leaves) == 4 and spec == pytree.tree_flatten(found)[1]
    paths = [pytree.keystr(keys) for keys, _ in pytree.tree_flatten_with_path(batch)[0]]
    assert paths == ["['now']['row']", "['now']['n']", "['next']['row']", "['next']['n']"]
    assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec


def test_batches_can_be_pickled(path):
    """With where their samples are."""
    batch = next(iter(make(path)))
    for copied in (pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch)) * 2:
        assert copied["n"].tolist() == copied.index[:, 0].tolist() == [0, 1, 2, 3]
        assert copied.coords["time"].tolist() == batch.coords["time"].tolist() and not copied.is_repeated.any()


def test_coordinates_beyond_the_store(path):
    loader = make(path, arrays=["n"], window=[3], step=[1], out_of_bounds_policy="pad", batch_size=STEPS)
    (batch,) = loader
    assert np.isnat(batch.coords["time"][-1]).tolist() == [False, True, True]


def test_coordinates_of_joined_stores(tmp_path):
    for year in (2020, 2021):
        write_era5(tmp_path / str(year), hours=5)
        zarr.open_group(tmp_path / str(year))["time"].attrs["units"] = f"hours since {year}-01-01"
    loader = make([tmp_path / "2020", tmp_path / "2021"], arrays=["t2m"], batch_size=10)
    (batch,) = loader
    expected = [np.datetime64(f"{year}-01-01T{hour:02}") for year in (2020, 2021) for hour in range(5)]
    assert batch.coords["time"].tolist() == np.array(expected, "datetime64[ns]").tolist()


def test_nothing_is_copied(path, device, monkeypatch):
    """Tensors lie where DALI's outputs do."""
    from nvidia.dali.pipeline import Pipeline

    seen, own = [], Pipeline.outputs

    def watched(pipe, *args, **kwargs):
        outputs = own(pipe, *args, **kwargs)
        seen.append([output.as_tensor().data_ptr() for output in outputs])
        return outputs

    monkeypatch.setattr(Pipeline, "outputs", watched)
    for batch in make(path, device, arrays=["field", "n"]):
        assert [t.data_ptr() for t in batch.values()] == seen[-1][:2]


def test_tensors_stay_what_they_are(path, device):
    """Batches that are kept aren't written over, in later epochs nor after the loader is gone."""
    loader = make(path, device, arrays=["field", "n"], random_shuffle=True)
    kept = [batch for _ in range(3) for batch in loader]
    del loader
    for batch in kept:
        np.testing.assert_array_equal(batch["field"].cpu().numpy(), fields()[batch["n"].cpu().numpy()])


def test_a_transform(path, device):
    """DALI's operators in the same pipeline, from names to names; nested as batches are."""
    from nvidia.dali import fn

    def doubled(outputs):
        return {"twice": outputs["input"]["n"] * 2, "target": {"n": outputs["target"]["n"], "copy": fn.copy(outputs["input"]["n"])}}

    (batch, *_) = make(path, device, offsets={"input": 0, "target": 6}, transform=doubled)
    assert list(batch) == ["twice", "target"] and batch["twice"].tolist() == [0, 2, 4, 6]
    assert batch["target"]["n"].tolist() == [6, 7, 8, 9] and batch["target"]["copy"].tolist() == [0, 1, 2, 3]
    with pytest.raises(TypeError, match="transform: expected a dictionary from names to outputs"):
        make(path, device, transform=lambda outputs: outputs["n"])


# Epochs.


def test_each_iteration_is_an_epoch(path):
    loader = make(path, random_shuffle=True)
    epochs = [flat(numbers(loader)) for _ in range(3)]
    assert all(sorted(epoch) == list(range(STEPS)) for epoch in epochs) and epochs[0] != epochs[1]
    assert loader.epoch == 2


@pytest.mark.parametrize("stop", [1, 2, 4, 6])
def test_an_iteration_that_stopped_is_over(path, stop):
    """As with limits on the batches of an epoch, sanity checks, or loops that stop at len(loader)."""
    straight = make(path, random_shuffle=True)
    epochs = [numbers(straight) for _ in range(3)]
    loader = make(path, random_shuffle=True)
    assert numbers(itertools.islice(loader, stop)) == epochs[0][:stop]
    assert numbers(loader) == epochs[1]
    assert numbers(itertools.islice(loader, stop)) == epochs[2][:stop] and loader.epoch == 2


def test_an_older_iteration_cannot_go_on(path):
    loader = make(path)
    first = iter(loader)
    next(first)
    next(iter(loader))
    with pytest.raises(RuntimeError, match="another iteration over this loader has begun"):
        next(first)


def test_set_epoch(path):
    straight = make(path, random_shuffle=True)
    epochs = [numbers(straight) for _ in range(5)]
    loader = make(path, random_shuffle=True)
    for epoch in (0, 1, 4, 2, 2, 3):
        loader.set_epoch(epoch)
        assert (numbers(loader), loader.epoch) == (epochs[epoch], epoch)
    next(iter(loader))
    loader.set_epoch(4)
    assert numbers(loader) == epochs[4]
    with pytest.raises(ValueError, match="at least 0"):
        loader.set_epoch(-1)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("how", [{}, {"drop_last": True}, {"pad_last_batch": True}], ids=str)
def test_ranks(path, world, how):
    """Equally many batches on all ranks; each sample once, but those that are dropped or repeated."""
    loaders = [make(path, shard_id=rank, num_shards=world, random_shuffle=True, **how) for rank in range(world)]
    own = STEPS // world // 4 if "drop_last" in how else math.ceil(math.ceil(STEPS / world) / 4)
    for _ in range(3):
        epochs = [numbers(loader) for loader in loaders]
        assert {len(epoch) for epoch in epochs} == {len(loader) for loader in loaders} == {own}
        found = sorted(n for epoch in epochs for n in flat(epoch))
        sizes = {len(batch) for epoch in epochs for batch in epoch}
        if how:
            assert sizes == {4} and len(found) == 4 * own * world
            assert len(set(found)) == (len(found) if "drop_last" in how else STEPS)
        else:
            assert found == list(range(STEPS)) and max(sizes) == 4


def test_dropping_all_is_an_error(path):
    with pytest.raises(ValueError, match="drop_last: expected at least one whole batch, but the 23 samples on 2 ranks"):
        make(path, batch_size=12, num_shards=2, shard_id=0, drop_last=True)
    with pytest.raises(ValueError, match="drop_last or pad_last_batch"):
        make(path, drop_last=True, pad_last_batch=True)


# Ranks from elsewhere.


def test_the_rank_of_torchrun(path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert flat(numbers(make(path))) == list(range(11, STEPS))
    assert flat(numbers(make(path, shard_id=0, num_shards=3))) == list(range(7))
    with pytest.raises(ValueError, match="both shard_id and num_shards"):
        make(path, shard_id=0)


DISTRIBUTED = """
import sys
import torch.distributed as dist
from dali_zarr.torch import Loader
path, rendezvous, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=4)
pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
how = {"arrays": ["n"], "device": "cpu", "batch_size": 4, "uneven": "exact", "host_memory_limit": "128MiB"}
print([n for batch in Loader(path, **how) for n in batch["n"].tolist()])
print([n for batch in Loader(path, process_group=pairs[rank % 2], **how) for n in batch["n"].tolist()])
dist.destroy_process_group()
"""


def test_process_groups(path, tmp_path):
    processes = [start(DISTRIBUTED, path, tmp_path / "rendezvous", rank, imports="torch") for rank in range(4)]
    try:
        lines = [[eval(line) for line in p.communicate(timeout=120)[0].splitlines() if line.startswith("[")] for p in processes]
    finally:
        for process in processes:
            process.kill()
    assert [all_ for all_, _ in lines] == [list(range(STEPS * r // 4, STEPS * (r + 1) // 4)) for r in range(4)]
    assert [pair for _, pair in lines] == [list(range(11)), list(range(11)), list(range(11, STEPS)), list(range(11, STEPS))]


# Where it can't be used, and what it costs.


class Wrapped(torch.utils.data.IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        return iter(make(self.path))


def test_workers_are_refused(path):
    with pytest.raises(RuntimeError, match="can't be used in a worker process of a DataLoader.*iterate over it itself"):
        list(torch.utils.data.DataLoader(Wrapped(path), batch_size=None, num_workers=1))


def test_a_forked_process_is_refused(path):
    loader = make(path)
    next(iter(loader))
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            iter(loader)
        except RuntimeError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert "was made in another process" in pipe.read()
    os.waitpid(pid, 0)


def test_importing_it_is_left_to_its_users():
    out = run_script(
        "import dali_zarr, sys\nprint('torch' in sys.modules)\ndali_zarr.torch.Loader\nprint('torch' in sys.modules)",
        imports="nothing",
    )
    assert out.split() == ["False", "True"]


def test_wrong_arguments(path):
    with pytest.raises(ValueError, match="device: expected 'cuda' or 'cpu', but found 'mps'"):
        make(path, "mps")
    with pytest.raises(TypeError, match="windw: there is no such argument; did you mean window?"):
        make(path, windw=[3])
    with pytest.raises(ValueError, match="expected an array 'x'"):
        make(path, arrays=["x"])
    two = np.arange(2)
    for name, value in (("batch_size", 1 << 40), ("batch_size", two), ("offsets", two[None]), ("collate", two)):
        with pytest.raises((ValueError, TypeError), match=f"dali_zarr: {name}: expected"):
            make(path, **{name: value})


def test_labels_beside_numpys_numbers(path):
    """Labels are looked up by the library too, which takes the arguments as JSON."""
    (batch, *_) = make(path, dims=[np.int64(0)], window=[np.int64(2)], out_of_bounds_policy="edge")
    assert (batch.coords["time"] == HOURS[np.arange(4)[:, None] * 2 + [0, 1]]).all()
    assert Path(dali_zarr.__file__).exists()


@pytest.fixture(scope="module")
def years(tmp_path_factory):
    """Two stores with the same levels in another order."""
    found = []
    for year, levels in ((0, [1000, 500, 850]), (1, [500, 850, 1000])):
        path = tmp_path_factory.mktemp("years") / f"y{year}.zarr"
        values = np.array(levels)[None] + year * 10000 + np.arange(3)[:, None]
        write_array(path, "z", values.astype("float32"), dims=("time", "level"))
        write_array(path, "level", np.array(levels), dims=("level",))
        write_array(path, "time", np.arange(3) + 3 * year, dims=("time",))
        found.append(path)
    return found


@pytest.mark.parametrize(
    "args",
    [{"sel": {"level": 500}}, {"pick": {"level": [[1, 2], [0, 1]]}, "dims": ["time", "level"]}],
    ids=str,
)
def test_labels_of_stores_in_another_order(years, args):
    pytest.importorskip("xarray")
    levels = []
    for batch in make(years, arrays=["z"], batch_size=5, **args):
        found = batch["z"].numpy().reshape(-1)
        assert (batch.coords["level"] == (found % 10000 - batch.coords["time"] % 3)).all()
        levels += batch.coords["level"].tolist()
    assert set(levels) == ({500} if len(levels) == 6 else {500, 850})


def test_no_labels_across_stores_in_another_order(years):
    pick = {"level": [[0, 1], [0, 1]]}
    how = {"arrays": ["z"], "pick": pick, "window": [2, -1], "dims": ["time", "level"], "batch_size": 1}
    first, across, last = make(years, **how)
    assert first.coords["level"].tolist() == [[1000, 500]] and last.coords["level"].tolist() == [[500, 850]]
    with pytest.raises(AttributeError, match="other coordinates along 'level'"):
        _ = across.coords


def test_labels_of_elements_that_are_selected(years):
    """Along dimensions that samples aren't cut along: of all stores, or of each sample's."""
    pytest.importorskip("xarray")
    for batch in make(years, arrays=["z"], sel={"level": [850, 500]}, batch_size=4):
        assert list(batch.coords) == ["time", "level"] and batch.coords["level"].tolist() == [850, 500]
        assert (batch["z"].numpy() % 10000 == batch.coords["level"] + (batch.coords["time"] % 3)[:, None]).all()
    picked = {"pick": {"level": [[0, -1], [0, 1]]}}
    (batch,) = make(years, arrays=["z"], batch_size=6, **picked)
    assert batch.coords["level"].tolist() == [[1000, 850]] * 3 + [[500, 850]] * 3
    across = [b.coords for b in make(years, arrays=["z"], window=[2], step=[1], batch_size=1, **picked)]
    assert ["level" in coords for coords in across] == [True, True, False, True, True] and all("time" in c for c in across)
    first = years[0]
    whole = [1000, 500, 850]
    cases = ((slice(1, 3), whole[1:]), ([2, 0], [850, 1000]), (slice(None), None), (slice(3), whole), ([True] * 3, whole), (1, 500))
    for level, expected in cases:
        (batch,) = make(first, arrays=["z"], isel={"level": level}, batch_size=3)
        found = batch.coords.get("level")
        assert found is None if expected is None else (found == expected).all()


@pytest.mark.parametrize("args", [{}, {"window": [2]}, {"dims": ["time", "level"]}, {"sel": {"time": slice(1, 4)}}], ids=str)
def test_stores_with_other_coordinates_are_refused(years, args):
    pytest.importorskip("xarray")
    with pytest.raises(ValueError, match=r"along 'level', but element 0 is 1000 in .*y0.zarr and 500 in .*y1.zarr; choose labels"):
        make(years, arrays=["z"], **args)
    assert len(make(years, arrays=["z"], isel={"level": slice(None)}, batch_size=6)) == 1, "as it was asked for"


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("offsets", [{"input": 0, "target": 6}, {"input": -2, "target": [0, 6]}, [0, 6]], ids=str)
def test_coords_of_each_entry(path, stacked, offsets):
    """Shifted by the offset of the entry, also where that is a tensor: of a stack, or named by its offset."""
    batch = next(iter(make(path, arrays=["n"], offsets=offsets, stack_arrays=stacked)))
    first = 2 if isinstance(offsets, dict) and offsets["input"] else 0
    assert (batch.coords["time"] == HOURS[first : first + 4]).all()
    name = "stacked" if stacked else "n"
    if isinstance(offsets, list):
        expected = {name: 0, f"{name}+6": 6}
    elif isinstance(offsets["target"], list):
        expected = {"input": -2, "target/" + name: 0, f"target/{name}+6": 6}
    else:
        expected = {"input": 0, "target": 6}
    for place, offset in expected.items():
        group, _, entry = place.rpartition("/")
        found = (batch[group] if group else batch).coords_of(entry)["time"]
        assert (found == HOURS[first + offset : first + offset + 4]).all(), place
    with pytest.raises(KeyError, match="coords_of: expected an output of the reader, but found 'index'"):
        batch.coords_of("index")


def test_coords_of_outputs_with_windows_of_their_own(path):
    """The batch has those of the longest window, with its stride; a dimension that an array lacks doesn't count."""
    how = {"window": {"n": {"time": 2}, "x": {"time": 3, "lat": 1}, "u": {"lat": 2}}, "stride": {"n": {"time": 4}}}
    batch = next(iter(make(path, arrays={"n": "n", "x": "row", "u": "u"}, **how)))
    assert (batch.coords["time"][0] == HOURS[:3]).all() and batch.coords["lat"].shape == (4, 1)
    assert (batch.coords_of("n")["time"][0] == HOURS[[0, 4]]).all() and (batch.coords_of("u")["time"][:1] == HOURS[:1]).all()


@pytest.mark.parametrize("args", [{"breaks": [3]}, {"roi_start": [2], "roi_end": [9]}, {"isel": {"time": slice(2, 9)}}], ids=str)
def test_what_is_padded_has_no_label(path, args):
    """Beside offsets too, on which depends how much may be padded."""
    pads = {"pad_before": [2], "pad_after": [1]} if "breaks" in args else {}
    how = {"window": [2], "step": [1], "fill_value": -1, "offsets": [0, 2], "out_of_bounds_policy": "pad", **args, **pads}
    for batch in make(path, **how):
        for entry in ("n", "n+2"):
            found = batch[entry].numpy()
            assert (np.isnat(batch.coords_of(entry)["time"]) == (found == -1)).all()
            assert (batch.coords_of(entry)["time"] == HOURS[found])[found != -1].all()


@pytest.mark.parametrize("policy", ["edge", "pad"])
def test_labels_beyond_the_border_of_stores(years, policy):
    """Where all that a sample reads lies behind the border, it is the next store's."""
    how = {"window": [2], "offsets": [1], "step": [1], "cross_stores": False, "out_of_bounds_policy": policy, "fill_value": -1}
    for batch in make(years, arrays=["z"], isel={"level": [0]}, **how):
        found, times = batch["z+1"].numpy()[..., 0], batch.coords_of("z+1")["time"]
        assert (np.isnan(times.astype("f8")) == (found == -1)).all()
        assert (times % 3 == found % 10)[found != -1].all()

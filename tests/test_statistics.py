"""Statistics are those of NumPy in longdouble, in any number of processes, and readers find them again in files."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import dali_zarr
import numpy as np
import pytest
import xarray as xr
from dali_zarr.__main__ import main
from dali_zarr._statistics import formats
from support.pipelines import build, to_numpy
from support.processes import start
from support.statistics import DIMS, HOURS, LATITUDES, LEVELS, normalised, written
from support.stores import Layout, write_array


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    path = tmp_path_factory.mktemp("statistics") / "s"
    return path, written(path)


@pytest.fixture(scope="module", params=["json", "zarr"])
def stats_file(store: Any, request: pytest.FixtureRequest) -> Path:
    found = store[0].parent / f"stats.{request.param}"
    dali_zarr.statistics(store[0], arrays=["t2m", "z", "lsm"], output=found)
    return found


def entries_of(store: tuple[Path, Any]) -> dict[str, Any]:
    """What the files have, by another pass."""
    return dali_zarr.statistics(store[0], arrays=["t2m", "z", "lsm"])["arrays"]


def reference(values: np.ndarray, weights: np.ndarray | None = None) -> dict[str, float]:
    """By NumPy, in longdouble."""
    x = values.astype(np.longdouble)
    w = np.broadcast_to(np.ones((), np.longdouble) if weights is None else weights.astype(np.longdouble), x.shape)
    there = ~np.isnan(x)
    w = w[there] / w[there].sum()
    mean = (x[there] * w).sum()
    return {
        "mean": mean, "stddev": np.sqrt((w * (x[there] - mean) ** 2).sum()), "min": x[there].min(), "max": x[there].max(),
        "nan_share": 1 - there.mean(), "count": x.size,
    }


def agrees(found: dict[str, Any], expected: dict[str, float], i: int | None = None) -> None:
    """Within 1e-12 of the reference."""
    for key, value in expected.items():
        number = found[key] if i is None else found[key][i]
        assert abs(np.longdouble(number) - value) <= 1e-12 * max(abs(value), 1e-300), (key, number, value)


def test_arrays_channels_and_nans(store, device):
    path, values = store
    found = dali_zarr.statistics(path, arrays=["t2m", "z"], batch_size=4, device=device)
    assert found["samples"] == HOURS and found["weights"] is None
    t2m, z = found["arrays"]["t2m"], found["arrays"]["z"]
    assert np.isnan(values["t2m"]).any()
    agrees(t2m, reference(values["t2m"]))
    assert t2m["channels"] == []
    assert z["channels"] == [{"dim": "level", "positions": [0, 1, 2], "labels": LEVELS}]
    for i in range(3):
        agrees(z["by_channel"], reference(values["z"][:, i]), i)
    agrees(z, reference(values["z"]))


def test_many_blocks_and_hard_numbers(tmp_path):
    """A small deviation beside a large mean, in more elements than are reduced at a time."""
    values = (1e6 + np.random.default_rng(1).standard_normal((6, 300, 900)) * 1e-3).astype("float64")
    write_array(tmp_path, "a", values, layout=Layout((1, 300, 900)), dims=("time", "y", "x"), codec="none")
    entry = dali_zarr.statistics(tmp_path, batch_size=4)["arrays"]["a"]
    expected = reference(values)
    assert abs(entry["mean"] - expected["mean"]) <= 1e-12 * expected["mean"]
    assert abs(entry["stddev"] - expected["stddev"]) <= 1e-12 * expected["stddev"]


@pytest.mark.parametrize("offset", [1, 6, -2, 30])
def test_tendencies(store, offset):
    """Differences where both are there; the values themselves are all counted."""
    path, values = store
    found = dali_zarr.statistics(path, arrays=["t2m", "z"], offsets=[0, offset], batch_size=4)
    for name, x in (("t2m", values["t2m"].astype("f8")), ("z", values["z"].astype("f8"))):
        entry = found["arrays"][name]
        agrees(entry, reference(x))
        shift = abs(offset)
        differences = (x[shift:] - x[:-shift]) * np.sign(offset)
        tendency = entry["tendencies"][str(offset)]
        if offset == 30:
            assert tendency["count"] == 0 and tendency["mean"] is None
        elif name == "z":
            for i in range(3):
                agrees(tendency["by_channel"], reference(differences[:, i]), i)
        else:
            agrees(tendency, reference(differences))


def test_tendencies_stop_at_breaks_and_regions(store):
    path, values = store
    x = values["z"].astype("f8")[:, 0]
    found = dali_zarr.statistics(path, arrays=["z"], offsets=2, breaks=[10], roi_start=3, roi_end=20)
    entry = found["arrays"]["z"]
    parts = [x[5:10] - x[3:8], x[12:20] - x[10:18]]
    agrees(entry["by_channel"], reference(x[3:20]), 0)
    agrees(entry["tendencies"]["2"]["by_channel"], reference(np.concatenate(parts)), 0)


def test_selections_with_gaps(store):
    """Offsets count selected elements."""
    path, values = store
    x = values["z"].astype("f8")[::4, [2, 0]]
    found = dali_zarr.statistics(path, arrays=["z"], isel={"time": slice(None, None, 4), "level": [2, 0]}, offsets=1)
    entry = found["arrays"]["z"]
    assert entry["channels"][0]["labels"] == [500.0, 1000.0] and found["samples"] == len(x)
    for i in range(2):
        agrees(entry["by_channel"], reference(x[:, i]), i)
        agrees(entry["tendencies"]["1"]["by_channel"], reference(x[1:, i] - x[:-1, i]), i)


def test_packed_data(store):
    path, _ = store
    decoded = xr.open_zarr(path, consolidated=False)["packed"].values
    assert np.isnan(decoded).any()
    for args in ({}, {"mask_and_scale": True}):
        found = dali_zarr.statistics(path, arrays=["packed"], **args)
        agrees(found["arrays"]["packed"], reference(decoded))
        assert found["arrays"]["packed"]["mask_and_scale"] is True


@pytest.mark.parametrize("how", ["path", "named", "own"])
@pytest.mark.parametrize("given", [{}, {"a": True, "b": False}, {"a": False}], ids=str)
def test_which_arrays_are_decoded(tmp_path, how, given):
    """``mask_and_scale`` by output says it for each array; arrays that it leaves out are decoded by default."""
    values = np.arange(24, dtype="int16").reshape(4, 6)
    for name in "ab":
        write_array(tmp_path / "s", name, values, dims=("t", "x"), attributes={"scale_factor": 0.5})
    told = {"mask_and_scale": given} if given else {}
    if how == "path":
        found = dali_zarr.statistics(tmp_path / "s", arrays=["a", "b"], **told)["arrays"]
    elif how == "named":
        outputs = {"mask_and_scale": {name * 2: value for name, value in given.items()}} if given else {}
        found = dali_zarr.statistics(tmp_path / "s", arrays={"aa": "a", "bb": "b"}, **outputs)["arrays"]
    else:
        found = dali_zarr.statistics(arrays={name: str(tmp_path / "s" / name) for name in "ab"}, **told)["arrays"]
    for name in "ab":
        is_decoded = given.get(name, True)
        assert found[name]["mask_and_scale"] is is_decoded, name
        agrees(found[name], reference(values * (0.5 if is_decoded else 1.0)))


def test_what_became_of_nans(store, monkeypatch):
    """By the name of the output. No infinite number takes their place: that is known before the pass."""
    path, _ = store
    decoded = xr.open_zarr(path, consolidated=False)["packed"].values
    found = dali_zarr.statistics(path, arrays={"p": "packed", "t2m": "t2m"}, fillna={"p": 3.5})["arrays"]
    assert found["packed"]["fillna"] == 3.5 and "fillna" not in found["t2m"]
    agrees(found["packed"], reference(np.nan_to_num(decoded, nan=3.5)))
    monkeypatch.setattr("dali_zarr._statistics.compute._read", lambda *_: pytest.fail("the pass began"))
    with pytest.raises(ValueError, match="statistics: fillna: expected a finite number, but found inf"):
        dali_zarr.statistics(path, arrays=["packed"], fillna=np.inf)


def test_area_weights(store):
    path, values = store
    found = dali_zarr.statistics(path, arrays=["t2m", "z", "level"], weights="cos_latitude", sel={"latitude": slice(60, -30)})
    cosines = np.cos(np.radians(LATITUDES[1:5]))[:, None]
    agrees(found["arrays"]["t2m"], reference(values["t2m"][:, 1:5], cosines))
    for i in range(3):
        agrees(found["arrays"]["z"]["by_channel"], reference(values["z"][:, i, 1:5], cosines), i)
    # Normalised: as much as there are elements.
    assert np.isclose(found["arrays"]["z"]["by_channel"]["weight"][0], HOURS * 4 * 7)
    agrees(found["arrays"]["level"], reference(np.array(LEVELS)) | {"count": HOURS * 3})


def test_several_stores(tmp_path):
    parts = [written(tmp_path / name, seed, hours)["z"] for name, seed, hours in (("a", 1, 9), ("b", 2, 14))]
    x = np.concatenate(parts).astype("f8")[:, 1]
    for crosses in (True, False):
        found = dali_zarr.statistics([tmp_path / "a", tmp_path / "b"], arrays=["z"], offsets=[3], cross_stores=crosses)
        entry = found["arrays"]["z"]
        agrees(entry["by_channel"], reference(x), 1)
        pieces = [x] if crosses else [x[:9], x[9:]]
        agrees(entry["tendencies"]["3"]["by_channel"], reference(np.concatenate([p[3:] - p[:-3] for p in pieces])), 1)


def test_a_label_that_stores_have_elsewhere(tmp_path):
    """The index of its samples has the label's position in each store."""
    values = [np.arange(30, dtype="float32").reshape(5, 3, 2) + 100 * i for i in range(2)]
    for i, levels in enumerate(([1000, 850, 500], [500, 1000, 850])):
        write_array(tmp_path / str(i), "z", values[i], dims=("time", "level", "lat"))
        write_array(tmp_path / str(i), "level", np.array(levels), dims=("level",))
    chosen = np.concatenate([values[0][:, 1], values[1][:, 2]])
    for more in ({}, {"dims": ["time", "lat"]}, {"breaks": [4, 6], "segments": [0, 2]}):
        found = dali_zarr.statistics([tmp_path / "0", tmp_path / "1"], arrays=["z"], sel={"level": 850}, **more)["arrays"]["z"]
        agrees(found, reference(np.delete(chosen, [4, 5], axis=0) if "breaks" in more else chosen))


def test_nothing_but_nans(tmp_path):
    write_array(tmp_path, "a", np.full((4, 3, 2), np.nan, "f4"), dims=("time", "y", "x"))
    file = tmp_path / "stats.json"
    entry = dali_zarr.statistics(tmp_path, output=file)["arrays"]["a"]
    assert (entry["mean"], entry["stddev"], entry["min"], entry["max"], entry["nan_share"]) == (None, None, None, None, 1.0)
    with pytest.raises(ValueError, match="array 'a': expected a finite number, but there is none"):
        dali_zarr.explain(path=tmp_path, mean=file)


def two_processes(script: str, *argv: str) -> str:
    """Runs a script as torchrun would on two ranks; gives what both print."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        start(script, *argv, imports="torch", env=place | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)
    ]
    done = [rank.communicate(240) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], done
    return "".join(out for out, _ in done)


def test_two_processes(store, tmp_path):
    """By torchrun's environment alone, several times in one process, and with torch.distributed; all ranks return the same, also
    where rank 0 alone names the file, and hear of its error. The command prints once."""
    path, values = store
    script = """
import json, os, sys, time
import dali_zarr, dali_zarr.__main__, torch.distributed as dist
from dali_zarr._statistics.files import Statistics
path, out = sys.argv[1:]
found = [dali_zarr.statistics(path, arrays=["t2m", "z"], offsets=[0, 6], batch_size=4) for _ in range(2)]
own = f"{out}/own.json"
named = dali_zarr.statistics(path, arrays=["t2m"], output=own if os.environ["RANK"] == "0" else None)
assert json.load(open(own)) == named  # in all ranks
save = Statistics.save
def no_room(*given): raise OSError("no room")
Statistics.save = no_room
try:
    dali_zarr.statistics(path, arrays=["t2m"], output=f"{out}/no.json")
except (OSError, RuntimeError) as error:
    assert "no room" in str(error)
else:
    raise SystemExit("no error")
Statistics.save = save
dist.init_process_group("gloo", init_method=f"file://{out}/init", rank=int(os.environ["RANK"]), world_size=2)
save = Statistics.save
Statistics.save = lambda *given: (time.sleep(0.3), save(*given))
found.append(dali_zarr.statistics(path, arrays=["t2m", "z"], offsets=[0, 6], batch_size=4, output=f"{out}/stats.json"))
assert json.load(open(f"{out}/stats.json")) == found[-1]  # in all ranks
sys.argv[1:] = ["statistics", path, "--arrays", "t2m", "z", "--output", f"{out}/by_command.zarr", "--quiet"]
assert dali_zarr.__main__.main() == 0
dist.barrier()
dist.destroy_process_group()
json.dump(found, open(f"{out}/{os.environ['RANK']}", "w"))
"""
    out = two_processes(script, str(path), str(tmp_path))
    first, second = (json.loads((tmp_path / str(rank)).read_text()) for rank in range(2))
    assert first == second and first[0] == first[1] == first[2] == json.loads((tmp_path / "stats.json").read_text())
    assert xr.open_zarr(tmp_path / "by_command.zarr")["array"].values.tolist() == ["t2m", "z"]
    assert out.count("t2m") == 1 and out.count("level=850") == 1
    assert out.endswith(f"wrote {tmp_path}/by_command.zarr\n")
    agrees(first[0]["arrays"]["t2m"], reference(values["t2m"]))
    differences = values["z"].astype("f8")[6:] - values["z"].astype("f8")[:-6]
    for i in range(3):
        agrees(first[0]["arrays"]["z"]["tendencies"]["6"]["by_channel"], reference(differences[:, i]), i)


def test_command_line(store, tmp_path, capsys, monkeypatch):
    path, _ = store
    file = tmp_path / "stats.json"
    words = ["statistics", str(path), "--arrays", "t2m", "z", "--offsets", "0", "6", "--channels", "level", "--output", str(file)]
    monkeypatch.setattr(sys, "argv", ["dali_zarr", *words, "--json"])
    assert main() == 0
    out, err = capsys.readouterr()
    assert "1 of 1 batches" in err or "1/1" in err
    expected = dali_zarr.statistics(path, arrays=["t2m", "z"], offsets=[0, 6], channels=["level"])
    assert json.loads(out) == json.loads(file.read_text()) == expected
    monkeypatch.setattr(sys, "argv", ["dali_zarr", *words, "--ragged", "t2m", "--quiet"])
    assert main() == 1
    assert "statistics: ragged: statistics of ragged rows are" in capsys.readouterr().err


def test_a_file_is_what_its_numbers_are(store, stats_file):
    """In the order of the reader's channels, whichever levels it selects."""
    path, values = store
    entries = entries_of(store)
    by = entries["z"]["by_channel"]
    numbers = {
        key: [by[key][2], by[key][0], entries["lsm"][key], entries["t2m"][key]] for key in ("mean", "stddev")
    }
    chosen: dict[str, Any] = {"arrays": ["z", "lsm", "t2m"], "pick": {"level": [2, 0]}}
    by_file = normalised(path, mean=str(stats_file), stddev=stats_file, **chosen)
    assert by_file.tobytes() == normalised(path, **numbers, **chosen).tobytes()
    by_label = normalised(path, mean=str(stats_file), stddev=stats_file, arrays=chosen["arrays"], sel={"level": [500, 1000]})
    assert by_label.tobytes() == by_file.tobytes()


def test_levels_are_found_by_label(store, stats_file, tmp_path):
    """Also in a store that has them in another order."""
    path, _ = store
    other = tmp_path / "other"
    for name, values, dims in (
        ("z", np.ones((4, 2, 6, 7), "f4"), DIMS), ("t2m", np.ones((4, 6, 7), "f4"), (DIMS[0], *DIMS[2:])),
        ("level", np.array([500, 1000], "i4"), ("level",)),
    ):
        write_array(other, name, values, dims=dims)
    by = entries_of(store)["z"]["by_channel"]["mean"]
    found = normalised(other, arrays=["z", "t2m"], mean=stats_file)[:2, 0, 0]
    assert np.array_equal(found, np.float32([1 - by[2], 1 - by[0]]))


def test_arrays_that_are_not_stacked_have_one_number(store, stats_file):
    """Of the selected elements together: here of two levels, or of one."""
    path, values = store
    selections: list[tuple[dict[str, Any], list[int]]] = [({"level": [1000, 500]}, [0, 2]), ({"level": 500}, [2])]
    for sel, levels in selections:
        sample = to_numpy(build(path=path, arrays=["z"], sel=sel, mean=stats_file, stddev=stats_file, dtype="float64").run()[0])[0]
        expected = reference(values["z"][:, levels])
        wanted = (values["z"][0, levels].astype("f8").reshape(sample.shape) - float(expected["mean"])) / float(expected["stddev"])
        np.testing.assert_allclose(sample, wanted, rtol=1e-9)


def test_one_number_for_channels_that_differ_is_warned_of(tmp_path, caplog):
    """Levels whose means are far apart; not those that vary more than that, nor where each has its own number."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((4, 2, 6, 7)).astype("f4")
    apart = noise + np.float32([100, 500]).reshape(1, 2, 1, 1)
    for name, values in (("alike", noise), ("apart", apart)):
        write_array(tmp_path / "s", name, values, dims=DIMS)
    file = tmp_path / "stats.json"
    dali_zarr.statistics(tmp_path / "s", arrays=["alike", "apart"], output=file)

    def warned(**arguments):
        caplog.clear()
        build(path=tmp_path / "s", mean=file, stddev=file, **arguments)
        return [record.getMessage() for record in caplog.records if "one mean and one stddev" in record.getMessage()]

    (message,) = warned(arrays=["alike", "apart"])
    assert message.startswith("array 'apart': its 2 channels")
    assert message.endswith("channels={'apart': 'level'} gives each its own")
    formats._warn_once.cache_clear()
    for given in ({"channels": {"apart": "level"}}, {"channels": "level", "stack_arrays": True}):
        assert not warned(arrays=["alike", "apart"], **given)
    assert not warned(arrays=["apart"], isel={"level": [1]})


def test_missing_numbers(store, stats_file, tmp_path):
    path, _ = store
    (tmp_path / "other.json").write_text("[1, 2]")
    few = tmp_path / "few.json"
    dali_zarr.statistics(path, arrays=["z"], sel={"level": [1000, 850]}, output=few)
    pooled = tmp_path / "pooled.json"
    dali_zarr.statistics(path, arrays=["z", "t2m"], channels=[], output=pooled)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"arrays": ["packed"], "mean": stats_file}, "mean: file .*expected statistics of array 'packed', but found the arrays"),
        ({"arrays": ["z"], "mean": few}, "array 'z': expected statistics of level 500, but found those of 1000, 850"),
        ({"arrays": ["z"], "stddev": tmp_path / "none.json"}, "stddev: expected numbers or a file of statistics, but .*none.json"),
        ({"arrays": ["z"], "stddev": tmp_path / "other.json"}, "expected JSON that dali_zarr.statistics wrote"),
        ({"arrays": ["z", "t2m"], "stack_arrays": True, "mean": pooled}, "'z': expected statistics for each element of 'level'"),
    ]
    for arguments, message in cases:
        with pytest.raises(ValueError, match=message):
            dali_zarr.explain(path=path, **arguments)


def test_refused_arguments(store):
    path, _ = store
    with pytest.raises(ValueError, match="weights: expected 'cos_latitude' or None, but found 'area'"):
        dali_zarr.statistics(path, arrays=["z"], weights="area")
    with pytest.raises(ValueError, match="channels: expected dimensions of .*, but found 'levels'"):
        dali_zarr.statistics(path, arrays=["z"], channels="levels")
    with pytest.raises(FileNotFoundError, match="output: expected an existing folder, but found none at"):
        dali_zarr.statistics(path, arrays=["z"], output=path / "none" / "stats.json")


def test_infinite_values(tmp_path):
    """They have no finite mean: null, which readers refuse."""
    values = np.random.default_rng(0).random((4, 3, 2)).astype("f4")
    values[2, 1, 1] = np.inf
    write_array(tmp_path, "a", values, dims=("time", "y", "x"))
    entry = dali_zarr.statistics(tmp_path, output=tmp_path / "stats.json")["arrays"]["a"]
    assert (entry["mean"], entry["stddev"], entry["max"]) == (None, None, None) and entry["min"] == values.min()


def test_progress(store, capsys):
    dali_zarr.statistics(store[0], arrays=["z"])
    assert capsys.readouterr().err == ""
    dali_zarr.statistics(store[0], arrays=["z"], progress=True, batch_size=5)
    shown = capsys.readouterr().err
    assert "5 of 5 batches" in shown or "5/5" in shown


def test_the_former_name_of_counters():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert dali_zarr.stats() == dali_zarr.counters()
    assert [(w.category, str(w.message)) for w in caught] == [
        (DeprecationWarning, "dali_zarr.stats is called dali_zarr.counters now")
    ]

"""Arrays with stores of their own on the command line: ``--arrays image=./a.zarr/0 label=./b.zarr/labels/0``."""

from __future__ import annotations

import functools
import json

import dali_zarr
import numpy as np
import pytest
from support.command_line import command
from support.stores import Layout, write_array

IMAGE = np.random.default_rng(3).random((12, 5, 6), "float32")
LABEL = np.arange(24, dtype="int32").reshape(12, 2)
ARRAYS = {"image": "./a.zarr/0", "label": "./b.zarr/labels/0"}
WORDS = ["--arrays", "image=./a.zarr/0", "label=./b.zarr/labels/0"]


@pytest.fixture
def run(monkeypatch, capsys):
    return functools.partial(command, monkeypatch, capsys)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two stores in the working directory, with times beside one of them."""
    write_array(tmp_path / "a.zarr", "0", IMAGE, codec="gzip", layout=Layout((5, 5, 6)), dims=("t", "y", "x"))
    write_array(tmp_path / "a.zarr", "t", np.arange(12) * 10, dims=("t",))
    write_array(tmp_path / "b.zarr", "labels/0", LABEL, layout=Layout((4, 2)), zarr_format=2)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def absolute(folder):
    """The locations as readers hold them."""
    return [str(folder / location) for location in ARRAYS.values()]


def test_explain(folder, run):
    status, out, err = run("explain", *WORDS, "--json", "--isel", "t=2..8", "--offsets", 0, 1)
    assert (status, err) == (0, "")
    assert out == dali_zarr.explain(arrays=ARRAYS, json=True, isel={"t": slice(2, 8)}, offsets=[0, 1]) + "\n"
    assert [output["name"] for output in json.loads(out)["outputs"]] == ["image", "label", "image", "label"]
    # As a list, and beside a store.
    status, out, _ = run("explain", "--arrays", *ARRAYS.values(), "--json")
    assert status == 0 and out == dali_zarr.explain(arrays=list(ARRAYS.values()), json=True) + "\n"
    status, out, _ = run("explain", "a.zarr", "--arrays", "image=0", "label=./b.zarr/labels/0", "--json")
    assert status == 0 and json.loads(out)["samples"] == 12


def test_info(folder, run):
    status, out, _ = run("info", *WORDS, "--json")
    (found,) = json.loads(out)
    assert status == 0 and found["path"] is None
    assert [(one["name"], one["dims"], one["shape"], one["files"]) for one in found["arrays"]] == [
        ("./a.zarr/0", ["t", "y", "x"], [12, 5, 6], 3), ("./b.zarr/labels/0", ["dim_0", "dim_1"], [12, 2], 3),
    ]
    assert [one["packing"] for one in found["arrays"]] == [{}, {}]
    assert found["suggested"].startswith(f"dali_zarr.torch.Loader(arrays={ARRAYS!r}, batch_size=8")
    assert found["explained"]["samples"] == 12
    _, text, _ = run("info", *WORDS)
    assert text.startswith("stores of their own: 2 arrays") and "./b.zarr/labels/0 (dim_0, dim_1), int32" in text
    # Beside a store, one that can't be read together with the others.
    write_array(folder / "c.zarr", "0", np.zeros(11, "int32"))
    status, out, _ = run("info", "a.zarr", "--arrays", "0", "./c.zarr/0", "--json")
    (found,) = json.loads(out)
    assert status == 0 and [one["shape"] for one in found["arrays"]] == [[12, 5, 6], [11]]
    assert found["suggested"].startswith("dali_zarr.torch.Loader('a.zarr', arrays=['0']")


def test_check(folder, run):
    status, out, _ = run("check", *WORDS, "--quiet", "--json")
    found = json.loads(out)
    assert status == 0 and [store["path"] for store in found["stores"]] == [None]
    assert [(one["name"], one["chunks"]) for one in found["stores"][0]["arrays"]] == [("./a.zarr/0", 3), ("./b.zarr/labels/0", 3)]
    file = folder / "a.zarr/0/c/1/0/0"
    file.write_bytes(file.read_bytes()[:-9])
    status, out, _ = run("check", *WORDS, "--quiet")
    assert status == 1 and "arrays with stores of their own" in out and "./a.zarr/0: 1 of 3 chunks can't be read" in out
    # Only what is selected is decoded, by labels beside one of both too.
    status, out, _ = run("check", *WORDS[:2], "--sel", "t=0..40", "--quiet")
    assert status == 0 and "./a.zarr/0: 1 chunk, sound" in out
    status, out, _ = run("check", "a.zarr", "--arrays", "0", "./b.zarr/labels/0", "--quiet", "--json")
    assert status == 1 and [one["sound"] for one in json.loads(out)["stores"][0]["arrays"]] == [False, True]


def test_statistics(folder, run):
    status, out, _ = run("statistics", *WORDS, "--output", "stats.json", "--json", "--quiet")
    found = json.loads(out)
    assert status == 0 and found["path"] == absolute(folder) and list(found["arrays"]) == ["image", "label"]
    for name, values in (("image", IMAGE), ("label", LABEL)):
        assert np.isclose(found["arrays"][name]["mean"], np.longdouble(values).mean(), rtol=1e-12)
    # Read back by output: the stores may be moved.
    moved = {"label": str(folder / "b.zarr" / "labels" / "0"), "image": str(folder / "a.zarr" / "0")}
    told = dali_zarr.explain(arrays=moved, mean="stats.json", stddev="stats.json")
    assert [output["dtype"] for output in told["outputs"]] == ["float32", "float32"]
    with pytest.raises(ValueError, match="expected statistics of array 'other', but found the arrays 'image', 'label'"):
        dali_zarr.explain(arrays={"other": "./a.zarr/0"}, mean="stats.json")
    beside = dali_zarr.statistics("a.zarr", arrays={"image": "0", "label": moved["label"]}, mask_and_scale={"image": False})
    assert beside["path"] == [str(folder / "a.zarr"), moved["label"]] and list(beside["arrays"]) == ["0", "label"]
    assert beside["arrays"]["0"] == found["arrays"]["image"]


def test_bench(folder, run):
    status, out, _ = run("bench", *WORDS, "--seconds", 0.2, "--batch_size", 4, "--quiet", "--json")
    found = json.loads(out)
    assert status == 0 and found["path"] == absolute(folder) and found["batches"] > 0


def test_what_is_refused(folder, run):
    for status, words, given in (
        (2, "expected a store before the options, or --arrays OUTPUT=LOCATION", ["explain", "--arrays", "image=0"]),
        (2, "expected a store before the options", ["info", "--json"]),
        (2, "expected OUTPUT=ARRAY for each, since some have outputs, but found './b.zarr/labels/0'",
         ["explain", "--arrays", "image=./a.zarr/0", "./b.zarr/labels/0"]),
        (2, "another output for each", ["explain", "--arrays", "x=./a.zarr/0", "x=./b.zarr/labels/0"]),
        (1, "expected one store at most beside arrays that have stores", ["info", "a.zarr", "b.zarr", *WORDS]),
        (1, "path: expected none", ["explain", "a.zarr", *WORDS]), (1, "nowhere", ["explain", "--arrays", "./nowhere.zarr/0"]),
    ):
        found, _, err = run(*given)
        assert found == status and words in " ".join(err.split()), (given, err)


def test_an_array_whose_name_has_an_equals_sign(tmp_path, run):
    """What stands before the sign is its output, unless it is a location."""
    for name in ("year=2020", "0"):
        write_array(tmp_path / "a.zarr", name, LABEL)
    status, out, _ = run("explain", tmp_path / "a.zarr", "--arrays", "label=year=2020", "--json")
    assert status == 0 and json.loads(out)["arrays"][0]["name"] == "year=2020"
    status, out, _ = run("explain", "--arrays", tmp_path / "a.zarr" / "year=2020", "--json")
    assert status == 0 and json.loads(out)["samples"] == 12

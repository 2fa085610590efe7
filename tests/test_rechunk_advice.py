"""``rechunk --for``: what is chosen is better for the reader by what ``explain`` counts, and the reasons are so."""

from __future__ import annotations

import functools
import json
import re

import dali_zarr
import numpy as np
import pytest
import zarr
from dali_zarr._rechunk import advise
from support.command_line import command
from support.stores import Layout, write_array

pytest.importorskip("dask")
pytestmark = pytest.mark.filterwarnings("ignore")

DIMS = ("time", "lat", "lon")


@pytest.fixture
def run(monkeypatch, capsys):
    return functools.partial(command, monkeypatch, capsys, "rechunk")


def decoded(path, **arguments):
    """Decoded bytes for each that is delivered."""
    (array,) = dali_zarr.explain(path=str(path), arrays=["a"], **arguments)["arrays"]
    return array["chunk_bytes_read_per_sample"] / array["bytes_per_sample"]


CASES = {
    # Single hours out of chunks of ten, in an order that no memory helps.
    "offsets=[0, 6], batch_size=2, random_shuffle=True, host_memory_limit=20000000": (
        {"offsets": [0, 6], "batch_size": 2, "random_shuffle": True, "host_memory_limit": 20000000}, (1, 181, 360),
    ),
    # With many threads memory holds fewer chunks of shards.
    "offsets=[0, 6], batch_size=2, random_shuffle=True, host_memory_limit=20000000, decode_threads=16": (
        {"offsets": [0, 6], "batch_size": 2, "random_shuffle": True, "host_memory_limit": 20000000, "decode_threads": 16},
        (1, 181, 360),
    ),
    "window=4, batch_size=2, random_shuffle=true, host_memory_limit=20000000": (
        {"dims": ["time"], "window": [4], "batch_size": 2, "random_shuffle": True, "host_memory_limit": 20000000}, (4, 181, 360),
    ),
    'window={time: 1, lat: 32, lon: 32}, random_crop=[lat, lon], batch_size=4': (
        {"window": {"time": 1, "lat": 32, "lon": 32}, "random_crop": ["lat", "lon"], "batch_size": 4}, (1, 32, 32),
    ),
}


@pytest.mark.parametrize("text", CASES)
def test_chunks_for_an_access_pattern(tmp_path, run, text):
    arguments, chunks = CASES[text]
    values = np.zeros((120, 181, 360), "f4")
    write_array(tmp_path / "s", "a", values, layout=Layout((10, 181, 360)), dims=DIMS)
    status, out, err = run(tmp_path / "s", tmp_path / "t", "--for", text, "--json", "--quiet")
    assert status == 0, err
    report = json.loads(out)
    array = zarr.open_group(str(tmp_path / "t"))["a"]
    assert array.chunks == chunks
    before, after = (decoded(tmp_path / path, **arguments) for path in "st")
    assert after < before / 2
    pattern = r"and ([\d.]+) bytes are decoded for each byte .* source's chunks .*, and ([\d.]+) bytes are decoded"
    told = re.search(pattern, report["why"][0])
    assert told and float(told[1]) == pytest.approx(after, abs=0.01) and float(told[2]) == pytest.approx(before, abs=0.01)
    # Small chunks are in shards, of which there are few.
    assert array.shards is not None and np.prod(array.shards) * 4 <= 1 << 28
    assert any(line.startswith("shards ") for line in report["why"])
    assert array.compressors[0].to_dict()["configuration"]["cname"] == "lz4"


def test_what_is_given_stays(tmp_path, run):
    """--for chooses what other options leave open."""
    write_array(tmp_path / "s", "a", np.zeros((40, 18, 36), "f4"), layout=Layout((10, 18, 36)), dims=DIMS)
    words = (tmp_path / "s", tmp_path / "t", "--for", "window=1", "--chunks", "time=3", "--codec", "zstd", "--format", "2")
    status, out, err = run(*words, "--json", "--quiet")
    assert status == 0 and json.loads(out)["why"] == [], err
    array = zarr.open_group(str(tmp_path / "t"))["a"]
    assert array.chunks == (3, 18, 36) and array.compressors[0].codec_id == "zstd"


def test_large_fields_are_split_and_need_no_shards(tmp_path, run, monkeypatch):
    """No data are read or written for it: the arrays are 80 GB."""
    group = zarr.open_group(str(tmp_path / "s"))
    group.create_array("a", shape=(1000, 4000, 5000), chunks=(10, 4000, 5000), dtype="f4", dimension_names=DIMS)
    from dali_zarr._rechunk import options, source

    asked = options.parsed({})
    found = advise.advise(source.read(str(tmp_path / "s"), asked), asked, {"batch_size": 4, "device": "gpu"})
    assert found.options.chunks["time"] == 1
    extents = [found.options.chunks.get(dim, n) for dim, n in zip(DIMS, (1000, 4000, 5000))]
    assert 4 << 20 <= np.prod(extents) * 4 <= 16 << 20
    assert "on a GPU" in found.why[2]


def test_dimensions_without_names_are_the_readers(tmp_path, run):
    group = zarr.open_group(str(tmp_path / "s"), mode="w")
    values = np.arange(64 * 40 * 40, dtype="i4").reshape(64, 40, 40)
    group.create_array("a", data=values, chunks=(64, 40, 40))
    status, out, err = run(tmp_path / "s", tmp_path / "t", "--for", "window={dim_0: 2}, random_shuffle=True", "--quiet")
    assert status == 0, err
    target = zarr.open_array(str(tmp_path / "t" / "a"), mode="r")
    assert target.chunks != (64, 40, 40) and (target[:] == values).all()
    status, out, err = run(tmp_path / "s", tmp_path / "u", "--chunks", "dim_0=8", "--quiet")
    assert status == 0 and zarr.open_array(str(tmp_path / "u" / "a"), mode="r").chunks == (8, 40, 40), err


@pytest.mark.parametrize("text", [
    'arrays=["data/img", "data/action"], window={dim_0: 16}, step={dim_0: 1}',
    'arrays={image: "data/img", action: "data/action"}, window={image: {dim_0: 2}, action: {dim_0: 16}}, step={dim_0: 1}',
])
def test_episodes(tmp_path, run, text):
    """Ends of episodes count, with arrays in a list or by output."""
    group = zarr.open_group(str(tmp_path / "s"), mode="w")
    values = {"data/img": np.arange(200 * 300, dtype="i4").reshape(200, 300), "data/action": np.arange(400.0).reshape(200, 2)}
    for name, data in values.items():
        group.create_array(name, data=data, chunks=(200, *data.shape[1:]))
    group.create_array("meta/episode_ends", data=np.array([80, 150, 200]))
    more = 'breaks="meta/episode_ends", pad_before=1, pad_after=7, out_of_bounds_policy="edge", random_shuffle=True'
    status, out, err = run(tmp_path / "s", tmp_path / "t", "--for", f"{text}, {more}", "--quiet")
    assert status == 0, err
    for name, data in values.items():
        assert (zarr.open_array(str(tmp_path / "t" / name), mode="r")[:] == data).all()


@pytest.mark.parametrize("text, expected", {
    "window=2": {"window": 2}, "dims=time, window=[2]": {"dims": "time", "window": [2]},
    'window={"time": -1, lat: 4}, offsets=(0, 6)': {"window": {"time": -1, "lat": 4}, "offsets": [0, 6]},
    "random_shuffle=true, stack_arrays=False, device='gpu'": {"random_shuffle": True, "stack_arrays": False, "device": "gpu"},
}.items())
def test_the_text_of_for(text, expected):
    assert advise.arguments(text) == expected


@pytest.mark.parametrize("text", ["", "2", "window", "window=f(2)", "window=__import__('os')", "**a", "sel={}", "window=2)("])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="^--for: "):
        advise.arguments(text)

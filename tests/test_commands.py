"""``info``, ``check`` and ``bench`` of the command line: what they tell is so, of local and remote stores, and of damaged ones."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import dali_zarr
import numpy as np
import pytest
import zarr
from dali_zarr._commands import bench, check
from support.command_line import command
from support.pipelines import why_no_gpu
from support.stores import Layout, chunk_files, write_array

DIMS = ("time", "lat", "lon")
SHAPE = (48, 8, 16)


@pytest.fixture
def run(monkeypatch, capsys):
    return functools.partial(command, monkeypatch, capsys)


def write(path, values):
    """Every kind of array: shards, packed values, coordinates, scalars, groups, none at all, and some that readers don't take."""
    write_array(path, "a", values, codec="gzip", layout=Layout((4, 8, 16)), dims=DIMS)
    write_array(path, "deep/b", values, codec="gzip", layout=Layout((4, 4, 16), shards=(8, 8, 16)), dims=DIMS)
    packing = {"scale_factor": 0.01, "add_offset": 3.0, "_FillValue": -999}
    packed = (values * 100).astype("int16")
    write_array(path, "packed", packed, codec="zstd", layout=Layout((5, 3, 16)), dims=DIMS, attributes=packing)
    write_array(path, "time", np.arange(48), dims=("time",), attributes={"units": "hours since 2020-01-01"})
    write_array(path, "scalar", np.float32(3))
    group = zarr.open_group(path)
    group.create_array("text", shape=(5,), dtype="str")
    group.create_array("empty", shape=(0, 3), dtype="f4")
    return path


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)


def by_name(store):
    return {array["name"]: array for array in store["arrays"]}


def test_check_names_every_damaged_chunk(tmp_path, values, run):
    """Of all arrays, whole and within a shard, the last ones too; and nothing else."""
    path = write(tmp_path / "s", values)
    status, out, err = run("check", path, "--json", "--quiet")
    assert (status, err) == (0, "")
    arrays = by_name(json.loads(out)["stores"][0])
    assert {name: array["chunks"] for name, array in arrays.items()} == {
        "a": 12, "deep/b": 24, "packed": 30, "time": 1, "scalar": 1, "text": 0, "empty": 0,
    }
    assert all(array["sound"] and not array["damaged"] for array in arrays.values())
    assert "found \"string\"" in arrays["text"]["refused"]
    for chunk in ("a/c/0/0/0", "a/c/5/0/0", "a/c/11/0/0"):
        damage(path / chunk)
    # An index is at the end of its shard: four inner chunks that can't be found.
    shard = path / "deep/b/c/2/0/0"
    shard.write_bytes(shard.read_bytes()[:-4] + b"\0\0\0\0")
    (path / "packed/c/9/2/0").write_bytes(b"")
    status, out, _ = run("check", path, "--json", "--quiet")
    found = json.loads(out)
    assert status == 1 and found["sound"] is False
    arrays = by_name(found["stores"][0])
    assert [(one["chunk"], one["count"], one["at"]) for one in arrays["a"]["damaged"]] == [
        ("a/c/0/0/0", 1, [[0, 0, 0]]), ("a/c/5/0/0", 1, [[5, 0, 0]]), ("a/c/11/0/0", 1, [[11, 0, 0]]),
    ]
    (one,) = arrays["deep/b"]["damaged"]
    assert (one["count"], one["at"]) == (4, [[4, 0, 0], [4, 1, 0], [5, 0, 0], [5, 1, 0]])
    assert "deep/b/c/2/0/0" in one["message"]
    assert [one["at"] for one in arrays["packed"]["damaged"]] == [[[9, 2, 0]]]
    assert all(arrays[name]["sound"] for name in ("time", "scalar", "text", "empty"))
    status, out, err = run("check", path)
    assert status == 1 and "a: 3 of 12 chunks can't be read" in out and "chunk a/c/5/0/0: expected gzip data" in out
    assert "check" in err and "Traceback" not in err


def test_check_of_a_part_and_of_several_stores(tmp_path, values, run):
    """With a selection the chunks between its ends; each store on its own."""
    first, second = write(tmp_path / "s", values), write(tmp_path / "t", values)
    damage(first / "a/c/5/0/0")
    words = ["--arrays", "a", "packed", "--json", "--quiet"]
    status, out, _ = run("check", first, second, *words, "--sel", "time=2020-01-01T05..2020-01-01T19", "--isel", "lat=0,1")
    assert status == 0
    for store in json.loads(out)["stores"]:
        # Hours 5 to 19 are in chunks of 4 hours, 1 to 4, and of 5 hours, 1 to 3; latitudes 0 and 1 in the first of each.
        assert {name: array["chunks"] for name, array in by_name(store).items()} == {"a": 4, "packed": 3}
    status, out, _ = run("check", second, first, *words, "--isel", "time=20..22")
    assert status == 1
    sound, damaged = (by_name(store)["a"] for store in json.loads(out)["stores"])
    assert sound["sound"] and damaged["damaged"][0]["at"] == [[5, 0, 0]]
    for words, message in (
        (["--sel", "tim=3"], 'no array has a dimension "tim"; the dimensions are time, lat, lon; did you mean time?'),
        (["--isel", "time=48..50"], "isel: 'time': expected at least one element"),
        (["--sel", "time=2021"], "isn't among the coordinates"),
    ):
        status, _, err = run("check", first, "--arrays", "a", *words)
        assert status == 1 and message in err
    status, _, err = run("check", first, "--dtype", "float32")
    assert status == 2 and "--dtype: this command has no such argument; this command takes --arrays, " in err


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_check_of_an_array_without_a_group(tmp_path, values, run, zarr_format):
    """The store is the array itself; a name is a number; there is one chunk more than the shape fills."""
    zarr.create_array(tmp_path / "x", data=values, chunks=(7, 8, 16), zarr_format=zarr_format)
    write_array(tmp_path / "y", "a", values, layout=Layout((7, 3, 16)), dims=("1", "0", "x"))
    status, out, _ = run("check", tmp_path / "x", tmp_path / "y", "--json", "--quiet")
    x, y = (store["arrays"] for store in json.loads(out)["stores"])
    assert (status, x[0]["chunks"], y[0]["chunks"]) == (0, 7, 21)
    for file in chunk_files(tmp_path / "y", "a"):
        file.write_bytes(b"none")
    status, out, _ = run("check", tmp_path / "y", "--json", "--quiet")
    (array,) = json.loads(out)["stores"][0]["arrays"]
    assert status == 1
    assert [one["at"][0] for one in array["damaged"]] == [[i, j, 0] for i in range(7) for j in range(3)]


def test_a_report_has_a_limit(tmp_path, run, monkeypatch):
    """Of a store that is damaged as a whole all chunks are counted, and not all are named."""
    monkeypatch.setattr(check, "_MESSAGES", 5)
    write_array(tmp_path, "a", np.zeros((20, 3)), layout=Layout((1, 3)), codec="gzip")
    for file in chunk_files(tmp_path, "a"):
        damage(file)
    status, out, _ = run("check", tmp_path, "--json", "--quiet")
    (array,) = json.loads(out)["stores"][0]["arrays"]
    assert (status, array["unreadable"], len(array["damaged"])) == (1, 20, 5)
    assert "and 15 chunks more, with other messages" in run("check", tmp_path, "--quiet")[1]


def test_check_of_damaged_metadata(tmp_path, values, run):
    """An array that can't be opened is told as damaged, and the others are checked."""
    path = write(tmp_path / "s", values)
    document = path / "packed/zarr.json"
    document.write_text(document.read_text().replace('"bytes"', '"bites"'))
    status, out, _ = run("check", path, "--json", "--quiet")
    arrays = by_name(json.loads(out)["stores"][0])
    assert status == 1 and "bites" in arrays["packed"]["refused"] and not arrays["packed"]["sound"]
    assert arrays["a"]["chunks"] == 12
    shutil.rmtree(path)
    status, _, err = run("check", path)
    assert status == 1 and err.startswith("python -m dali_zarr check: zarr_reader: store ")


def test_check_stays_within_its_memory(tmp_path, run):
    """A store of 256 MB is checked with 16 MB, which hold a chunk or two at each stage."""
    group = zarr.create_group(tmp_path / "s")
    for name in ("a", "b"):
        array = group.create_array(name, shape=(64, 512, 1024), chunks=(1, 512, 1024), dtype="float32")
        array[:] = 1
    for limit, status in (("16MB", 0), ("2MB", 1)):
        found, out, err = run("check", tmp_path / "s", "--json", "--quiet", "--host_memory_limit", limit)
        assert found == status, err
    assert "host_memory_limit: expected at least" in err or "host memory: expected at least" in err


def test_many_arrays(tmp_path, run):
    """More than the engine's message lists."""
    group = zarr.create_group(tmp_path / "s")
    for number in range(40):
        group.create_array(f"v{number:02}", data=np.arange(number + 1))
    status, out, _ = run("check", tmp_path / "s", "--json", "--quiet")
    assert status == 0
    assert [(a["name"], a["chunks"]) for a in json.loads(out)["stores"][0]["arrays"]] == [(f"v{n:02}", 1) for n in range(40)]


def test_info_tells_what_is_stored(tmp_path, values, run):
    path = write(tmp_path / "s", values)
    (path / "a/c/3/0/0").unlink()
    status, out, err = run("info", path, "--json")
    assert (status, err) == (0, "")
    (found,) = json.loads(out)
    arrays = by_name(found)
    a, b, packed = arrays["a"], arrays["deep/b"], arrays["packed"]
    assert (a["dims"], a["shape"], a["chunks"], a["shards"]) == (list(DIMS), list(SHAPE), [4, 8, 16], None)
    assert (a["codecs"], a["gpu"], a["chunk_bytes"], a["decoded_bytes"]) == ("gzip", True, 4 * 512, 48 * 512)
    assert (a["files"], a["files_if_complete"]) == (11, 12)
    assert a["stored_bytes"] == sum(file.stat().st_size for file in chunk_files(path, "a"))
    assert (b["chunks"], b["shards"], b["files"]) == ([4, 4, 16], [8, 8, 16], 6)
    assert packed["packing"] == {"scale_factor": 0.01, "add_offset": 3.0, "_FillValue": -999}
    assert "refused" in arrays["text"] and "refused" in arrays["empty"]
    status, out, _ = run("info", path)
    for line in ("s: 7 arrays, 60.4 KiB decoded", "48x8x16 in chunks of 4x4x16 (1.0 KiB) in shards of 8x8x16, gzip",
                 "11 of 12 chunks are stored, the others are the fill value", "packed: scale_factor 0.01, add_offset 3.0"):
        assert line in out


def test_info_counts_files_of_chunks_alone(tmp_path, run):
    """Not those that file systems, programs and interrupted writers leave beside them."""
    array = zarr.create_array(tmp_path / "s", shape=(10,), chunks=(3,), dtype="f8", compressors=None)
    array[:6] = 1.0
    for name in (".DS_Store", "c/.nfs0001", "c/README", "c/3.0a1b.partial"):
        (tmp_path / "s" / name).write_bytes(b"x" * 1000)
    _, out, _ = run("info", tmp_path / "s")
    assert "80 bytes decoded, 48 bytes stored; 2 of 4 chunks are stored, the others are the fill value" in out
    assert "for a GPU: uncompressed: its chunks are copied to the GPU as they are" in out


def test_info_counts_files_of_any_keys(tmp_path, run):
    for number, (zarr_format, keys) in enumerate([
        (2, {"name": "v2", "separator": "."}), (2, {"name": "v2", "separator": "/"}), (3, {"name": "default", "separator": "/"}),
        (3, {"name": "default", "separator": "."}), (3, {"name": "v2", "separator": "."}),
    ]):
        path = tmp_path / str(number)
        how = {"zarr_format": zarr_format, "chunk_key_encoding": keys, "compressors": None}
        zarr.create_array(path, name="a", shape=(4, 6), chunks=(2, 2), dtype="u1", **how)[:] = 1
        zarr.create_array(path, name="scalar", shape=(), dtype="u1", **how)[...] = 1
        _, out, _ = run("info", path, "--json")
        arrays = by_name(json.loads(out)[0])
        assert {name: (one["files"], one["stored_bytes"]) for name, one in arrays.items()} == {"a": (6, 24), "scalar": (1, 1)}, keys


def test_the_reader_of_the_output_may_go(tmp_path):
    """`dali-zarr info a.zarr | head -1` says nothing of a broken pipe."""
    write_array(tmp_path, "a", np.zeros(3))
    for buffered in ("", "1"):
        words = [sys.executable, "-m", "dali_zarr", "info", str(tmp_path)]
        environment = os.environ | {"PYTHONUNBUFFERED": buffered}
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
            assert process.stdout is not None and process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == b""
        assert process.returncode == 128 + signal.SIGPIPE


def test_arrays_that_are_not_there(tmp_path, values, run):
    path = write(tmp_path / "s", values)
    for subcommand in ("info", "check"):
        status, out, err = run(subcommand, path, "--arrays", "a", "bb")
        assert (status, out) == (1, "") and "expected an array 'bb', but found the arrays 'a', 'deep/b'" in err


def test_help_says_what_a_command_takes(run, monkeypatch):
    """In the width of the terminal; the reader's arguments that a command takes are named or referred to."""
    for width in (80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        for name, told in {
            "rechunk": ["SOURCE ", "TARGET ", "--chunks DIM=N", "--memory SIZE"], "bench": ["--seconds N", "--device_id"],
            "statistics": ["--output FILE"], "explain": ["--batch_size N"], "info": ["--arrays"], "check": ["--decode_threads"],
        }.items():
            status, out, err = run(name, "--help")
            assert (status, err) == (0, "") and all(word in out for word in told), name
            assert max(map(len, out.splitlines())) <= width, name
    assert "none where" not in run("rechunk", "--help")[1]


def test_what_is_printed_fits_the_terminal(tmp_path, values, run, monkeypatch):
    """Lines of 80 and of 200 columns; a count of one is singular; a limit that is shown is enough."""
    path = write(tmp_path / "s", values)
    monkeypatch.chdir(tmp_path)
    longest = {}
    for width in (80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        shown = run("info", "s")[1] + run("explain", "s", "--arrays", "a", "--device", "gpu")[1]
        longest[width] = max(len(line) for line in shown.splitlines() if str(tmp_path) not in line)
        assert longest[width] <= width and "1 chunks" not in shown and "1 batches" not in shown
    assert longest[200] > 80
    shown = run("explain", path, "--arrays", "a")[1]
    least = re.search(r"host memory: .*; at least ([\d.]+ [KMG]iB)", shown)[1].replace(" ", "")
    assert "refused" not in run("explain", path, "--arrays", "a", "--host_memory_limit", least)[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["stats"], "there is no command 'stats'; did you mean statistics?"),
        (["explain", "s"], "; give arrays, such as arrays=['a', 'deep/b', 'packed'] (in a command: --arrays a deep/b packed)"),
        (["explain", "s", "--arrays", "a", "--storage_options", "anon=true"], "These stores are local and take none"),
        (["explain", "s3://a/b", "--arrays", "a", "--storage_options", "anon=true"], "write {'skip_signature': True}"),
        (["explain", "s", "--arrays", "a", "--window", "time=4,lat=64"], 'along "lat" a sample spans 64 elements'),
    ],
)
def test_messages_say_what_to_write(tmp_path, values, run, monkeypatch, words, message):
    write(tmp_path / "s", values)
    monkeypatch.chdir(tmp_path)
    status, out, err = run(*words)
    assert status and not out and message in err and "Traceback" not in err


def test_lists_may_have_commas(tmp_path, values, run):
    path = write(tmp_path / "s", values)
    words = ("--window", "time=4,lat=2", "--json")
    one, other = (json.loads(run("explain", path, "--arrays", *names, *words)[1]) for names in (["a,packed"], ["a", "packed"]))
    assert one == other and one["outputs"][0]["shape"] == [4, 2, 16]


@pytest.mark.skipif(why_no_gpu() is None, reason="there is a GPU")
def test_without_a_gpu(tmp_path, values, run):
    """One sentence instead of DALI's assertion."""
    path = write(tmp_path / "s", values)
    for command_of_gpu in ("bench", "statistics"):
        status, out, err = run(command_of_gpu, path, "--arrays", "a", "--device", "gpu", "--quiet")
        assert (status, out) == (1, "") and "Assert" not in err
    if "isn't installed" in why_no_gpu():
        assert "device: this machine has no GPU, or no driver for it" in err
        with pytest.raises(RuntimeError, match='write device="cpu", and device_id=None of the pipeline'):
            dali_zarr.zarr_reader(path=path, arrays="a", device="gpu")


def test_too_little_memory_is_told_in_one_line(tmp_path, values, run):
    status, out, err = run("bench", write(tmp_path / "s", values), "--arrays", "a", "--host_memory_limit", "2KB", "--quiet")
    assert status == 1 and len(err.strip().splitlines()) == 1 and "host_memory_limit: expected at least" in err


def test_what_info_suggests_can_be_called(tmp_path, values, run):
    torch = pytest.importorskip("dali_zarr.torch")
    path = write(tmp_path / "s", values)
    _, out, _ = run("info", path, "--arrays", "a", "deep/b", "packed", "--isel", "time=0..10", "--json")
    (found,) = json.loads(out)
    assert found["explained"]["samples"] == 10
    import dali_zarr

    assert dali_zarr.torch is torch
    loader = eval(found["suggested"].replace("random_shuffle", "device='cpu', host_memory_limit='64MB', random_shuffle"))
    batch = next(iter(loader))
    assert {name: str(values.dtype) for name, values in batch.items()} == {
        "a": "torch.float32", "deep/b": "torch.float32", "packed": "torch.float64",
    }
    assert [one["dtype"] for one in found["explained"]["outputs"]] == ["float32", "float32", "float64"]


def test_remote_stores(tmp_path, values, run, s3, s3_options):
    """Of a bucket: everything but the sizes of what is stored."""
    import boto3

    path = write(tmp_path / "s", values)
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1")
    client.create_bucket(Bucket="commands")
    damage(path / "a/c/7/0/0")
    for file in path.rglob("*"):
        if file.is_file():
            client.put_object(Bucket="commands", Key=f"s/{file.relative_to(path)}", Body=file.read_bytes())
    options = [f"{name}={str(value).lower() if value is True else value}" for name, value in s3_options.items()]
    status, out, err = run("check", "s3://commands/s", "--json", "--quiet", "--storage_options", *options)
    assert status == 1, err
    arrays = by_name(json.loads(out)["stores"][0])
    assert arrays["a"]["damaged"][0]["chunk"] == "a/c/7/0/0" and arrays["deep/b"]["chunks"] == 24
    status, out, err = run("info", "s3://commands/s", "--json", "--storage_options", *options)
    arrays = by_name(json.loads(out)[0])
    assert status == 0 and arrays["a"]["codecs"] == "gzip" and arrays["a"]["stored_bytes"] is None, err


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (["--window", "lat=2", "lon=4"], {"window": {"lat": 2, "lon": 4}}),
        (["--window=lat=2", "--step", "lat=1", "--roi-start", "lat=-5"],
         {"window": {"lat": 2}, "step": {"lat": 1}, "roi_start": {"lat": -5}}),
        (["--window", "a=time=2,lat=4", "deep/b=time=3"], {"window": {"a": {"time": 2, "lat": 4}, "deep/b": {"time": 3}}}),
        (["--dims", "time", "lat", "--window", "a=2,4", "deep/b=3,4"],
         {"dims": ["time", "lat"], "window": {"a": [2, 4], "deep/b": [3, 4]}}),
        (["--mean", "a=3", "--stddev", "a=2.5"], {"mean": {"a": 3}, "stddev": {"a": 2.5}}),
        (["--isel", "lat=0,5", "--mean", "a=3,4", "--channels", "a=1"],
         {"isel": {"lat": [0, 5]}, "mean": {"a": [3, 4]}, "channels": {"a": 1}}),
        (["--mean", "3", "4", "--channels", "lon"], {"mean": [3, 4], "channels": "lon"}),
        (["--dtype", "a=float16", "deep/b=types.FLOAT64"], {"dtype": {"a": "float16", "deep/b": "float64"}}),
        (["--batch_size", "7", "--drop-last", "--window", "lat=1"], {"batch_size": 7, "drop_last": True, "window": {"lat": 1}}),
        (["--batch_size", "7", "--order", "pushed"], {"batch_size": 7, "order": "pushed"}),
        (["--mask_and_scale", "a=true"], {"mask_and_scale": {"a": True}}),
        (["--window", "lat=3", "--out_of_bounds_policy", "pad", "--fill_value", "a=nan"],
         {"window": {"lat": 3}, "out_of_bounds_policy": "pad", "fill_value": {"a": float("nan")}}),
    ],
    ids=str,
)
def test_values_by_name(tmp_path, values, run, words, arguments):
    """NAME=VALUE stands for a dictionary, by dimension or by output."""
    import dali_zarr

    store = str(write(tmp_path / "store.zarr", values))
    status, out, err = run("explain", store, "--json", "--arrays", "a", "deep/b", *words)
    assert (status, err) == (0, "")
    assert out == dali_zarr.explain(path=store, json=True, arrays=["a", "deep/b"], **arguments) + "\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--window", "lat=2", "3"], "--window: expected DIM=NUMBER"),
        (["--window", "lat=2", "lat=3"], "--window: expected DIM=NUMBER"),
        (["--window", "lat="], "--window: expected DIM=NUMBER"),
        (["--dtype", "=float32"], "--dtype: expected OUTPUT=VALUE"),
        (["--mean", "run=3/stats.json"], "run=3/stats.json"),
        (["--window", "lat=many"], "many"),
    ],
    ids=str,
)
def test_values_by_name_that_are_none(tmp_path, values, run, words, message):
    status, _, err = run("explain", str(write(tmp_path / "store.zarr", values)), "--arrays", "a", *words)
    assert status != 0 and message in err


def test_bench_measures(tmp_path, run):
    """Rates are those of the batches that came, and chunks that hold one sample are faster than those that hold twelve."""
    values = np.random.default_rng(0).standard_normal((144, 128, 256)).astype("float32")
    write_array(tmp_path, "large", values, layout=Layout((24, 128, 256)), dims=DIMS)
    write_array(tmp_path, "fields", values, layout=Layout((1, 128, 256)), dims=DIMS)
    words = ["--seconds", 1, "--batch_size", 4, "--random_shuffle", "--json", "--quiet", "--host_memory_limit", "12MB"]
    found = {}
    for name in ("large", "fields"):
        status, out, err = run("bench", tmp_path, "--arrays", name, *words)
        assert status == 0, err
        found[name] = json.loads(out)
        rate = found[name]["samples_per_second"]
        assert found[name]["delivered_bytes_per_second"] == pytest.approx(rate * 128 * 256 * 4)
        assert found[name]["batches"] * 4 == pytest.approx(rate * found[name]["seconds"])
        taken = found[name]["seconds"] + found[name]["opening_seconds"]
        # A batch that has begun is waited for, and a store that is open is closed.
        assert 1 <= taken < 60 and found[name]["opened"] >= 1 and found[name]["bound_by"]
    (better,) = found["large"]["faster_chunks"]
    assert (better["chunks"], better["better"]) == ([24, 128, 256], [1, 128, 256])
    assert better["decoded_per_delivered_byte"] > 5 and not found["fields"]["faster_chunks"]
    # What else runs on the machine may slow down one of them, but not each time.
    for _ in range(5):
        if found["fields"]["samples_per_second"] > 2 * found["large"]["samples_per_second"]:
            break
        for name in found:
            found[name] = json.loads(run("bench", tmp_path, "--arrays", name, *words)[1])
    else:
        raise AssertionError(found)
    part = ["--isel", "lat=0..64", "--seconds", 0.2, "--host_memory_limit", "64MB"]
    status, out, err = run("bench", tmp_path, "--arrays", "large", *part)
    assert status == 0 and re.search(r"MiB/s, [\d.]+ samples/s to the CPU in batches of 16", out) and "bound by" in out
    assert "bench" in err
    assert run("bench", tmp_path, "--arrays", "large", "--seconds", "soon")[0] == 1


def test_bench_counts_the_opening_of_stores(tmp_path, monkeypatch):
    """Epochs of a small store are over at once, and each opens it anew: that is in the seconds asked for, but in no rate."""
    write_array(tmp_path, "few", np.arange(24, dtype="float32").reshape(24, 1), layout=Layout((24, 1)), dims=("time", "x"))
    opened = bench._pipeline

    def slow(*how):
        time.sleep(0.2)
        return opened(*how)

    monkeypatch.setattr(bench, "_pipeline", slow)
    found = bench.bench(str(tmp_path), {"seconds": 1, "arrays": ["few"], "host_memory_limit": "64MB"}, False)
    assert found["opened"] <= 5 and found["epochs"] == pytest.approx(found["opened"], abs=1)
    assert found["opening_seconds"] >= 0.2 * found["opened"] and found["seconds"] < found["opening_seconds"] + 1
    assert found["samples_per_second"] == pytest.approx(16 * found["batches"] / found["seconds"])
    assert f"opening the store took {found['opening_seconds']:.1f} s, {found['opened']} times" in bench.text(found) or (
        found["seconds"] > found["opening_seconds"]
    )


def test_arguments_before_the_command(tmp_path, run):
    """They are the command's, and not ignored."""
    write_array(tmp_path, "a", np.zeros(3))
    for word in ("--json", "--batch_size=3"):
        status, out, err = run(word, "explain", tmp_path)
        assert (status, out) == (2, "") and f"expected arguments after explain, but found {word} before it" in err


def test_the_script_is_the_module():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"dali-zarr": "dali_zarr.__main__:main"}

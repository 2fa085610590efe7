"""explain says what is known by hand of small stores, and what a reader then does; without reading a chunk."""

from __future__ import annotations

import ctypes
import functools
import json
import shutil
import subprocess
import sys

import dali_zarr
import numpy as np
import pytest
from dali_zarr._native import library
from nvidia.dali import types
from support.command_line import command
from support.pipelines import at_rest, build, to_numpy
from support.stores import Layout, chunk_files, write_array

DIMS = ("time", "lat", "lon")
SHAPE = (48, 8, 16)
FIELD = 8 * 16 * 4


def write(path, values, chunk, name="a", **layout):
    write_array(path, name, values, codec="zstd", layout=Layout((chunk, 8, 16), **layout), dims=DIMS)
    return path


def test_what_is_known_by_hand(tmp_path, values):
    """48 fields in chunks of 4: samples of one field take a quarter of what is decoded for them, each chunk is read once."""
    e = dali_zarr.explain(path=write(tmp_path / "s", values, 4), arrays=["a"], batch_size=8, return_index=True)
    assert (e["samples"], e["samples_of_this_shard"], e["batches_per_epoch"]) == (48, 48, 6)
    a, index = e["outputs"]
    assert a == {"name": "a", "offset": None, "dims": list(DIMS[1:]), "shape": [8, 16], "dtype": "float32", "layout": a["layout"],
                 "sample_bytes": FIELD, "bits_of": None, "ragged": False, "ragged_dims": [], "batch_bytes": a["batch_bytes"],
                 "scratch_bytes": 0}
    assert (index["shape"], index["dtype"]) == ([1], "int64")
    (array,) = e["arrays"]
    (stored,) = array["stores"]
    assert (stored["chunks"], stored["shards"], stored["codecs"]) == ([4, 8, 16], None, "zstd")
    assert (stored["chunk_bytes"], stored["decoded_on"]) == (4 * FIELD, "cpu")
    assert (array["bytes_per_sample"], array["chunks_per_sample"], array["read_amplification"]) == (FIELD, 1, 4)
    assert array["chunk_bytes_read_per_sample"] == FIELD, "each chunk once for the four samples in it"
    assert e["reads"]["in_order"] == {
        "chunks": 12, "reads": 12, "reads_per_chunk": 1, "chunk_bytes_read": 48 * FIELD,
        "chunk_bytes_read_per_sample": FIELD, "samples_looked_at": 48, "estimated": False,
    }
    assert e["order"] == "in_order"
    assert e["reads"]["shuffled"]["reads_per_chunk"] == 1, "48 fields stay in memory"


def test_no_chunk_is_read(tmp_path, values):
    """The same without any chunk in the store."""
    path = write(tmp_path / "s", values, 4)
    before = dali_zarr.explain(path=path, arrays="a", batch_size=8)
    for file in chunk_files(path, "a"):
        file.unlink()
    assert dali_zarr.explain(path=path, arrays="a", batch_size=8) == before


def test_shards_offsets_and_stores(tmp_path, values):
    """Inner chunks are what is decoded; two offsets take two fields; several stores are told one by one."""
    for name in ("s", "t"):
        write_array(
            tmp_path / name, "a", values, codec="zstd", layout=Layout((1, 4, 16), shards=(8, 8, 16)), dims=DIMS
        )
    e = dali_zarr.explain(path=[tmp_path / "s", tmp_path / "t"], arrays="a", offsets=[0, 1], batch_size=4, num_shards=2)
    assert (e["samples"], e["samples_of_this_shard"], e["num_shards"]) == (95, 47, 2)
    (array,) = e["arrays"]
    assert [s["store"].rstrip("/").rsplit("/", 1)[1] for s in array["stores"]] == ["s", "t"]
    assert all((s["chunks"], s["shards"]) == ([1, 4, 16], [8, 8, 16]) for s in array["stores"])
    assert (array["bytes_per_sample"], array["chunks_per_sample"], array["read_amplification"]) == (2 * FIELD, 4, 1)
    assert (e["reads"]["in_order"]["chunks"], e["reads"]["in_order"]["reads"]) == (96, 96)
    assert [output["offset"] for output in e["outputs"]] == [0, 1]


def test_arguments_are_those_of_the_operator(tmp_path, values):
    path = write(tmp_path / "s", values, 1)
    as_dali = dali_zarr.explain(path=path, arrays=["a"], dtype=types.FLOAT16, pick={"lat": [1, 3]}, name="reader")
    assert as_dali["outputs"][0]["dtype"] == "float16"
    assert as_dali["outputs"][0]["shape"] == [2, 16]
    assert as_dali["name"] == "reader"
    assert dali_zarr.explain(path=path, arrays=["a"], dtype="float16")["outputs"][0]["dtype"] == "float16"
    with pytest.raises(TypeError, match="windows: there is no such argument; did you mean window?"):
        dali_zarr.explain(path=path, windows=[1])
    with pytest.raises(ValueError, match="expected an array 'b'"):
        dali_zarr.explain(path=path, arrays="b")
    with pytest.raises(TypeError, match="window"):
        dali_zarr.explain(path=path, window=[1.5])


def test_where_it_would_be_decoded_without_a_gpu(tmp_path, values):
    """The GPU's decisions need no GPU; what the CPU decodes is told with the reason, and how to change it."""
    write(tmp_path / "s", values, 1)
    write_array(tmp_path / "s", "b", values, codec="numcodecs-bz2", layout=Layout((1, 8, 16)), dims=DIMS)
    write_array(tmp_path / "s", "c", values, codec="none", layout=Layout((1, 8, 16)), dims=DIMS)
    e = dali_zarr.explain(path=tmp_path / "s", arrays=["a", "b", "c"], device="gpu", batch_size=4)
    stored = [array["stores"][0] for array in e["arrays"]]
    assert [s["decoded_on"] for s in stored] == ["gpu", "cpu", "nowhere"]
    assert "bz2" in stored[1]["why"]
    assert any("'b'" in text and "bz2" in text for text in e["advice"])
    memory = e["memory"]
    assert memory["smallest_device_memory_limit"] <= memory["device_memory_used"] <= memory["device_memory_limit"] <= 8 << 30
    assert memory["lanes"] >= 1 and memory["wave_bytes"] >= 4 * 8 * 16
    on_cpu = dali_zarr.explain(path=tmp_path / "s", arrays=["a"], device="gpu", decode_device="cpu")
    assert on_cpu["arrays"][0]["stores"][0]["decoded_on"] == "cpu"
    assert "decode_device" in on_cpu["arrays"][0]["stores"][0]["why"]


def test_the_smallest_limit_is_the_smallest(tmp_path, values):
    """A pipeline with it is built and runs; with one byte less it isn't, and explain says so instead of raising."""
    path = write(tmp_path / "s", values, 4)
    smallest = dali_zarr.explain(path=path, arrays="a", batch_size=2)["memory"]["smallest_host_memory_limit"]
    build(path=path, arrays="a", host_memory_limit=smallest).run()
    with pytest.raises(ValueError, match=str(smallest)):
        build(path=path, arrays="a", host_memory_limit=smallest - 1)
    e = dali_zarr.explain(path=path, arrays="a", batch_size=2, host_memory_limit=smallest - 1)
    assert str(smallest) in e["memory"]["refused"]
    assert "refused" in str(e)


def test_advice_fits(tmp_path):
    """What is slow is named with what to do; what isn't gets no advice."""
    fields = np.zeros((4000, 8, 16), "float32")
    path = write(tmp_path / "s", fields, 8)
    args = {"path": path, "arrays": "a", "batch_size": 8, "random_shuffle": True, "prefetch_queue_depth": 1}
    assert dali_zarr.explain(**args)["reads"]["shuffled"]["reads_per_chunk"] == pytest.approx(1, rel=0.01)
    assert dali_zarr.explain(**args, initial_fill=1 << 40)["reads"]["shuffled"]["reads_per_chunk"] == 1, "memory holds all chunks"
    shuffled = dali_zarr.explain(**args, initial_fill=1 << 40, host_memory_limit=1 << 17)
    assert shuffled["reads"]["shuffled"]["reads_per_chunk"] > 5
    assert any("times per epoch" in text and "smaller than the epoch" in text for text in shuffled["advice"])
    little = dali_zarr.explain(**args, initial_fill=1000, host_memory_limit=1 << 17)
    assert any("times per epoch" in text and "give more memory" in text for text in little["advice"])
    whole = write(tmp_path / "t", fields, 1)
    enough = {"path": whole, "arrays": "a", "batch_size": 8, "random_shuffle": True, "host_memory_limit": 64 << 20}
    assert dali_zarr.explain(**enough)["advice"] == []
    small = dali_zarr.explain(path=path, arrays="a", dims=["time", "lat", "lon"], window=[1, 1, 1], roi_end=[8, 1, 1])
    assert small["arrays"][0]["read_amplification"] == 8 * 8 * 16
    tight = dali_zarr.explain(path=path, arrays="a", batch_size=8, host_memory_limit=64 << 10)
    assert any("host_memory_limit" in text for text in tight["advice"])


def test_advice_on_chunks_in_flight(tmp_path):
    """More memory is advised only where it would help: batches in preparation may have too few chunks."""
    told = {"path": write(tmp_path / "s", np.zeros((4000, 8, 16), "float32"), 1), "arrays": "a", "device": "gpu"}

    def advice(**more):
        return [text for text in dali_zarr.explain(**told, **more)["advice"] if "busy" in text]

    assert advice(batch_size=64) == []
    (one,) = advice(batch_size=1)
    assert one == advice(batch_size=1, device_memory_limit="4GiB")[0]
    assert one.startswith("the 32 batches in preparation have 32 chunks, of 64 that") and one.endswith("use a larger batch_size")
    (few,) = advice(batch_size=16, prefetch_queue_depth=2)
    assert "the 2 batches in preparation have 32 chunks" in few and few.endswith("or raise prefetch_queue_depth")
    least = dali_zarr.explain(**told, batch_size=64)["memory"]["smallest_device_memory_limit"]
    for threads in (2, 16, None):
        (tight,) = advice(batch_size=64, device_memory_limit=least + 50_000, decode_threads=threads)
        assert "raise device_memory_limit" in tight
    # Batches that together need a few chunks leave memory over.
    write_array(tmp_path / "t", "a", np.zeros(100_000), codec="zstd", layout=Layout((1000,)), dims=("time",))
    scalars = {"path": tmp_path / "t", "arrays": "a", "device": "gpu", "batch_size": 64}
    for more in ({}, {"device_memory_limit": "1GiB"}):
        assert not [text for text in dali_zarr.explain(**scalars, **more)["advice"] if "raise device_memory_limit" in text]


def test_reads_depend_on_who_waits_where_memory_is_short(tmp_path, values):
    """A chunk that is read serves all batches in preparation, or only one at a time if these are ready before they are taken."""
    args = {"path": write(tmp_path / "s", values, 8), "batch_size": 2, "random_shuffle": True, "initial_fill": 48}
    smallest = dali_zarr.explain(**args)["memory"]["smallest_host_memory_limit"]
    e = dali_zarr.explain(**args, host_memory_limit=smallest + 10 * FIELD)
    waited, unhurried = e["reads"]["shuffled"]["reads"], e["reads"]["unhurried"]["reads"]
    assert e["memory"]["batches_in_preparation"] > 1
    assert 6 < waited < unhurried <= 48
    assert f"{unhurried:.0f} reads if batches are ready before they are taken" in " ".join(str(e).split())
    alone = dali_zarr.explain(**args, host_memory_limit=smallest + 10 * FIELD, prefetch_queue_depth=1)["reads"]
    assert alone["shuffled"] == alone["unhurried"], "one batch at a time anyway"
    assert "if batches are ready" not in str(dali_zarr.explain(**args))


class Reader:
    """A reader behind the C ABI, of which it is known what it has done when it rests."""

    def __init__(self, **spec):
        self.library, self.reader, self.path = library.loaded(), ctypes.c_void_p(), spec["path"]
        library.check(self.library.dali_zarr_open(json.dumps(spec).encode(), ctypes.byref(self.reader)))

    def chunks_read(self) -> int:
        """Once nothing is going on any more: the batch ahead is ready, and the queue is full."""
        # Readers of earlier tests may still wait for the collection of garbage.
        (counters,) = at_rest(lambda: [one for one in dali_zarr.counters() if one["path"] == [self.path]])
        return counters["chunks_read"]

    def next(self) -> None:
        batch = ctypes.c_void_p()
        library.check(self.library.dali_zarr_next_batch(self.reader, ctypes.byref(batch)))
        self.library.dali_zarr_batch_release(batch)

    def close(self) -> None:
        self.library.dali_zarr_close(self.reader)


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize(
    ("chunk", "args"),
    [
        (1, {}), (4, {}), (5, {}), (48, {}), (3, {"window": 6, "step": 3}), (6, {"offsets": [0, 6]}),
        (1, {"window": 4, "step": 1}), (2, {"arrays": ["a", "a"]}), (1, {"random_shuffle": True}),
        (1, {"random_shuffle": True, "pad_last_batch": True}), (6, {"random_shuffle": True}),
    ],
    ids=str,
)
def test_reads_are_those_of_an_epoch(tmp_path, values, codec, chunk, args):
    """A reader that has prepared all batches of an epoch and no more has read as many chunks as explain says."""
    write_array(tmp_path / "s", "a", values, codec=codec, layout=Layout((chunk, 8, 16)), dims=DIMS)
    args = {"path": str(tmp_path / "s"), "arrays": ["a"], "batch_size": 3, "host_memory_limit": 16 << 20} | args
    args["prefetch_queue_depth"] = 1
    e = dali_zarr.explain(**args)
    assert e["samples"] % 3 == 0, "else the last batch would need chunks of the next epoch"
    expected = e["reads"][e["order"]]["reads"]
    found = []
    # Where the planner doesn't get the processor, a chunk may be given up before it is known to be needed again.
    while expected not in found and len(found) < 6:
        reader = Reader(**args)
        try:
            for _ in range(e["batches_per_epoch"] - 1):
                reader.chunks_read()
                reader.next()
            found.append(reader.chunks_read())
        finally:
            reader.close()
    assert expected in found, e["reads"]


def test_the_command_line(tmp_path, values, monkeypatch, capsys):
    """A process of its own for the first use; the others are calls, for imports take most of a process's time."""
    run = functools.partial(command, monkeypatch, capsys)
    path = write(tmp_path / "s", values, 4)
    options = ["--arrays", "a", "--batch_size", 8, "--offsets", -1, 0, "--random_shuffle", "--pick", "lat=0,5"]
    words = [sys.executable, "-m", "dali_zarr", "explain", str(path), "--json", *map(str, options)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    expected = dali_zarr.explain(
        path=path, arrays="a", batch_size=8, offsets=[-1, 0], random_shuffle=True, pick={"lat": [0, 5]}
    )
    found = json.loads(done.stdout)
    # Readers of other tests may have memory in this process.
    expected["memory"]["host_memory_taken"] = 0
    assert found == expected
    status, out, _ = run("explain", path, *options)
    assert (status, out) == (0, f"{expected}\n")
    for line in ("samples: 47; 6 batches of 8", "chunks of 4x8x16 (2.0 KiB), zstd", "reads per epoch (shuffled)",
                 "output a at offset -1: 2x16 float32", "output a at offset 0: 2x16 float32"):
        assert line in out
    shutil.rmtree(path)
    status, out, err = run("explain", path)
    assert (status, out) == (1, "")
    assert str(path) in err
    status, _, err = run("explain", "--json")
    assert (status, "STORE" in err) == (2, True)
    assert run()[0] == 0


@pytest.mark.parametrize("dtype", ["types.FLOAT16", "float16"])
def test_the_command_line_takes_types_of_dali(tmp_path, values, monkeypatch, capsys, dtype):
    status, out, err = command(monkeypatch, capsys, "explain", write(tmp_path / "s", values, 4), "--json", "--dtype", dtype)
    assert status == 0, err
    assert json.loads(out)["outputs"][0]["dtype"] == "float16"


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--dtype", "types.FLOTE"], 2, "--dtype: nvidia.dali has no types.FLOTE; give one of its types, such as types.FLOAT"),
        (["--dtype", "flote"], 1, "dtype: expected one of NumPy's, DALI's or PyTorch's types or its name"),
        (["--path", "elsewhere"], 2, "--path: the stores are given already, as STORE before the options"),
        (["--batch_size"], 2, "--batch_size: expected a value after it"),
        (["--batch-size", "--random_shuffle"], 2, "--batch_size: expected a value after it"),
        (["--batch_size", "many"], 1, "batch_size: expected a whole number"),
        (["--batchsize", 4], 2, "--batchsize: there is no such argument; did you mean --batch_size?"),
        (["--nonsense=1"], 2, "--nonsense: there is no such argument; see help(fn.zarr_reader)"),
        (["--preserve"], 2, "--preserve: there is no such argument"),
        (["--arrays", "a", "--arrays", "b"], 2, "--arrays: given twice; give all its values at once, as --arrays A B"),
        (["--random_shuffle", "perhaps"], 1, "random_shuffle: expected True or False"),
    ],
)
def test_what_the_command_line_refuses(tmp_path, values, monkeypatch, capsys, words, status, message):
    found, out, err = command(monkeypatch, capsys, "explain", write(tmp_path / "s", values, 4), *words)
    assert (found, out) == (status, "")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize("fill", [float("nan"), float("inf"), -2.5])
def test_fill_values_without_a_number_in_json(tmp_path, values, fill):
    """Whatever fn.zarr_reader takes, explain takes."""
    path = write(tmp_path / "s", values, 4)
    e = dali_zarr.explain(path=path, window=[3], out_of_bounds_policy="pad", fill_value=fill)
    assert e["samples"] == 16


@pytest.mark.parametrize("how", [
    {}, {"initial_fill": 1000}, {"initial_fill": 4000}, {"initial_fill": 4000, "batch_size": 512},
    {"initial_fill": 1024, "batch_size": 2000},
    {"stick_to_shard": True, "num_shards": 20}, {"stick_to_shard": True, "num_shards": 3, "shard_id": 1},
], ids=str)
def test_how_far_a_shuffled_batch_is_spread(tmp_path, how):
    """Episodes of 200 steps with a chunk each: the number of different ones in a batch, as counted in the order itself."""
    write_array(tmp_path, "a", np.zeros((100 * 200, 2), "int8"), layout=Layout((200, 2)), dims=("time", "x"))
    args = {"path": tmp_path, "arrays": ["a"], "batch_size": 64, "random_shuffle": True} | how
    e = dali_zarr.explain(**args)
    told, shards = e["shuffle"], how.get("num_shards", 1)
    assert told["is_uniform"] == ("initial_fill" not in how), told
    assert told["initial_fill"] == how.get("initial_fill", -(-20_000 // shards)), told
    assert told["chunk_bytes_if_uniform"] == 100 * 512 // shards, told
    assert ("shuffled in windows of" in str(e)) == ("initial_fill" in how), str(e)
    pipe = build("cpu", args.pop("batch_size"), return_index=True, **args)
    batches = max(10_000 // e["batch_size"], 30)
    found = np.mean([np.unique(to_numpy(pipe.run()[-1]) // 200).size for _ in range(batches)])
    # Batches reach into the next epoch.
    assert told["blocks_of_batch"] == pytest.approx(found, rel=0.06), (found, told)

"""``on_bad_chunk``: chunks that can't be decoded become NaN, or other samples take the places of those that need them. Against
NumPy, for random stores, damages and readers."""

from __future__ import annotations

import logging
import math
import shutil
from pathlib import Path
from typing import Any

import dali_zarr
import numpy as np
import pytest
from support import bad_chunks as bad
from support.pipelines import batches, build, same, to_numpy
from support.server import Server
from support.stores import Layout, chunk_files, write_array

# The cases of a test that draws them, in parts of one pytest item each.
PARTS, CASES = 20, 12


def cases(part: int):
    return range(part * CASES, (part + 1) * CASES)


class Case:
    """A random store with damages, in ``path``, the same store without them, in ``whole``, and a random reader of both."""

    def __init__(self, seed: int, folder: Path, dtypes: tuple[str, ...] = ("float32", "float64", "int16", "uint8")):
        self.rng = rng = np.random.default_rng([seed, len(dtypes)])
        self.path, self.whole = folder / f"{seed}.zarr", folder / f"{seed}-whole.zarr"
        self.steps = int(rng.integers(8, 25))
        names = ("a", "b") if rng.random() < 0.4 else ("a",)
        self.arrays = bad.write(rng, self.path, self.steps, names, dtypes)
        shutil.copytree(self.path, self.whole)
        share = float(rng.choice([0.05, 0.15, 0.4]))
        for array in self.arrays:
            bad.damage(rng, self.path, array, share)
        self.window, self.stride = int(rng.integers(0, 4)), int(rng.integers(1, 3))
        self.offsets = [[0], [0, 2], [0, -1]][int(rng.integers(3))]
        self.batch = int(rng.integers(1, 5))
        self.args: dict[str, Any] = {
            "arrays": list(names), "window": [self.window], "stride": [self.stride], "offsets": self.offsets, "return_index": True,
            "dims": ["time"],
        }

    def resources(self, device: str, **given: Any) -> dict[str, Any]:
        """Limits of memory from the smallest on for a reader with these arguments, caches, and queues."""
        rng, found = self.rng, dict[str, Any]()
        if rng.random() < 0.3:
            found["cache_size"] = 1 << 20
        if rng.random() < 0.5:
            found["prefetch_queue_depth"] = int(rng.integers(1, 4))
        if rng.random() < 0.5:
            memory = dali_zarr.explain(self.path, batch_size=self.batch, device=device, **given, **found)["memory"]
            for name in ("host_memory_limit", "device_memory_limit") if device == "gpu" else ("host_memory_limit",):
                found[name] = int(memory[f"smallest_{name}"] * rng.choice([1, 1.3, 4]))
        return found

    def times(self, start: int, offset: int = 0) -> list[int]:
        return [start + offset + i * self.stride for i in range(max(self.window, 1))]

    def is_bad(self, start: int) -> bool:
        """Whether the sample that starts here needs a bad chunk."""
        needed = {t for offset in self.offsets for t in self.times(start, offset)}
        return any(array.chunks_of(needed) & array.bad.keys() for array in self.arrays)

    def outputs(self, decoded: list[np.ndarray], starts: list[int]) -> list[np.ndarray]:
        """Returns the outputs of a batch of the samples that start here."""
        found = []
        for offset in self.offsets:
            for values in decoded:
                samples = [values[self.times(start, offset)] for start in starts]
                found.append(np.stack(samples if self.window else [sample[0] for sample in samples]))
        return [*found, np.array(starts, "int64")[:, None]]

    def listed(self) -> set[tuple[str, str, tuple[int, ...] | None]]:
        return {(array.name, *where) for array in self.arrays for where in array.bad.values()}


def check_list(case: Case, found: list[dali_zarr.BadChunk], at_least: int) -> None:
    """Each entry is right, and is there once."""
    entries = [(one.array, one.key, one.inner_chunk) for one in found]
    assert len(entries) == len(set(entries)) >= at_least and set(entries) <= case.listed()
    for one in found:
        assert one.store == str(case.path) and one.reason and one.key not in one.reason, one


VALUES: list[dict[str, Any]] = [
    {}, {"dtype": "float32"}, {"dtype": "int32"}, {"mean": 3.0, "stddev": 2.0}, {"fillna": -5.0, "dtype": "float64"},
    {"fillna": -5.0, "mean": 3.0, "stddev": 2.0},
]


def decoded(array: bad.Damaged, given: dict[str, Any]) -> np.ndarray:
    """The elements of an array with NaN for the bad ones, as a reader with these arguments delivers them."""
    is_normal = "mean" in given
    dtype = given.get("dtype", "float32" if is_normal else str(array.values.dtype))
    found = array.decoded("float64" if np.dtype(dtype).kind == "f" else dtype)
    if "fillna" in given and array.values.dtype.kind == "f":
        found = np.nan_to_num(found, nan=given["fillna"])
    return ((found - given["mean"]) / given["stddev"] if is_normal else found).astype(dtype)


@pytest.mark.parametrize("part", range(PARTS))
def test_nan_as_numpy(tmp_path, device, part):
    for seed in cases(part):
        case = Case(seed, tmp_path)
        given = VALUES[int(case.rng.integers(len(VALUES)))]
        shuffled = {"random_shuffle": bool(case.rng.integers(2)), "initial_fill": int(case.rng.integers(1, 9))}
        args = {**case.args, **given}
        order = batches(build("cpu", case.batch, path=case.whole, **args, **shuffled))
        args |= case.resources(device, **args, **shuffled)
        pipe = build(device, case.batch, path=case.path, on_bad_chunk="nan", checkpointing=True, **args, **shuffled)
        values = [decoded(array, given) for array in case.arrays]
        rounds = 2 * -(-pipe.epoch_size("reader") // case.batch)
        for number in range(rounds):
            starts = next(order)[-1][:, 0].tolist()
            if number == rounds // 2:
                # A reader that goes on from here delivers the same, whatever was found before.
                kept, pipe = pipe, build(
                    device, case.batch, path=case.path, on_bad_chunk="nan", checkpointing=True, checkpoint=pipe.checkpoint(),
                    **args, **shuffled,
                )
                del kept
            for i, (out, want) in enumerate(zip(pipe.run(), case.outputs(values, starts), strict=True)):
                same(to_numpy(out), want, f"case {seed}, batch {number}, output {i}")
        counters = dali_zarr.counters(pipe)["reader"]
        check_list(case, dali_zarr.bad_chunks(pipe)["reader"], counters["chunks_bad"])
        assert counters["samples_replaced"] == 0


@pytest.mark.parametrize("part", range(PARTS))
def test_skip_as_numpy(tmp_path, device, part):
    """For each of several ranks, with and without padding, in order and shuffled; one of them goes on from a checkpoint."""
    for seed in cases(part):
        case = Case(1000 + seed, tmp_path)
        rng = case.rng
        args = {**case.args, "random_shuffle": bool(rng.integers(2)), "initial_fill": int(rng.integers(1, 9))}
        samples = dali_zarr.explain(case.path, batch_size=1, **{n: v for n, v in args.items() if n != "return_index"})["samples"]
        shards = int(rng.integers(1, min(3, samples) + 1))
        is_padded = bool(rng.integers(2))
        args |= {"num_shards": shards, "pad_last_batch": is_padded, "stick_to_shard": not is_padded or bool(rng.integers(2))}
        values = [array.values for array in case.arrays]
        lengths = set[int]()
        for shard in range(shards):
            share = samples * (shard + 1) // shards - samples * shard // shards
            length = math.ceil(math.ceil(samples / shards) / case.batch) * case.batch if is_padded else share
            lengths.add(length)
            total = -(-2 * length // case.batch) + 1
            order = batches(build("cpu", case.batch, path=case.whole, **{**args, "shard_id": shard}))
            starts = [start for _ in range(-(-3 * length // case.batch) + 1) for start in next(order)[-1][:, 0].tolist()]
            epochs = [k // length for k in range(len(starts))]
            args["shard_id"] = shard
            how = {"path": case.path, "on_bad_chunk": "skip", "checkpointing": True, **args}
            pipe = build(device, case.batch, **how, **case.resources(device, **args))
            middle = int(rng.integers(1, total))
            for number in range(total):
                if number == middle:
                    others = case.resources(device, **args)
                    kept, pipe = pipe, build(device, case.batch, **how, **others, checkpoint=pipe.checkpoint())
                    del kept
                places = range(number * case.batch, (number + 1) * case.batch)
                wanted = [bad.replaced(starts, epochs, case.is_bad, k) for k in places]
                if None in wanted:
                    with pytest.raises(RuntimeError, match="on_bad_chunk"):
                        pipe.run()
                    break
                found = [to_numpy(out) for out in pipe.run()]
                assert found[-1][:, 0].tolist() == wanted, f"case {seed}, shard {shard} of {shards}, batch {number}"
                for i, (out, want) in enumerate(zip(found, case.outputs(values, wanted), strict=True)):
                    same(out, want, f"case {seed}, shard {shard}, batch {number}, output {i}")
            found_bad = dali_zarr.counters(pipe)["reader"]["chunks_bad"]
            check_list(case, dali_zarr.bad_chunks(pipe)["reader"], found_bad)
        assert len(lengths) == 1 or not is_padded, "all ranks have as many batches"


def field(path: Path, codec: str = "zstd+crc32c", **layout: Any) -> np.ndarray:
    values = np.random.default_rng(3).integers(1, 90, (12, 4, 6)).astype("float32")
    write_array(path, "a", values, codec=codec, layout=Layout(**({"chunks": (2, 4, 6)} | layout)), dims=bad.DIMS)
    return values


def flip(file: Path, at: int = 9) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 4
    file.write_bytes(content)


def test_each_is_listed_and_logged_once(tmp_path, device, caplog):
    """Chunks, inner chunks and a shard, in several epochs, and by a second reader."""
    pytest.importorskip("torch")
    from dali_zarr.torch import Loader

    caplog.set_level(logging.WARNING, "dali_zarr")
    values = field(tmp_path)
    write_array(tmp_path, "s", values, codec="crc32c", layout=Layout((1, 4, 6), shards=(4, 4, 6)), dims=bad.DIMS)
    flip(tmp_path / "a/c/2/0/0")
    (tmp_path / "a/c/4/0/0").write_bytes(b"")
    flip(tmp_path / "s/c/0/0/0", 150)  # of the second inner chunk
    flip(tmp_path / "s/c/2/0/0", -20)  # of the index
    limits = {"host_memory_limit": "128MiB"} | ({"device_memory_limit": "256MiB"} if device == "gpu" else {})
    loader = Loader(tmp_path, arrays=["a", "s"], batch_size=2, device=device, on_bad_chunk="nan", **limits)
    expected = {name: values.copy() for name in "as"}
    expected["a"][4:6] = expected["a"][8:10] = expected["s"][1] = expected["s"][8:12] = np.nan
    for _ in range(3):
        for number, batch in enumerate(loader):
            for name in "as":
                same(batch[name].cpu().numpy(), expected[name][2 * number : 2 * number + 2], f"batch {number} of {name}")
    found = {(one.array, one.key, one.inner_chunk): one.reason for one in loader.bad_chunks}
    assert found.keys() == {
        ("a", "a/c/2/0/0", None), ("a", "a/c/4/0/0", None), ("s", "s/c/0/0/0", (1, 0, 0)), ("s", "s/c/2/0/0", None),
    }
    assert len(loader.bad_chunks) == 4 == loader.counters()["chunks_bad"] and dali_zarr.bad_chunks(loader) == loader.bad_chunks
    assert "checksum" in found["a", "a/c/2/0/0", None] and "CRC-32C" in found["s", "s/c/2/0/0", None]
    assert {one.store for one in loader.bad_chunks} == {str(tmp_path)}
    loader.set_epoch(7)
    next(iter(loader))
    assert len(loader.bad_chunks) == 4, "those of the reader before stay"
    again = Loader(tmp_path, arrays=["a", "s"], batch_size=12, device=device, on_bad_chunk="nan", **limits)
    next(iter(again))
    assert set(again.bad_chunks) == set(loader.bad_chunks)
    logged = [record.getMessage() for record in caplog.records if "on_bad_chunk" in record.getMessage()]
    assert len(logged) == 4 and sum("its elements become NaN" in text for text in logged) == 4
    for one in loader.bad_chunks:
        assert sum(f"array '{one.array}', chunk {one.key}" in text and one.reason in text for text in logged) == 1


def test_by_default_it_is_an_error(tmp_path, device):
    field(tmp_path)
    flip(chunk_files(tmp_path, "a")[1])
    for how in ({}, {"on_bad_chunk": "error"}):
        with pytest.raises(RuntimeError, match="checksum"):
            pipe = build(device, 12, path=tmp_path, arrays=["a"], **how)
            pipe.run()
    assert dali_zarr.bad_chunks(build(device, 2, path=tmp_path, arrays=["a"])) == {"reader": []}
    with pytest.raises(ValueError, match='on_bad_chunk: expected "error", "nan" or "skip", but found "drop"'):
        build(device, 2, path=tmp_path, arrays=["a"], on_bad_chunk="drop")


def test_a_checkpoint_does_not_depend_on_it(tmp_path, device):
    """A run that ended at a bad chunk goes on without it."""
    values = field(tmp_path)
    flip(chunk_files(tmp_path, "a")[2])
    pipe = build(device, 4, path=tmp_path, arrays=["a"], checkpointing=True, prefetch_queue_depth=1, dali_queue=1)
    pipe.run()
    state = pipe.checkpoint()
    with pytest.raises(RuntimeError, match="checksum"):
        pipe.run()
    for how, want in (("nan", [np.nan, np.nan, 6, 7]), ("skip", [6, 6, 6, 7])):
        pipe = build(device, 4, path=tmp_path, arrays=["a"], checkpointing=True, checkpoint=state, on_bad_chunk=how)
        expected = np.stack([np.full_like(values[0], np.nan) if k != k else values[int(k)] for k in want])
        same(to_numpy(pipe.run()[0]), expected, how)


def test_what_is_missing_or_fails_is_not_bad(tmp_path, device):
    """A missing chunk is the fill value, as always. What can't be read stays an error."""
    values = field(tmp_path)
    chunk_files(tmp_path, "a")[1].unlink()
    for how in ("nan", "skip"):
        pipe = build(device, 12, path=tmp_path, arrays=["a"], on_bad_chunk=how)
        values[2:4] = 0
        same(to_numpy(pipe.run()[0]), values, how)
        assert dali_zarr.bad_chunks(pipe) == {"reader": []}
    file = chunk_files(tmp_path, "a")[1]
    file.unlink()
    file.symlink_to("../nothing")
    for how in ("nan", "skip"):
        with pytest.raises(RuntimeError, match="symbolic link"):
            build(device, 12, path=tmp_path, arrays=["a"], on_bad_chunk=how).run()


@pytest.mark.parametrize("cache", ["cache_size", "cache_dir"])
@pytest.mark.parametrize("how", ["nan", "skip"])
def test_no_cache_keeps_what_is_bad(tmp_path, device, cache, how):
    """What was damaged on the way, or was repaired since, is read again: by the same reader once, by later ones always."""
    values = field(tmp_path / "s")
    first, second = chunk_files(tmp_path / "s", "a")[:2]
    good = first.read_bytes()
    flip(first)
    flip(second)
    given: dict[str, Any] = {cache: 1 << 20 if cache == "cache_size" else str(tmp_path / "cache")}
    args = {"arrays": ["a"], "on_bad_chunk": how, "return_index": True, **given}
    with Server(tmp_path / "s") as server:
        pipe = build(device, 12, path=server.url, **args)
        found, index = (to_numpy(out) for out in pipe.run())
        assert index[:, 0].tolist() == (list(range(12)) if how == "nan" else [4, 4, 4, 4, *range(4, 12)])
        counts = server.counts()
        # Once more, since it may have been damaged on the way.
        assert counts["GET", "/a/c/0/0/0"] == counts["GET", "/a/c/1/0/0"] == 2
        for _ in range(8):
            pipe.run()
        assert server.counts()["GET", "/a/c/0/0/0"] == 0, "a reader remembers what is bad"
        assert dali_zarr.counters(pipe)["reader"]["chunks_bad"] == 2
        del pipe
        first.write_bytes(good)
        found, index = (to_numpy(out) for out in build(device, 12, path=server.url, **args).run())
        wanted = [0, 1, np.nan, np.nan] if how == "nan" else [0, 1, 4, 4]
        same(found[:2], values[:2], "repaired")
        assert np.isnan(found[2:4]).all() if how == "nan" else index[:4, 0].tolist() == wanted


def test_what_is_damaged_on_the_way_once_is_not_bad(tmp_path, device):
    """The server sends other bytes when it is asked again."""
    values = field(tmp_path / "s")
    file, good, asked = chunk_files(tmp_path / "s", "a")[1], tmp_path / "good", tmp_path / "asked"
    shutil.copy(file, good)

    def repair(_number: int, method: str, path: str) -> None:
        if method == "GET" and path.endswith("/c/1/0/0"):
            shutil.copy(good, file) if asked.exists() else asked.touch()

    for how in ("nan", "skip"):
        asked.unlink(missing_ok=True)
        shutil.copy(good, file)
        flip(file)
        with Server(tmp_path / "s", fault=repair) as server:
            pipe = build(device, 12, path=server.url, arrays=["a"], on_bad_chunk=how)
            same(to_numpy(pipe.run()[0]), values, how)
            assert dali_zarr.bad_chunks(pipe) == {"reader": []} and asked.exists()

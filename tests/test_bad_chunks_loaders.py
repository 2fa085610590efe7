"""``on_bad_chunk`` beside everything that makes batches: loaders, ranks, samplers, streams, labels, masks, ragged rows, alignment,
transposition, the C ABI and the command line."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import dali_zarr
import numpy as np
import pytest
import xarray as xr
from dali_zarr import _native
from support.bad_chunks import DIMS
from support.command_line import command
from support.pipelines import batches, build, same, to_numpy
from support.stores import Layout, chunk_files, write_array

STEPS = 24
# Samples 6 and 7, and 16 and 17.
BAD = {6, 7, 16, 17}


@pytest.fixture
def values(tmp_path) -> np.ndarray:
    """A field whose steps lie in chunks of two, of which the fourth and the ninth are bad."""
    found = np.random.default_rng(5).integers(1, 90, (STEPS, 3, 4)).astype("float32")
    write_array(tmp_path, "a", found, codec="zstd+crc32c", layout=Layout((2, 3, 4)), dims=DIMS)
    write_array(
        tmp_path, "time", np.arange(STEPS, dtype="int64"), dims=("time",),
        attributes={"units": "hours since 2020-01-01", "calendar": "standard"},
    )
    for chunk in (3, 8):
        break_(tmp_path / f"a/c/{chunk}/0/0")
    return found


def break_(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def loader(path: Path, device: str = "cpu", how: str = "skip", **args: Any) -> Any:
    torch = pytest.importorskip("dali_zarr.torch")
    limits = {"host_memory_limit": "128MiB"} | ({"device_memory_limit": "256MiB"} if device == "gpu" else {})
    given = {"arrays": ["a"], "batch_size": 4, "on_bad_chunk": how} | limits | args
    return torch.Loader(path, device="cuda" if device == "gpu" else device, **given)


def starts(of: Any) -> list[int]:
    return [start for batch in of for start in batch.index[:, 0].tolist()]


def replaced(k: int, order: list[int]) -> int:
    return next(s for s in order[k:] + order[:k] if s not in BAD)


@pytest.mark.parametrize("how", ["in order", "shuffled", "cut at the end"])
def test_all_ranks_have_equally_many_batches(tmp_path, values, device, how):
    """Each has its share of the same order, in which no other sample moves."""
    ends = {"drop_last": True} if how == "cut at the end" else {}
    shuffled = {"random_shuffle": how == "shuffled", "initial_fill": 5}
    whole = tmp_path / "whole"
    write_array(whole, "a", values, codec="zstd+crc32c", layout=Layout((2, 3, 4)), dims=DIMS)
    for ranks in (1, 2, 5):
        lengths, seen = set[int](), list[int]()
        for rank in range(ranks):
            of = {"shard_id": rank, "num_shards": ranks, "batch_size": 2, **ends, **shuffled}
            order = starts(loader(whole, device, **of))
            found = loader(tmp_path, device, **of)
            assert len(found) == len(loader(whole, device, **of))
            lengths.add(len(found))
            for epoch in range(2):
                given = list(found)
                came = [start for batch in given for start in batch.index[:, 0].tolist()]
                if epoch == 0:
                    for k, (start, want) in enumerate(zip(came, order, strict=True)):
                        assert start not in BAD and (start == want or want in BAD), (rank, k)
                for batch in given:
                    same(batch["a"].cpu().numpy(), values[batch.index[:, 0].cpu().numpy()], f"rank {rank} of {ranks}")
            seen += order
        assert len(lengths) == 1
        if not ends:
            assert set(seen) == set(range(STEPS))


def test_a_state_goes_on_with_the_same_samples(tmp_path, values, device):
    of = {"random_shuffle": True, "initial_fill": 24}
    expected = starts(loader(tmp_path, device, **of))
    for taken in range(6):
        first = loader(tmp_path, device, **of)
        came = starts(itertools.islice(first, taken))
        second = loader(tmp_path, device, **of)
        second.load_state_dict(first.state_dict())
        assert came + starts(second) == expected and not BAD & set(expected)


def test_your_own_order(tmp_path, values, device):
    """A sampler and a stream: the next sample of the same batch, and nothing that wasn't asked for."""
    found = list(loader(tmp_path, device, sampler=[0, 6, 3, 7, 16, 9, 16, 17, 20, 6]))
    assert [batch.index[:, 0].tolist() for batch in found] == [[0, 3, 3, 0], [9, 9, 9, 9], [20, 20]]
    for batch in found:
        same(batch["a"].cpu().numpy(), values[batch.index[:, 0].cpu().numpy()], "sampler")
        hours = np.datetime64("2020-01-01", "ns") + batch.index[:, 0].cpu().numpy() * np.timedelta64(1, "h")
        assert (np.asarray(batch.coords["time"]).astype("datetime64[ns]").ravel() == hours).all()
    with loader(tmp_path, device).stream() as stream:
        for pushed in ([1, 6], [6, 7, 2], [17, 16], [4]):
            stream.push(pushed)
        assert stream.get().index[:, 0].tolist() == [1, 1] and stream.get().index[:, 0].tolist() == [2, 2, 2]
        with pytest.raises(RuntimeError, match="larger batches"):
            stream.get()
        assert stream.get().index[:, 0].tolist() == [4]
        assert {one.key for one in stream.bad_chunks} == {"a/c/3/0/0", "a/c/8/0/0"}
    of = loader(tmp_path, device, "nan", sampler=[17, 1])
    (batch,) = of
    assert batch["a"][0].isnan().all() and batch["a"][1].cpu().numpy().tolist() == values[1].tolist()


def test_jax(tmp_path, values, device):
    jax = pytest.importorskip("dali_zarr.jax")
    limits = {"host_memory_limit": "128MiB"} | ({"device_memory_limit": "256MiB"} if device == "gpu" else {})
    for how in ("nan", "skip"):
        of = jax.Loader(tmp_path, arrays=["a"], batch_size=8, device=device, on_bad_chunk=how, **limits)
        found = np.concatenate([np.asarray(batch["a"]) for batch in of])
        want = values.copy()
        want[sorted(BAD)] = np.nan if how == "nan" else values[[8, 8, 18, 18]]
        same(found, want, how)
        assert sorted(one.key for one in of.bad_chunks) == ["a/c/3/0/0", "a/c/8/0/0"]
        mixed = dali_zarr.mix({"one": of}, batches=2)
        assert mixed.bad_chunks == {"one": of.bad_chunks}


def test_masks_stay_and_transposed_elements_are_nan(tmp_path, values, device):
    plain = {"window": [3], "step": [1], "out_of_bounds_policy": "pad", "pad_before": [1], "return_mask": True}
    pipe = build(device, 5, path=tmp_path, arrays=["a"], on_bad_chunk="nan", transpose="... time", **plain)
    with_bad = values.copy()
    with_bad[sorted(BAD)] = np.nan
    write_array(tmp_path / "whole", "a", with_bad, codec="zstd", layout=Layout((2, 3, 4)), dims=DIMS)
    for _, (out, mask), (want, told) in zip(
        range(6), batches(pipe), batches(build("cpu", 5, path=tmp_path / "whole", arrays=["a"], **plain)), strict=False,
    ):
        same(out, np.moveaxis(want, 1, -1), "transposed")
        same(mask, told, "mask")


def test_aligned_and_filled(tmp_path, values, device):
    """Arrays of another rate, and data that are declared missing, beside a bad chunk."""
    hours = np.datetime64("2020-01-01", "ns") + np.arange(0, STEPS, 6) * np.timedelta64(1, "h")
    days = xr.Dataset({"b": ("time", np.arange(len(hours), dtype="float32") + 50)}, coords={"time": hours})
    days.to_zarr(tmp_path / "b.zarr", encoding={"b": {"chunks": (2,)}}, consolidated=False, zarr_format=3)
    chunk_files(tmp_path / "b.zarr", "b")[1].write_bytes(b"")
    args: dict[str, Any] = {
        "path": tmp_path, "arrays": {"a": "a", "b": str(tmp_path / "b.zarr/b")}, "return_index": True,
        "align": {"b": {"method": "previous", "tolerance": "2h"}}, "fill_missing": "previous",
    }
    found, aligned, index = (to_numpy(out) for out in build(device, STEPS, on_bad_chunk="nan", **args).run())
    # Of six hours three have an element within two hours, and the others keep the last one.
    want = np.repeat(np.arange(4, dtype="float32") + 50, 6)
    want[12:] = np.nan
    same(aligned, want, "aligned")
    assert np.isnan(found[sorted(BAD)]).all()
    found, aligned, index = (to_numpy(out) for out in build(device, STEPS, on_bad_chunk="skip", **args).run())
    kept = [k if k < 12 and k not in BAD else 8 if k in (6, 7) else 0 for k in range(STEPS)]
    assert index[:, 0].tolist() == kept
    same(found, values[kept], "the field")


@pytest.mark.parametrize("shuffled", [False, True])
def test_ragged_rows(tmp_path, device, shuffled):
    """Rows of very different lengths: a batch has room for the longest ones wherever they come."""
    rng = np.random.default_rng(8)
    lengths = rng.integers(0, 5, 40) + 40 * (rng.random(40) < 0.1)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype("int64")
    data = rng.integers(1, 99, int(ends[-1])).astype("float32")
    write_array(tmp_path, "x", data, codec="crc32c", layout=Layout((16,)), dims=("e",))
    write_array(tmp_path, "ptr", ends, dims=("p",))
    files = chunk_files(tmp_path, "x")
    bad = sorted(rng.choice(len(files), 3, replace=False).tolist())
    names = [f"{tmp_path}/x/c/{i}" for i in bad]
    for name in names:
        break_(Path(name))
    lost = np.isin(np.arange(len(data)) // 16, bad)
    is_bad = [bool(lost[a:b].any()) for a, b in zip(ends[:-1], ends[1:], strict=True)]
    rows = [data[a:b] for a, b in zip(ends[:-1], ends[1:], strict=True)]
    args = {"path": tmp_path, "arrays": ["x"], "ragged": "ptr", "return_index": True, "random_shuffle": shuffled, "initial_fill": 9}
    order = list[int]()
    for how in ("nan", "skip"):
        pipe = build(device, 4, on_bad_chunk=how, **args)
        for number in range(20):
            out, index = pipe.run()
            out, index = (one.as_cpu() if device == "gpu" else one for one in (out, index))
            for i in range(4):
                row = int(np.array(index.at(i))[0])
                want = rows[row].copy()
                if how == "nan":
                    want[lost[ends[row] : ends[row + 1]]] = np.nan
                    order.append(row)
                else:
                    k = 4 * number + i
                    epoch = order[k - k % 40 : k - k % 40 + 40]
                    others = epoch[k % 40 :] + epoch[: k % 40]
                    assert row == next(one for one in others if not is_bad[one])
                same(np.array(out.at(i)), want, f"{how}, row {row}")


def test_what_is_read_at_opening_stays_an_error(tmp_path, values):
    """A coordinate that a selection needs, and offsets of rows."""
    write_array(tmp_path, "lat", np.arange(3, dtype="float64"), codec="zstd+crc32c", dims=("lat",))
    break_(chunk_files(tmp_path, "lat")[0])
    for how in ("nan", "skip"):
        with pytest.raises((ValueError, RuntimeError), match="lat"):
            loader(tmp_path, how=how, sel={"lat": 1.0})
    write_array(tmp_path, "ptr", np.array([0, 3, 24]), codec="zstd+crc32c", dims=("p",))
    break_(chunk_files(tmp_path, "ptr")[0])
    with pytest.raises((ValueError, RuntimeError), match="ptr"):
        build("cpu", 1, path=tmp_path, arrays=["a"], ragged="ptr", on_bad_chunk="nan")


def test_the_c_abi(tmp_path, values):
    spec = {"path": str(tmp_path), "arrays": ["a"], "batch_size": STEPS, "on_bad_chunk": "nan"}
    with _native.Reader(spec) as reader:
        found = np.frombuffer(reader.bytes(), "float32").reshape(values.shape)
        want = values.copy()
        want[sorted(BAD)] = np.nan
        same(found, want, "the C ABI")
        counters = reader.counters()
        listed = _native.bad_chunks(counters["reader"])
        assert counters["chunks_bad"] == 2 and [one["key"] for one in listed] == ["a/c/3/0/0", "a/c/8/0/0"]
        assert set(listed[0]) == {"store", "array", "key", "inner_chunk", "reason"}
    with pytest.raises(ValueError, match="there is no reader"):
        _native.bad_chunks(counters["reader"])


def test_explain_statistics_and_the_command_line(tmp_path, values, monkeypatch, capsys):
    told = dali_zarr.explain(tmp_path, arrays=["a"], on_bad_chunk="skip")
    assert told["on_bad_chunk"] == "skip" and "bad chunks: the next sample takes the place of one that needs them" in str(told)
    assert "bad chunks" not in str(dali_zarr.explain(tmp_path, arrays=["a"]))
    status, out, _ = command(monkeypatch, capsys, "explain", tmp_path, "--arrays", "a", "--on-bad-chunk", "nan")
    assert status in (0, None) and "their elements are NaN" in out
    status, _, err = command(monkeypatch, capsys, "explain", tmp_path, "--arrays", "a", "--on-bad-chunk", "drop")
    assert status not in (0, None) and "drop" in err
    with pytest.raises(RuntimeError, match="checksum"):
        dali_zarr.statistics(tmp_path, arrays=["a"], on_bad_chunk="nan")

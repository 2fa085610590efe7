"""Dimensions of one element that ``squeeze`` drops, alone and with ``transpose``, against xarray's methods of these names."""

from __future__ import annotations

from typing import Any

import dali_zarr
import numpy as np
import pytest
import xarray as xr
from support.pipelines import batches, build, read, same
from support.stores import Layout, write_array

torch = pytest.importorskip("torch", reason="the Loader for PyTorch needs it")

N = 8


def _array(path: Any, rng: np.random.Generator, name: str, lens: dict[str, int]) -> xr.DataArray:
    values = rng.normal(size=tuple(lens.values())).astype("float32")
    chunks = tuple(int(rng.integers(1, n + 2)) for n in lens.values())
    write_array(path, name, values, layout=Layout(chunks), dims=list(lens))
    return xr.DataArray(values, dims=tuple(lens), name=name)


@pytest.mark.parametrize("seed", range(40))
def test_random_dimensions_against_xarray(tmp_path, device, seed):
    rng = np.random.default_rng([43, seed])
    rank = int(rng.integers(2, 6))
    names = ["t", "a", "b", "c", "e"][:rank]
    values = _array(tmp_path / "s", rng, "v", {name: int(rng.choice([1, 1, 3, 5])) if i else N for i, name in enumerate(names)})
    for _ in range(6):
        window = int(rng.integers(0, 3))
        samples = [values.isel(t=slice(k, k + window)) if window else values.isel(t=k) for k in range(N - max(window, 1) + 1)]
        kept = [str(name) for name in samples[0].dims]
        ones = [name for name in kept if samples[0].sizes[name] == 1]
        some = [name for name in ones if rng.random() < 0.6]
        squeeze: Any = [
            some, " ".join(some) or None, {"v": some}, [kept.index(name) - len(kept) * int(rng.integers(2)) for name in some], True,
            {"v": True}, "...",
        ][int(rng.integers(7))]
        dropped = ones if squeeze in (True, "...", {"v": True}) else some
        args: dict[str, Any] = {"squeeze": squeeze} if squeeze is not None else {}
        left = [name for name in kept if name not in dropped]
        order = [str(name) for name in rng.permutation(left)]
        if rng.random() < 0.5 and left:
            args["transpose"] = [order, [left.index(name) for name in order]][int(rng.integers(2))]
        else:
            order = left
        expected = np.stack([sample.squeeze(dropped).transpose(*order).values for sample in samples])
        pipe = build(device, len(samples), path=tmp_path / "s", arrays=["v"], window=[window], step=[1], **args)
        same(next(batches(pipe))[0], expected, f"{args} of {values.sizes}")
        told = dali_zarr.explain(path=str(tmp_path / "s"), arrays=["v"], window=[window], step=[1], **args)
        assert told["outputs"][0]["dims"] == order


@pytest.mark.parametrize("transpose", [None, "... channel", "x channel y", ["y", "x", 0]])
def test_stacks_follow_squeeze_and_transpose(tmp_path, device, transpose):
    rng = np.random.default_rng(9)
    path = tmp_path / "s"
    u = _array(path, rng, "u", {"t": N, "e": 1, "y": 5, "x": 6})
    z = _array(path, rng, "z", {"t": N, "e": 1, "level": 3, "y": 5, "x": 6})
    stack = np.concatenate([u.values[:, :, None], z.values], 2)[:, 0]
    order = {None: (0, 1, 2, 3), "... channel": (0, 2, 3, 1), "x channel y": (0, 3, 1, 2)}
    perm = order[transpose] if not isinstance(transpose, list) else (0, 2, 3, 1)
    args: dict[str, Any] = {"transpose": transpose} if transpose is not None else {}
    for squeeze in ("e", True, ["..."]):
        args |= {"squeeze": squeeze, "mean": [1.0, 2.0], "stddev": [3.0, 4.0]}
        pipe = build(device, N, path=path, arrays=["u", "z"], stack_arrays=True, **args)
        mean, stddev = np.array([1.0, 2, 2, 2])[:, None, None], np.array([3.0, 4, 4, 4])[:, None, None]
        want = ((stack.astype("f8") - mean) / stddev).astype("float32").transpose(perm)
        same(next(batches(pipe))[0], want, f"{squeeze} {transpose}")
    one = build(device, N, path=path, arrays=["u"], stack_arrays=True, squeeze=True)
    same(next(batches(one))[0], u.values[:, 0], "a stack of one channel")


def test_labels_names_and_padding_follow(tmp_path, device):
    rng = np.random.default_rng(10)
    path = tmp_path / "s"
    values = _array(path, rng, "v", {"t": N, "e": 1, "x": 6})
    write_array(path, "t", np.arange(N) * 10, layout=Layout((N,)), dims=["t"])
    write_array(path, "x", np.arange(6) + 0.5, layout=Layout((6,)), dims=["x"])
    from dali_zarr.torch import Loader

    loader = Loader(
        path, arrays=["v"], window={"t": 1}, step={"t": 1}, batch_size=N, device=device, squeeze={"v": True}, transpose="x",
        return_mask=True,
    )
    (batch,) = list(loader)
    np.testing.assert_array_equal(batch["v"].cpu().numpy(), values.values[:, 0])
    assert batch["mask"].shape == (N, 1) and np.ravel(batch.coords["t"]).tolist() == [10 * k for k in range(N)]
    (padded,) = read(path, ["v"], window=[1], step=[3], offsets=[5], out_of_bounds_policy="pad", squeeze="t e")
    same(padded, np.stack([values.values[5, 0], np.zeros(6, "float32"), np.zeros(6, "float32")]), "with padding behind")


def test_checkpoints_and_errors(tmp_path):
    from dali_zarr.torch import Loader

    rng = np.random.default_rng(11)
    _array(tmp_path / "s", rng, "v", {"t": N, "e": 1, "x": 6})
    state = Loader(tmp_path / "s", arrays=["v"], batch_size=2, device="cpu", squeeze="e").state_dict()
    with pytest.raises(ValueError, match="transpose|squeeze"):
        Loader(tmp_path / "s", arrays=["v"], batch_size=2, device="cpu").load_state_dict(state)
    wrong: list[tuple[Any, str]] = [
        ("x", "has 6"), ("nowhere", "no array has a dimension"), ({"u": "e"}, "no output 'u'"), ([1.5], "names or positions"),
    ]
    for squeeze, words in wrong:
        with pytest.raises((ValueError, TypeError), match=words):
            Loader(tmp_path / "s", arrays=["v"], batch_size=2, device="cpu", squeeze=squeeze)

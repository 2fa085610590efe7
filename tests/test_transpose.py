"""The order of a sample's dimensions in outputs (``transpose``), against NumPy's transpose of what comes without it."""

from __future__ import annotations

from typing import Any

import dali_zarr
import numpy as np
import pytest
from support.oracle import cast
from support.pipelines import batches, build, check, read, same, to_numpy
from support.stores import Layout, write_array

N = 12
TYPES = ("uint8", "int16", "float32", "float64", "uint16", "int8")


def write(path: Any, rng: np.random.Generator, name: str, shape: tuple[int, ...], dims: Any, dtype: str) -> np.ndarray:
    """Writes an array in chunks of any shape, some of them with their bytes shuffled, or with dimensions in another order."""
    values = (rng.normal(size=shape) * 60 + 100).clip(0, 127).astype(dtype)
    chunks = tuple(int(rng.integers(1, n + 2)) for n in shape)
    write_array(path, name, values, layout=Layout(chunks), dims=dims)
    return values


@pytest.mark.parametrize("seed", range(60))
def test_random_orders_against_numpy(tmp_path, device, seed):
    rng = np.random.default_rng([41, seed])
    rank = int(rng.integers(2, 6))
    dims = ["t", "a", "b", "c", "e"][:rank]
    lens = [N, *(int(rng.choice([1, 3, 7, 20, 70 if rank < 5 else 5])) for _ in dims[1:])]
    while np.prod(lens[1:]) > 30_000:
        lens = [N, *(max(1, n // 2) for n in lens[1:])]
    dtype = str(rng.choice(TYPES))
    values = write(tmp_path / "s", rng, "v", tuple(lens), dims, dtype)
    for _ in range(6):
        window = int(rng.integers(0, 4))
        kept = dims if window else dims[1:]
        order = [str(d) for d in rng.permutation(kept)]
        shown: Any = order
        match int(rng.integers(5)):
            case 0:
                shown = " ".join(order)
            case 1:
                shown = [kept.index(d) - (len(kept) if rng.random() < 0.5 else 0) for d in order]
            case 2:
                shown = {"v": order}
            case 3:
                # Those from here on that keep their order anyway.
                at = int(rng.integers(len(order)))
                rest = [d for d in kept if d in order[at:]]
                order = [*order[:at], *rest]
                shown = [*order[:at], ...]
        args: dict[str, Any] = {"transpose": shown, "window": [window], "step": [1]}
        samples = np.stack([values[i : i + max(window, 1)] for i in range(N - max(window, 1) + 1)])
        samples = samples if window else samples[:, 0]
        expected: np.ndarray = samples
        norm = int(rng.integers(4))
        if norm == 1:
            args |= {"mean": 0.0, "stddev": 255.0}
            expected = cast(samples.astype("f8") / 255, "float32")
        elif norm == 2:
            args |= {"dtype": "float16"}
            expected = cast(samples, "float16")
        elif norm == 3:
            d = int(rng.integers(1, rank))
            mean, stddev = rng.uniform(-90, 90, lens[d]), rng.uniform(0.2, 60, lens[d])
            args |= {"mean": list(mean), "stddev": list(stddev), "channels": [dims[d]]}
            along = [1] * samples.ndim
            along[d if not window else d + 1] = lens[d]
            expected = cast((samples.astype("f8") - mean.reshape(along)) / stddev.reshape(along), "float32")
        perm = [0, *(kept.index(d) + 1 for d in order)]
        (found,) = next(batches(build(device, len(samples), path=tmp_path / "s", arrays=["v"], **args)))
        same(found, expected.transpose(perm), f"{args}, {values.shape}")


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("norm", ["none", "one", "channels"])
def test_images_with_channels_first(tmp_path, device, dtype, norm):
    """As diffusion policies take them: (window, c, y, x) in [0, 1]."""
    rng = np.random.default_rng(5)
    values = write(tmp_path / "s", rng, "img", (40, 96, 95, 3), "tyxc", dtype)
    args: dict[str, Any] = {}
    samples = np.stack([values[i : i + 16] for i in range(0, 25)])
    if norm == "one":
        args = {"mean": 0, "stddev": 255}
        samples = cast(samples.astype("f8") / 255, "float32")
    elif norm == "channels":
        mean, stddev = np.array([0.4, 0.5, 0.6]) * 255, np.array([51.0, 52.5, 60.25])
        args = {"mean": {"img": mean}, "stddev": {"img": stddev}}
        samples = cast((samples.astype("f8") - mean) / stddev, "float32")
    pipe = build(
        device, 25, path=tmp_path / "s", arrays=["img"], window=[16], step=[1], transpose={"img": "t c y x"}, **args,
    )
    (found,) = pipe.run()
    assert found.layout() == "FCHW"
    same(to_numpy(found), samples.transpose(0, 1, 4, 2, 3), norm)


def test_fields_with_variables_last(tmp_path, device):
    """As anemoi's models take them: (time, ensemble, cell, variable)."""
    rng = np.random.default_rng(6)
    values = write(tmp_path / "s", rng, "data", (9, 30, 1, 1003), ["time", "variable", "ensemble", "cell"], "float32")
    values[2, 4, 0, 5:9] = np.nan
    write_array(tmp_path / "n", "data", values, layout=Layout((1, 30, 1, 1003)), dims=["time", "variable", "ensemble", "cell"])
    mean, stddev = rng.uniform(-50, 50, 30), rng.uniform(1, 50, 30)
    pipe = build(
        device, 7, path=tmp_path / "n", arrays=["data"], window=[3], step=[1], transpose="time ensemble cell variable",
        mean=list(mean), stddev=list(stddev), channels=["variable"], fillna=7.5,
    )
    samples = np.stack([values[i : i + 3] for i in range(7)]).transpose(0, 1, 3, 4, 2)
    filled = np.where(np.isnan(samples), np.float32(7.5), samples).astype("f8")
    same(next(batches(pipe))[0], cast((filled - mean) / stddev, "float32"), "fields")


def test_stacks_with_channels_last(tmp_path, device):
    rng = np.random.default_rng(7)
    path = tmp_path / "s"
    u = write(path, rng, "u", (N, 13, 17), ["t", "y", "x"], "float32")
    z = write(path, rng, "z", (N, 5, 13, 17), ["t", "level", "y", "x"], "float32")
    lsm = write(path, rng, "lsm", (13, 17), ["y", "x"], "float32")
    stack = np.concatenate([u[:, None], z, np.broadcast_to(lsm, (N, 1, 13, 17))], 1)
    for order, perm in (("y x channel", (0, 2, 3, 1)), ("... variable", (0, 2, 3, 1)), (["x", 0, "y"], (0, 3, 1, 2))):
        for norm in (False, True):
            numbers = {"mean": list(rng.normal(size=7)), "stddev": list(rng.uniform(1, 2, 7))} if norm else {}
            pipe = build(device, N, path=path, arrays=["u", "z", "lsm"], stack_arrays=True, transpose=order, **numbers)
            expected = stack
            if norm:
                mean, stddev = (np.array(one)[:, None, None] for one in numbers.values())
                expected = cast((stack.astype("f8") - mean) / stddev, "float32")
            same(next(batches(pipe))[0], expected.transpose(perm), f"{order} {norm}")
    told = dali_zarr.explain(path=str(path), arrays=["u", "z", "lsm"], stack_arrays=True, transpose="... channel")
    assert (told["outputs"][0]["dims"], told["outputs"][0]["layout"]) == (["y", "x", "channel"], "HWC")


@pytest.mark.parametrize("policy", ["pad", "edge"])
def test_windows_beyond_the_end(tmp_path, device, policy):
    rng = np.random.default_rng(8)
    values = write(tmp_path / "s", rng, "v", (N, 9, 21), "tyx", "int16")
    args: dict[str, Any] = {
        "path": tmp_path / "s", "arrays": ["v"], "dims": ["t", "y"], "window": [5, 4], "step": [2, 3], "stride": [2, 1],
        "offsets": [0, -3], "out_of_bounds_policy": policy, "fill_value": -7, "return_mask": True, "return_index": True,
    }
    plain = next(batches(build(device, 30, **args)))
    turned = next(batches(build(device, 30, transpose=["x", "t", "y"], **args)))
    for found, expected in zip(turned[:2], plain[:2], strict=True):
        same(found, expected.transpose(0, 3, 1, 2), policy)
    for found, expected in zip(turned[2:], plain[2:], strict=True):
        same(found, expected, "the mask and the index")
    assert values.shape == (N, 9, 21)


def test_ragged_rows(tmp_path, device):
    rng = np.random.default_rng(9)
    path = tmp_path / "s"
    frames = write(path, rng, "frames", (30, 6, 8, 3), ["t", "y", "x", "c"], "uint8")
    write_array(path, "ends", np.array([4, 11, 30]), layout=Layout((3,)), dims=["episode"])
    args: dict[str, Any] = {"path": path, "arrays": ["frames"], "ragged_ends": "ends"}
    (found,) = build(device, 3, transpose="t c y x", **args).run()
    assert found.layout() == "FCHW"
    found = found.as_cpu() if hasattr(found, "as_cpu") else found
    for i, (a, b) in enumerate([(0, 4), (4, 11), (11, 30)]):
        same(np.array(found.at(i)), frames[a:b].transpose(0, 3, 1, 2), f"row {i}")
    with pytest.raises(ValueError, match=r"expected \"t\" first for 'frames', since samples differ in length along it"):
        build(device, 3, transpose="c t y x", **args)


def test_cf_decoding_and_missing_chunks(tmp_path, device):
    rng = np.random.default_rng(10)
    values = rng.integers(-50, 50, (N, 40, 30)).astype("int16")
    values[3:7] = -9
    write_array(
        tmp_path / "s", "v", values, layout=Layout((2, 40, 30)), dims="tyx", fill_value=-9,
        attributes={"scale_factor": 0.1, "add_offset": 3.0, "_FillValue": -9},
    )
    args: dict[str, Any] = {"path": tmp_path / "s", "arrays": ["v"], "mask_and_scale": True, "window": [2], "step": [1]}
    check(device, 3, **args)
    (plain,), (turned,) = (next(batches(build(device, 11, **args, **more))) for more in ({}, {"transpose": "x t y"}))
    same(turned, plain.transpose(0, 3, 1, 2), "decoded")
    assert np.isnan(plain).any() and not np.isnan(plain).all()


def test_what_is_wrong_is_said(tmp_path):
    rng = np.random.default_rng(11)
    write(tmp_path / "s", rng, "img", (N, 8, 9, 3), "tyxc", "uint8")
    write(tmp_path / "s", rng, "act", (N, 5), "tk", "float32")
    for order, words in [
        ("y x", "but \"c\" is missing; name it, or write ... for all others"),
        ("y x c d", "no array has a dimension \"d\""),
        ([2, 0, 1], "give orders by output if outputs differ"),
        ({"img": "c y x k"}, "expected dimensions of 'img'"),
        ({"image": "c y x"}, "there is no output 'image'"),
        ("c c y x", "\"c\" is named twice"),
        ("... y ...", "expected ... once"),
    ]:
        with pytest.raises(ValueError, match="transpose") as caught:
            read(tmp_path / "s", ["img", "act"], transpose=order)
        assert words in str(caught.value)
    with pytest.raises(TypeError, match="transpose: expected names or positions of dimensions"):
        read(tmp_path / "s", ["img", "act"], transpose=[1.5])
    found = read(tmp_path / "s", ["img", "act"], transpose="c y x k")
    assert [one.shape[1:] for one in found] == [(3, 8, 9), (5,)]


def test_loaders_explain_and_plots(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    from dali_zarr.torch import Loader

    rng = np.random.default_rng(12)
    path = tmp_path / "s"
    z = write(path, rng, "z", (N, 2, 13, 17), ["time", "level", "lat", "lon"], "float32")
    for name, values in (("lat", np.linspace(60, 0, 13)), ("lon", np.arange(17.0)), ("level", np.array([500.0, 850.0]))):
        write_array(path, name, values, layout=Layout(values.shape), dims=[name])
    loader = Loader(path, arrays=["z"], transpose="lat lon level", batch_size=3)
    batch = next(iter(loader))
    same(batch["z"].cpu().numpy(), z[:3].transpose(0, 2, 3, 1), "the loader's batch")
    figure = batch.plot(1)
    panels = [ax for ax in figure.axes if ax.get_title()]
    assert [ax.get_title() for ax in panels] == ["z\ntime 1, level 500", "z\ntime 1, level 850"]
    assert panels[0].get_xlabel() == "lon" and panels[0].get_ylabel() == "lat"
    told = dali_zarr.explain(path=str(path), arrays=["z"], transpose="lat lon level")
    assert told["outputs"][0]["dims"] == ["lat", "lon", "level"] and told["outputs"][0]["shape"] == [13, 17, 2]


def test_states_belong_to_an_order(tmp_path):
    pytest.importorskip("torch")
    from dali_zarr.torch import Loader

    write(tmp_path / "s", np.random.default_rng(13), "v", (N, 4, 5), "tyx", "float32")
    loaders = [Loader(tmp_path / "s", transpose=order, batch_size=2) for order in (None, "x y", "y x", "... x")]
    iteration = iter(loaders[0])
    next(iteration)
    state = loaders[0].state_dict()
    for loader in loaders[2:]:
        loader.load_state_dict(state)
        next(iter(loader))
    with pytest.raises(ValueError, match="transpose"):
        loaders[1].load_state_dict(state)

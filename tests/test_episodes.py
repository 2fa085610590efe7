"""Episodes: windows that reach out of their segment, as diffusion_policy's sampler cuts them; segments by name; masks."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import dali_zarr
import numpy as np
import pytest
import zarr
from support.pipelines import batches, build, same, to_numpy
from support.stores import Layout, write_array


def rule(
    lengths: list[int], window: int, before: int, after: int, step: int = 1, stride: int = 1, segments: list[int] | None = None
) -> list[tuple[int, int, np.ndarray, np.ndarray]]:
    """The windows of episodes: the episode, the start, the elements with those at the edges repeated, and which aren't repeated.

    In an episode of length ``L`` windows start from ``-before`` to ``L - window + after``.
    """
    found, first = [], 0
    for episode, length in enumerate(lengths):
        for start in range(-before, length - ((window - 1) * stride + 1) + after + 1, step):
            wanted = start + np.arange(window) * stride
            inside = (wanted >= 0) & (wanted < length)
            found.append((episode, first + start, first + np.clip(wanted, 0, length - 1), inside))
        first += length
    return [one for one in found if segments is None or one[0] in segments]


def write(base, lengths: list[int], chunk: int = 7, seed: int = 0) -> dict[str, np.ndarray]:
    """Episodes one after the other, with their ends."""
    total, rng = sum(lengths), np.random.default_rng(seed)
    arrays = {
        "data/image": rng.integers(0, 255, (total, 3, 2), dtype=np.uint8),
        "data/action": rng.standard_normal((total, 2)).astype("float32"),
    }
    for name, values in arrays.items():
        write_array(base, name, values, layout=Layout((chunk, *values.shape[1:])), dims=("t", *"xy"[: values.ndim - 1]))
    write_array(base, "meta/episode_ends", np.cumsum(lengths), layout=Layout((5,)))
    return arrays


def epoch(pipe: Any, samples: int) -> list[list[np.ndarray]]:
    """The samples of an epoch, each with its outputs."""
    found: list[list[np.ndarray]] = []
    for batch in batches(pipe):
        found += [list(sample) for sample in zip(*batch, strict=True)]
        if len(found) >= samples:
            return found[:samples]
    raise AssertionError


def check(pipe: Any, expected: list[tuple], values: np.ndarray, fill: float | None, shuffled: bool = False) -> None:
    assert pipe.reader_meta("reader")["epoch_size"] == len(expected)
    found = epoch(pipe, len(expected))
    if shuffled:
        found.sort(key=lambda sample: sample[-1].tolist())
    for (episode, start, elements, inside), (window, mask, index) in zip(expected, found, strict=True):
        assert index.tolist() == [episode, start]
        assert mask.dtype == bool and mask.tolist() == inside.tolist()
        wanted = values[elements].copy()
        if fill is not None:
            wanted[~inside] = fill
        same(window, wanted, f"the window at {start} of episode {episode}")


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Hundreds of episodes of random lengths."""
    base = tmp_path_factory.mktemp("episodes") / "a.zarr"
    lengths = np.random.default_rng(3).integers(1, 23, 300).tolist()
    return base, lengths, write(base, lengths)


CASES = [
    {"window": 16, "before": 1, "after": 7},
    {"window": 16, "before": 15, "after": 15, "step": 3},
    {"window": 8, "before": 0, "after": 0},
    {"window": 4, "before": 3, "after": 2, "step": 2, "stride": 3},
    {"window": 1, "before": 0, "after": 0, "step": 5},
]


@pytest.mark.parametrize("policy", ["edge", "pad"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_windows_are_those_of_the_rule(many, device, case, policy):
    path, lengths, arrays = many
    expected = rule(lengths, **case)
    pipe = build(
        device, 64, path=path, arrays=["data/action"], dims=["t"], window=[case["window"]], step=[case.get("step", 1)],
        stride=[case.get("stride", 1)], pad_before=[case["before"]], pad_after=[case["after"]], breaks="meta/episode_ends",
        out_of_bounds_policy=policy, fill_value=-3.0, return_mask=True, return_index=True,
    )
    check(pipe, expected, arrays["data/action"], -3.0 if policy == "pad" else None)


@pytest.mark.parametrize("lengths", [[0, 4, 0, 0, 9, 2, 0], [3, 0], [0, 0, 5]], ids=str)
def test_episodes_without_elements_have_no_windows(tmp_path, device, lengths):
    """They count where episodes are numbered."""
    values = write(tmp_path / "a.zarr", lengths)["data/action"]
    args = {
        "path": tmp_path / "a.zarr", "arrays": ["data/action"], "dims": ["t"], "window": [4], "step": [1], "pad_before": [3],
        "pad_after": [3], "breaks": "meta/episode_ends", "out_of_bounds_policy": "edge", "return_mask": True, "return_index": True,
    }
    # The rule's first and last element are those of an episode that has some.
    expected = [one for one in rule(lengths, 4, 3, 3) if lengths[one[0]]]
    check(build(device, 4, **args), expected, values, None)
    assert dali_zarr.explain(**args)["segments"]["count"] == len(lengths)
    last = max(i for i, length in enumerate(lengths) if length)
    check(build(device, 4, segments=[last], **args), [one for one in expected if one[0] == last], values, None)
    if 0 in lengths:
        with pytest.raises(ValueError, match="so the store holds no sample"):
            build(device, 4, segments=[lengths.index(0)], **args)


@pytest.mark.parametrize("crosses", [True, False])
def test_episodes_without_elements_in_joined_stores(tmp_path, device, crosses):
    parts = [[3, 6, 0], [0, 5, 0], [0, 2]]
    values = np.concatenate([write(tmp_path / f"{i}.zarr", lengths, 3, i)["data/action"] for i, lengths in enumerate(parts)])
    lengths = [n for part in parts for n in part]
    expected = [one for one in rule(lengths, 4, 3, 3) if lengths[one[0]]]
    args = {"arrays": ["data/action"], "dims": ["t"], "window": [4], "step": [1], "pad_before": [3], "pad_after": [3],
            "out_of_bounds_policy": "edge", "return_mask": True, "return_index": True, "breaks": "meta/episode_ends"}
    paths = [tmp_path / f"{i}.zarr" for i in range(3)]
    check(build(device, 4, path=paths, cross_stores=crosses, **args), expected, values, None)


@pytest.mark.parametrize("shards", [1, 3])
def test_shuffled_epochs_have_each_window_once(many, device, shards):
    path, lengths, arrays = many
    chosen = list(range(0, 300, 3))
    expected = rule(lengths, 6, 2, 3, segments=chosen)
    found: list[list[np.ndarray]] = []
    for shard in range(shards):
        pipe = build(
            device, 16, path=path, arrays=["data/action"], dims=["t"], window=[6], step=[1], pad_before=[2], pad_after=[3],
            breaks="meta/episode_ends", segments=[number - 300 for number in chosen], out_of_bounds_policy="edge",
            return_index=True, random_shuffle=True, shard_id=shard, num_shards=shards, seed=4, initial_fill=100,
            stick_to_shard=True,
        )
        n = len(expected)
        found += epoch(pipe, n * (shard + 1) // shards - n * shard // shards)
    order = [sample[-1].tolist() for sample in found]
    assert order != sorted(order)
    found.sort(key=lambda sample: sample[-1].tolist())
    for (episode, start, elements, _), (window, index) in zip(expected, found, strict=True):
        assert index.tolist() == [episode, start]
        same(window, arrays["data/action"][elements], "window")


@pytest.mark.parametrize(
    "chosen", [[0, 2], [-1], np.array([3, 1]), [True, False, False, True, True], np.array([False] * 4 + [True])], ids=str
)
def test_segments_are_numbers_or_a_mask(tmp_path, device, chosen):
    lengths = [4, 9, 2, 7, 5]
    arrays = write(tmp_path / "a.zarr", lengths)
    numbers = np.arange(5)[np.asarray(chosen)]
    expected = rule(lengths, 3, 1, 1, segments=numbers.tolist())
    pipe = build(
        device, 2, path=tmp_path / "a.zarr", arrays=["data/action"], dims=["t"], window=[3], step=[1], pad_before=[1],
        pad_after=[1], breaks="meta/episode_ends", segments=chosen, out_of_bounds_policy="edge", return_mask=True,
        return_index=True,
    )
    check(pipe, expected, arrays["data/action"], None)


def test_windows_by_output_and_offsets(tmp_path, device):
    """All that a sample reads counts as its window."""
    lengths = [5, 1, 8]
    arrays = write(tmp_path / "a.zarr", lengths)
    pipe = build(
        device, 4, path=tmp_path / "a.zarr", arrays={"image": "data/image", "action": "data/action"}, dims=["t"],
        window={"image": {"t": 2}, "action": {"t": 4}}, offsets=[-1, 0], pad_before=[2], pad_after=[3], step=[1],
        breaks="meta/episode_ends", out_of_bounds_policy="edge", return_mask=True, return_index=True,
    )
    # From -1 to before 4.
    expected = rule(lengths, 5, 2, 3)
    found = epoch(pipe, len(expected))
    for (episode, first, elements, inside), outputs in zip(expected, found, strict=True):
        assert outputs[-1].tolist() == [episode, first + 1]
        assert outputs[-2].tolist() == [inside[:4].tolist(), inside[1:].tolist()]
        for i, start in enumerate((0, 1)):
            same(outputs[2 * i], arrays["data/image"][elements[start : start + 2]], "image")
            same(outputs[2 * i + 1], arrays["data/action"][elements[start : start + 4]], "action")


@pytest.mark.parametrize("policy", ["edge", "pad"])
def test_several_dimensions_clamp_on_their_own(tmp_path, device, policy):
    values = np.random.default_rng(0).standard_normal((6, 9, 7)).astype("float32")
    write_array(tmp_path, "a", values, layout=Layout((2, 4, 3)), dims=("t", "y", "x"))
    pipe = build(
        device, 3, path=tmp_path, arrays=["a"], dims=["y", "x"], window=[4, 5], step=[3, 4], stride=[2, 1], pad_before=[3, 2],
        pad_after=[1, 4], out_of_bounds_policy=policy, fill_value=9.0, return_mask=True, return_index=True,
    )
    along = [rule([9], 4, 3, 1, 3, 2), rule([7], 5, 2, 4, 4)]
    expected = list(itertools.product(*along))
    for (y, x), (window, mask, index) in zip(expected, epoch(pipe, len(expected)), strict=True):
        assert index.tolist() == [y[1], x[1]]
        inside = y[3][:, None] & x[3][None]
        assert mask.tolist() == inside.tolist()
        wanted = values[:, y[2]][:, :, x[2]]
        same(window, np.where(inside, wanted, np.float32(9)) if policy == "pad" else wanted, "window")


def test_joined_stores(tmp_path, device):
    """Ends count in each store's own elements."""
    parts = [[3, 6, 1], [5], [2, 2]]
    values = np.concatenate([write(tmp_path / f"{i}.zarr", lengths, 3 + i, i)["data/action"] for i, lengths in enumerate(parts)])
    paths = [tmp_path / f"{i}.zarr" for i in range(3)]
    expected = rule([n for lengths in parts for n in lengths], 4, 3, 3)
    args = {"arrays": ["data/action"], "dims": ["t"], "window": [4], "step": [1], "pad_before": [3], "pad_after": [3],
            "out_of_bounds_policy": "edge", "return_mask": True, "return_index": True}
    check(build(device, 4, path=paths, breaks="meta/episode_ends", **args), expected, values, None)
    # Stores as segments.
    pipe = build(device, 4, path=paths, cross_stores=False, **args)
    check(pipe, rule([sum(lengths) for lengths in parts], 4, 3, 3), values, None)
    # Stores one after the other.
    pipe = build(device, 4, path=paths, concat="samples", breaks="meta/episode_ends", **args)
    starts = np.cumsum([0, *map(sum, parts)])
    expected = [
        [store, episode, start, values[starts[store] + elements]]
        for store, lengths in enumerate(parts) for episode, start, elements, _ in rule(lengths, 4, 3, 3)
    ]
    for (store, episode, start, wanted), (window, _, index) in zip(expected, epoch(pipe, len(expected)), strict=True):
        assert index.tolist() == [store, episode, start]
        same(window, wanted, "window")


@pytest.mark.parametrize("policy", ["edge", "pad", "drop"])
def test_all_segments_are_none_in_particular(tmp_path, device, policy):
    """Also where windows with offsets reach beyond the region: their segment is that of what they read within it."""
    write_array(tmp_path, "a", np.arange(7), layout=Layout((3,)), dims=("t",))
    rng, compared = np.random.default_rng(5), 0
    for _ in range(40):
        breaks = sorted(rng.choice(np.arange(1, 7), rng.integers(1, 4), replace=False).tolist())
        window, step, offset, end = (int(rng.integers(*bounds)) for bounds in ((1, 4), (1, 3), (-2, 3), (4, 8)))
        told = {
            "path": tmp_path, "arrays": ["a"], "breaks": breaks, "window": [window], "step": [step], "offsets": [offset],
            "roi_end": [end], "out_of_bounds_policy": policy,
            "return_index": True,
        }
        try:
            samples = dali_zarr.explain(**told)["samples"]
        except ValueError:
            continue
        found = [epoch(build(device, 4, **told, **more), samples) for more in ({}, {"segments": list(range(len(breaks) + 1))})]
        values = [[[out.tolist() for out in one] for one in some] for some in found]
        assert values[0] == values[1], told
        compared += 1
    assert compared > 20


def test_picked_elements(tmp_path, device):
    """Along a dimension of picked elements a new segment begins where these are of another episode."""
    arrays = write(tmp_path / "a.zarr", [4, 3, 5])
    picked = [0, 3, 1, 4, 6, 2, 7, 11, 8]
    pipe = build(
        device, 4, path=tmp_path / "a.zarr", arrays=["data/action"], dims=["t"], pick={"t": picked}, window=[3], step=[1],
        pad_before=[1], pad_after=[2], breaks="meta/episode_ends", out_of_bounds_policy="edge", return_mask=True, return_index=True,
    )
    check(pipe, rule([3, 2, 1, 3], 3, 1, 2), arrays["data/action"][picked], None)


def test_breaks_where_coordinates_are_uneven(tmp_path, device):
    values = np.arange(12, dtype=np.int32)
    times = np.array([0, 6, 12, 18, 48, 54, 60, 61, 67, 73, 79, 85])
    write_array(tmp_path, "g/a", values, layout=Layout((5,)), dims=("time",))
    args = {"path": tmp_path, "arrays": ["g/a"], "window": {"time": 2}, "step": {"time": 1}, "return_index": True}
    with pytest.raises(ValueError, match="no array 'time' beside the arrays"):
        build(device, 1, breaks="auto", **args)
    write_array(tmp_path, "time", times, layout=Layout((4,)), dims=("time",))
    found = epoch(build(device, 3, breaks="auto", **args), 9)
    breaks = (np.flatnonzero(np.diff(times) != 6) + 1).tolist()
    assert breaks == [4, 7]
    again = epoch(build(device, 3, breaks=breaks, **args), 9)
    assert [[out.tolist() for out in one] for one in found] == [[out.tolist() for out in one] for one in again]
    assert [one[-1].tolist() for one in found] == [[0, 0], [0, 1], [0, 2], [1, 4], [1, 5], [2, 7], [2, 8], [2, 9], [2, 10]]
    both = dali_zarr.explain(breaks=["auto", 2], **args)
    assert both["segments"] == {"count": 4, "read": 4, "padded_samples": 0.0} and both["samples"] == 8


def test_breaks_need_each_coordinate(tmp_path):
    write_array(tmp_path, "a", np.arange(9), layout=Layout((4,)), dims=("t",))
    write_array(tmp_path, "t", np.array([0.0, 1, 2, np.nan, 4, 5, 6, 7, 8]), layout=Layout((4,)), dims=("t",))
    with pytest.raises(ValueError, match="that of element 3 is missing"):
        build(path=tmp_path, arrays=["a"], dims=["t"], breaks="auto")


@pytest.mark.parametrize(
    ("ends", "found"),
    [
        ([-4, 9], "found -4 at element 0"), ([3, 10], "found 10 after 3 at element 1"), ([5, 4], "found 4 after 5 at element 1"),
        ([3, 2**62 + 1], f"found {2**62 + 1} after 3 at element 1"),
        ([2.0, 9.0], "found values of the type float64"), ([[3, 9]], "found the shape [1, 2]"),
        (np.array([3, 2**64 - 1], np.uint64), f"found {2**64 - 1} after 3 at element 1"),
        ([True, False], "found values of the type bool"),
    ],
    ids=str,
)
def test_hostile_ends_are_named(tmp_path, ends, found):
    write_array(tmp_path, "a", np.arange(9), layout=Layout((4,)), dims=("t",))
    ends = np.asarray(ends)
    write_array(tmp_path, "ends", ends, layout=Layout(ends.shape))
    with pytest.raises(ValueError, match=re.escape(found)) as error:
        build(path=tmp_path, arrays=["a"], dims=["t"], breaks="ends")
    assert "breaks: expected" in str(error.value) and "array 'ends'" in str(error.value)


def test_bad_arguments_are_named(tmp_path):
    write(tmp_path / "a.zarr", [4, 5])
    args: dict[str, Any] = {"path": tmp_path / "a.zarr", "arrays": ["data/action"], "dims": ["t"], "window": [3]}
    for bad, error, message in [
        ({"breaks": "meta/ends"}, ValueError, "found no array 'meta/ends'"),
        ({"breaks": 1.5}, TypeError, "breaks: expected integers"),
        ({"pad_before": 1}, ValueError, "pad_before: expected out_of_bounds_policy"),
        ({"pad_after": 3, "out_of_bounds_policy": "edge"}, ValueError, "pad_after: expected 0 to 2"),
        ({"breaks": "meta/episode_ends", "segments": [2]}, IndexError, "segments: segment 2 isn't one of the 2 segments"),
        ({"breaks": "meta/episode_ends", "segments": [1, -1]}, ValueError, "found segment 1 twice"),
        ({"breaks": "meta/episode_ends", "segments": []}, ValueError, "segments: expected at least one"),
        ({"breaks": "meta/episode_ends", "segments": [True]}, ValueError, "each of the 2 segments between breaks, found 1"),
        ({"breaks": "meta/episode_ends", "segments": [True, 1]}, TypeError, "found both"),
    ]:
        with pytest.raises(error, match=re.escape(message)):
            build(**args, **bad)


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_checkpoints_go_on_with_other_shards(many, device, shards):
    path, lengths, arrays = many
    args = {
        "path": path, "arrays": ["data/action"], "dims": ["t"], "window": [5], "step": [2], "pad_before": [2], "pad_after": [4],
        "breaks": "meta/episode_ends", "segments": list(range(40)), "out_of_bounds_policy": "edge", "return_mask": True,
        "return_index": True, "random_shuffle": True, "seed": 5, "pad_last_batch": True,
    }
    expected = {(one[0], one[1]): one[2] for one in rule(lengths, 5, 2, 4, 2, segments=list(range(40)))}
    pipe = build(device, 4, checkpointing=True, **args)
    seen = [to_numpy(pipe.run()[-1]) for _ in range(6)]
    state = pipe.checkpoint()
    left = len(expected) - 24
    for shard in range(shards):
        pipe = build(device, 4, checkpointing=True, checkpoint=state, shard_id=shard, num_shards=shards, **args)
        own = left * (shard + 1) // shards - left * shard // shards
        for sample in epoch(pipe, own):
            same(sample[0], arrays["data/action"][expected[tuple(sample[-1].tolist())]], "window")
            seen.append(sample[-1][None])
    assert sorted(map(tuple, np.concatenate(seen).tolist())) == sorted(expected)
    for other in ({"segments": list(range(1, 41))}, {"pad_before": [1]}, {"out_of_bounds_policy": "pad"}, {"return_mask": False}):
        with pytest.raises(Exception, match="checkpoint"):
            build(device, 4, checkpointing=True, checkpoint=state, **(args | other)).run()


def test_loaders_have_masks_and_coordinates(tmp_path):
    torch = pytest.importorskip("torch")
    from dali_zarr.torch import Loader

    lengths = [4, 3]
    arrays = write(tmp_path / "a.zarr", lengths)
    write_array(tmp_path / "a.zarr", "data/t", np.arange(7) * 10.0, layout=Layout((4,)), dims=("t",))
    args = {"path": tmp_path / "a.zarr", "arrays": ["data/action"], "dims": ["t"], "window": 3, "step": 1, "pad_before": 2,
            "pad_after": 2, "breaks": "meta/episode_ends", "return_mask": True, "device": "cpu", "batch_size": 20}
    for policy in ("edge", "pad"):
        (batch,) = Loader(**args, out_of_bounds_policy=policy)
        expected = rule(lengths, 3, 2, 2)
        assert list(batch) == ["data/action", "mask"]
        assert batch["mask"].dtype == torch.bool and batch["mask"].tolist() == [one[3].tolist() for one in expected]
        assert batch.index.tolist() == [[one[0], one[1]] for one in expected]
        times = np.stack([np.where(one[3] | (policy == "edge"), one[2] * 10.0, np.nan) for one in expected])
        np.testing.assert_array_equal(batch.coords["t"], times)
    (batch,) = Loader(**args, out_of_bounds_policy="edge", segments=[1])
    assert batch.index[:, 0].tolist() == [1] * 5
    own = [arrays["data/action"][one[2]] for one in expected if one[0] == 1]
    np.testing.assert_array_equal(batch["data/action"].numpy(), np.stack(own))


def test_explain_tells_segments(tmp_path):
    write(tmp_path / "a.zarr", [4, 3, 8])
    found = dali_zarr.explain(
        path=tmp_path / "a.zarr", arrays=["data/action"], dims=["t"], window=3, step=1, pad_before=1, breaks="meta/episode_ends",
        segments=[0, 2], out_of_bounds_policy="edge", return_mask=True,
    )
    expected = rule([4, 3, 8], 3, 1, 0, segments=[0, 2])
    assert found["samples"] == len(expected)
    assert found["segments"]["count"] == 3 and found["segments"]["read"] == 2
    assert found["segments"]["padded_samples"] == pytest.approx(np.mean([not one[3].all() for one in expected]))
    assert found["outputs"][-1]["name"] == "mask" and found["outputs"][-1]["shape"] == [3]
    assert "segments: 3, 2 of them read" in str(found) and json.dumps(found)


def test_a_million_episodes(tmp_path):
    """Opened and cut without quadratic work."""
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    total = 5_000_000
    group.create_array("a", shape=(total,), chunks=(1 << 18,), dtype="uint8", dimension_names=["t"])
    ends = np.arange(5, total + 1, 5)
    group.create_array("ends", shape=ends.shape, chunks=(1 << 18,), dtype="int64")[...] = ends
    args = {
        "path": tmp_path / "a.zarr", "arrays": ["a"], "dims": ["t"], "window": [4], "step": [1], "pad_before": [3],
        "pad_after": [3], "breaks": "ends", "out_of_bounds_policy": "edge", "return_index": True, "random_shuffle": True,
    }
    with pytest.raises(ValueError, match=r"host_memory_limit: expected at least \d+ bytes for .* of segments, and of the order"):
        build(batch_size=16, host_memory_limit=30 << 20, **args)
    pipe = build(batch_size=16, host_memory_limit=40 << 20, **args)
    assert pipe.reader_meta("reader")["epoch_size"] == 8 * len(ends)
    episode, start = to_numpy(pipe.run()[-1]).T
    assert ((start - 5 * episode >= -3) & (start - 5 * episode <= 4)).all()


def test_ends_of_another_store(tmp_path, monkeypatch):
    """By location, for arrays of a path and for those with stores of their own."""
    ends = np.array([4, 9, 20])
    write_array(tmp_path / "a.zarr", "x", np.arange(20), layout=Layout((6,)))
    write_array(tmp_path / "meta.zarr", "episode_ends", ends, zarr_format=2)
    monkeypatch.chdir(tmp_path)
    for breaks in ("./meta.zarr/episode_ends", tmp_path / "meta.zarr", ["./meta.zarr/episode_ends", 12]):
        for how in ({"path": "a.zarr", "arrays": "x"}, {"arrays": ["./a.zarr/x"]}):
            told = dali_zarr.explain(**how, breaks=breaks, window=[2], step=[1])
            assert told["segments"]["count"] == (4 if isinstance(breaks, list) else 3)
            assert told["samples"] == (3 + 4 + 2 + 7 if isinstance(breaks, list) else 3 + 4 + 10)
    parts = dali_zarr.splits(arrays=["./a.zarr/x"], breaks=tmp_path / "meta.zarr", train=slice(0, 2), test=[2])
    assert [one["segments"] for one in parts.values()] == [[0, 1], [2]]
    for concat in ("dims", "samples"):
        with pytest.raises(ValueError, match="breaks: .*each of the 2 stores there has segments of its own"):
            dali_zarr.explain(path=["a.zarr"] * 2, arrays="x", concat=concat, breaks="./meta.zarr/episode_ends")
    with pytest.raises(ValueError, match=r"breaks: .*nowhere\.zarr"):
        dali_zarr.explain(path="a.zarr", arrays="x", breaks="./nowhere.zarr/ends")
    write_array(tmp_path / "down.zarr", "ends", ends[::-1].copy())
    with pytest.raises(ValueError, match="from 0 to 20 in ascending order, but found 9 after 20 at element 1"):
        dali_zarr.explain(path="a.zarr", arrays="x", breaks="./down.zarr/ends")


def test_a_table_contradicts_choices_of_segments(tmp_path):
    """What a table of starts doesn't heed is refused."""
    write_array(tmp_path, "x", np.arange(20))
    edge = {"out_of_bounds_policy": "edge"}
    for how in ({"segments": [0], "breaks": [5]}, {"pad_before": [1], **edge}, {"pad_after": [1], **edge}):
        with pytest.raises(ValueError, match="starts says where samples start, which (segments|pad_before|pad_after) contradicts"):
            dali_zarr.explain(path=tmp_path, arrays="x", starts=[3, 4], window=[2], **how)

"""Selections along dims beside pads, edges, breaks, tables and stores of other shapes: what counts are the selected elements."""

from __future__ import annotations

from typing import Any

import dali_zarr
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvidia.dali import fn
from nvidia.dali.pipeline import Pipeline
from support.stores import Layout, write_array


def read(path, arrays=("a",), **args: Any) -> tuple[list[list[int]], list[list[Any]], list[str]]:
    """The epoch in order: index, values and source of each sample."""
    pipe = Pipeline(batch_size=4, num_threads=1, device_id=None, prefetch_queue_depth=1)
    with pipe:
        values, index = fn.zarr_reader(
            path=path, arrays=list(arrays), return_index=True, host_memory_limit="64MiB", name="reader", **args
        )
        pipe.set_outputs(index, values, fn.get_property(values, key="source_info"))
    pipe.build()
    found: tuple[list[Any], list[Any], list[str]] = ([], [], [])
    size = pipe.epoch_size("reader")
    while len(found[0]) < size:
        index, values, source = pipe.run()
        found[0].extend(np.array(one).tolist() for one in index)
        found[1].extend(np.array(one).tolist() for one in values)
        found[2].extend(bytes(np.array(one)).decode() for one in source)
    return found[0][:size], found[1][:size], found[2][:size]


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    path = tmp_path_factory.mktemp("regions") / "line.zarr"
    write_array(path, "a", np.arange(23, dtype="int32"), layout=Layout((4,)), dims=("t",))
    write_array(path, "ends", np.array([5, 6, 12, 23]), dims=("episode",))
    write_array(path, "t", np.arange(23) * 10, dims=("t",))
    return path


def expected(
    length: int, chosen: slice, window: int, stride: int, step: int, pads: tuple[int, int] | None, policy: str,
    breaks: list[int], offset: int,
) -> list[tuple[int, int, list[int]]]:
    """Segment, start and values of each sample of the elements 0, 1, ...: the windows of the selected ones, segment by segment."""
    stored = np.arange(length)
    selected = stored[chosen]
    number = np.searchsorted(breaks, selected, side="right")
    spacing = selected[1] - selected[0] if len(selected) > 1 else 1
    span = (window - 1) * stride + 1
    found = []

    def values(segment: int, at: int) -> list[int]:
        own = selected[number == segment]
        places = at + offset + np.arange(window) * stride
        places -= int(np.flatnonzero(number == segment)[0])
        inside = (places >= 0) & (places < len(own))
        taken = own[np.clip(places, 0, len(own) - 1)]
        return np.where(inside | (policy == "edge"), taken, -1).tolist()

    if pads is not None:
        # All that a sample reads counts: its start itself needs not be among it.
        least, most = offset, offset + span
        for segment in range(len(breaks) + 1):
            own = np.flatnonzero(number == segment)
            if not len(own):
                continue
            first, last = own[0] - pads[0] - least, own[-1] + 1 + pads[1] - most
            found += [(segment, at) for at in range(first, last + 1, step)]
        return [(s, int(selected[0] + at * spacing), values(s, at)) for s, at in found]
    for at in range(0, len(selected), step):
        first, last = at + offset, at + offset + span - 1
        if policy != "drop":
            found.append((int(number[at]), at))
        elif first >= 0 and last < len(selected) and number[first] == number[last]:
            found.append((int(number[first]), at))
    return [(s, int(selected[at]), values(s, at)) for s, at in found]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_everything_counts_selected_elements(line, data):
    """Windows, steps, strides, offsets, pads and edges of every n-th element, between breaks of the whole dimension."""
    draw = data.draw
    chosen = slice(draw(st.integers(0, 4)), draw(st.sampled_from([None, 22, 21, -1])), draw(st.integers(1, 4)))
    window, stride, step = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    span = (window - 1) * stride + 1
    policy = draw(st.sampled_from(["drop", "pad", "edge"]))
    has_pads = policy != "drop" and draw(st.booleans())
    pads = (draw(st.integers(0, span - 1)), draw(st.integers(0, span - 1))) if has_pads else None
    breaks = sorted(draw(st.sets(st.integers(1, 22), max_size=4)))
    # With an offset and without pads a sample may belong to another segment than its start: see test_episodes.
    offset = draw(st.integers(-2, 2)) if has_pads or policy == "drop" else 0
    args: dict[str, Any] = {"window": {"t": window}, "stride": {"t": stride}, "step": {"t": step}, "offsets": [offset]}
    if has_pads:
        args |= {"pad_before": {"t": pads[0]}, "pad_after": {"t": pads[1]}}
    wanted = expected(23, chosen, window, stride, step, pads, policy, breaks, offset)
    args |= {"isel": {"t": chosen}, "breaks": breaks, "out_of_bounds_policy": policy, "fill_value": -1}
    if not wanted:
        with pytest.raises(ValueError, match="fit at no start"):
            read(line, **args)
        return
    index, values, _ = read(line, **args)
    assert values == [one for _, _, one in wanted]
    assert index == [[segment, start] if breaks else [start] for segment, start, _ in wanted]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_gaps_are_breaks(line, data):
    """Bools say which elements there are: windows have no others, and lie in one run, between breaks that are given."""
    draw = data.draw
    mask = np.array(draw(st.lists(st.booleans(), min_size=23, max_size=23).filter(any)))
    window, step = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    policy, breaks = draw(st.sampled_from(["drop", "edge"])), sorted(draw(st.sets(st.integers(1, 22), max_size=3)))
    # Which run an element belongs to; -1 to none.
    borders = [at for at in range(1, 23) if mask[at] != mask[at - 1] or at in breaks]
    run = np.where(mask, np.searchsorted(borders, np.arange(23), side="right"), -1)
    first, wanted = int(np.argmax(mask)), []
    for start in range(first, 23, step):
        own = np.flatnonzero(run == run[start])
        if mask[start] and (policy == "edge" or start + window - 1 <= own[-1]):
            wanted.append((start, np.minimum(np.arange(start, start + window), own[-1]).tolist()))
    args = {
        "isel": {"t": mask if draw(st.booleans()) else mask.tolist()}, "window": [window], "step": [step], "breaks": breaks,
        "out_of_bounds_policy": policy,
    }
    if not wanted:
        with pytest.raises(ValueError, match="fit at no start"):
            read(line, **args)
        return
    index, values, _ = read(line, **args)
    assert [(one[-1], of) for one, of in zip(index, values, strict=True)] == wanted


@pytest.mark.parametrize("breaks", [[], [4, 13], [10]], ids=str)
@pytest.mark.parametrize("gaps", [[(12, 15)], [(3, 5), (8, 10)], [(9, 11)], [(0, 2), (5, 6), (18, 25)]], ids=str)
def test_gaps_beside_borders_of_stores(tmp_path, gaps, breaks):
    """Segments are numbered with the borders that samples may not cross: no other elements are read than those selected."""
    paths, first = [], 0
    for number, length in enumerate((10, 6, 9)):
        paths.append(str(tmp_path / f"{number}.zarr"))
        write_array(paths[-1], "a", np.arange(first, first + length), layout=Layout((4,)), dims=("t",))
        first += length
    chosen = np.ones(25, bool)
    for start, end in gaps:
        chosen[start:end] = False
    cuts = {10, 16, *breaks, *(at for gap in gaps for at in gap)} - {0, 25}
    windows = [at for at in range(24) if chosen[at : at + 2].all() and at + 1 not in cuts]
    args = {"path": paths, "isel": {"t": chosen}, "cross_stores": False} | ({"breaks": breaks} if breaks else {})
    index, values, _ = read(window=[2], step=[1], **args)
    assert values == [[at, at + 1] for at in windows]
    assert index == [[sum(cut <= at for cut in cuts), at] for at in windows]
    found = dali_zarr.statistics(arrays=["a"], **args)["arrays"]["a"]
    assert found["count"] == chosen.sum() and found["mean"] == pytest.approx(np.flatnonzero(chosen).mean())


def test_gaps_of_labels_are_breaks(tmp_path):
    """A year whose days aren't in order, and two stores of which the later one comes first."""
    days = np.array(["2019-12-30", "2020-01-01", "2020-01-02", "2019-12-31", "2020-01-03"], "M8[D]")
    write_array(tmp_path / "s", "a", np.arange(5), dims=("t",), layout=Layout((2,)))
    write_array(
        tmp_path / "s", "t", (days - days[0]).astype("int64"), dims=("t",), attributes={"units": "days since 2019-12-30"}
    )
    assert read(tmp_path / "s", sel={"t": "2020"}, window=[2], step=[1])[1] == [[1, 2]]
    assert read(tmp_path / "s", sel={"t": "2020"})[1] == [1, 2, 4]
    loader = pytest.importorskip("dali_zarr.torch").Loader(
        str(tmp_path / "s"), arrays=["a"], sel={"t": "2020"}, batch_size=3, device="cpu", host_memory_limit="64MiB"
    )
    (batch,) = loader
    assert batch["a"].tolist() == [1, 2, 4]
    assert batch.coords["t"].astype("M8[D]").tolist() == days[[1, 2, 4]].tolist()


def test_breaks_beside_gaps_are_checked(line):
    mask = (np.arange(23) > 2) & (np.arange(23) != 8)
    args: dict[str, Any] = {"isel": {"t": mask}, "window": [3], "step": [1]}
    assert read(line, breaks=[-8], **args)[:2] == read(line, breaks=[15], **args)[:2]
    assert [14, 15, 16] not in read(line, breaks=[-8], **args)[1]
    for wrong in (999, -24, 0):
        with pytest.raises(ValueError, match="breaks"):
            read(line, breaks=[wrong], **args)


def test_what_gaps_exclude(line, tmp_path):
    mask = np.arange(23) % 5 < 2
    write_array(tmp_path / "s", "a", np.zeros((23, 4)), dims=("t", "y"))
    with pytest.raises(ValueError, match="sel: 't': the selection has gaps, which can't be where a list along 'y' says"):
        dali_zarr.explain(path=str(tmp_path / "s"), arrays=["a"], dims=["t", "y"], isel={"t": mask, "y": [0, 2]})
    for other in ({"segments": [0]}, {"breaks": "ends"}, {"starts": np.array([[1]])}):
        with pytest.raises(ValueError, match=f"the selection has gaps, .* so {next(iter(other))} can't be given"):
            dali_zarr.explain(path=str(line), arrays=["a"], isel={"t": mask}, **other)
    with pytest.raises(ValueError, match="expected at least one element"):
        dali_zarr.explain(path=str(line), arrays=["a"], isel={"t": np.zeros(23, bool)})


@pytest.mark.parametrize("policy", ["edge", "pad"])
def test_pads_count_selected_elements(line, policy):
    found = read(line, isel={"t": slice(1, 10, 2)}, window=[2], pad_before=1, out_of_bounds_policy=policy, fill_value=-1)
    assert found[:2] == ([[-1], [3], [7]], [[1 if policy == "edge" else -1, 1], [3, 5], [7, 9]])


def test_pads_stay_beside_a_dropped_dimension(tmp_path):
    write_array(tmp_path, "a", np.arange(12, dtype="int32").reshape(6, 2), dims=("t", "level"))
    index, values, _ = read(
        tmp_path, isel={"level": 1, "t": slice(None, None, 2)}, window={"t": 2}, step={"t": 1}, pad_before=[1],
        out_of_bounds_policy="edge",
    )
    assert (index, values) == ([[-2, 1], [0, 1], [2, 1]], [[1, 1], [1, 5], [5, 9]])


@pytest.mark.parametrize("breaks", [[5], "half"])
def test_edges_are_selected_elements(line, breaks):
    if breaks == "half":
        write_array(line, "half", np.array([5, 23]), dims=("episode",))
    args = {"window": {"t": 3}, "step": {"t": 1}, "out_of_bounds_policy": "edge", "breaks": breaks}
    index, values, _ = read(line, isel={"t": slice(0, 12, 3)}, **args)
    assert (index, values) == ([[0, 0], [0, 3], [1, 6], [1, 9]], [[0, 3, 3], [3, 3, 3], [6, 9, 9], [9, 9, 9]])
    loader_module = pytest.importorskip("dali_zarr.torch")
    loader = loader_module.Loader(
        path=str(line), arrays=["a"], isel={"t": slice(0, 12, 3)}, batch_size=4, device="cpu", host_memory_limit="64MiB", **args
    )
    assert next(iter(loader)).coords["t"].tolist() == (np.array(values) * 10).tolist()


@pytest.mark.parametrize("how", [{"roi_start": {"t": 6}}, {"isel": {"t": slice(6, None)}}, {"sel": {"t": slice(60, None)}}])
def test_segments_keep_their_numbers(line, how):
    """They are numbered over the whole dimension, whatever the region is."""
    args: dict[str, Any] = {"window": {"t": 2}, "breaks": "ends", **how}
    index, values, sources = read(line, segments=[2], **args)
    assert (index, values) == ([[2, 6], [2, 8], [2, 10]], [[6, 7], [8, 9], [10, 11]])
    assert sources[0].endswith(" segment=2 t=6")
    assert {one[0] for one in read(line, **args)[0]} == {2, 3}
    assert read(line, segments=[False, False, True, False], **args) == (index, values, sources)
    padded = read(line, segments=[-1], out_of_bounds_policy="pad", pad_before={"t": 1}, fill_value=-1, **args)
    assert (padded[0][0], padded[1][0]) == ([3, 11], [-1, 12])
    with pytest.raises(ValueError, match="in one of the segments that were chosen"):
        read(line, segments=[0, 1], **args)


@pytest.fixture
def two(tmp_path):
    """Two stores whose coordinates and shapes differ."""
    stored = []
    for i, (first, length, width) in enumerate([(0, 10, 4), (4, 7, 6)]):
        stored.append(np.arange(length * width, dtype="int32").reshape(length, width) + 1000 * i)
        write_array(tmp_path / str(i), "a", stored[-1], dims=("t", "y"), layout=Layout((3, 2)))
        write_array(tmp_path / str(i), "t", np.arange(length) + first, dims=("t",))
        write_array(tmp_path / str(i), "y", np.arange(width), dims=("y",))
    return [tmp_path / "0", tmp_path / "1"], stored


SELECTIONS = [
    ({"isel": {"y": slice(0, 2)}}, [(slice(None), slice(0, 2))] * 2),
    ({"sel": {"y": slice(0, 1)}}, [(slice(None), slice(0, 2))] * 2),
    ({"isel": {"y": slice(1, None)}}, [(slice(None), slice(1, None))] * 2),
    ({"isel": {"t": slice(-4, None), "y": slice(None, None, 2)}}, [(slice(-4, None), slice(None, None, 2))] * 2),
    ({"sel": {"t": slice(5, 8)}}, [(slice(5, 9), slice(None)), (slice(1, 5), slice(None))]),
    ({"sel": {"t": slice(5, 8)}, "roi_start": {"y": -3}}, None),
]


@pytest.mark.parametrize(("how", "parts"), SELECTIONS)
def test_each_store_has_its_own_region(two, how, parts):
    """Of stores that come one after the other nothing is cut to what the first one has."""
    paths, stored = two
    args = {"concat": "samples", "window": {"t": 2, "y": 2}, **how}
    if parts is None:
        with pytest.raises(ValueError, match="roi_start: expected roi_start or a selection along dims"):
            read(paths, **args)
        return
    wanted_index, wanted = [], []
    for number, (values, part) in enumerate(zip(stored, parts, strict=True)):
        places = np.array(np.meshgrid(*(np.arange(n)[s] for n, s in zip(values.shape, part, strict=True)), indexing="ij"))
        own = values[part]
        for t in range(0, own.shape[0] - 1, 2):
            for y in range(0, own.shape[1] - 1, 2):
                wanted.append(own[t : t + 2, y : y + 2].tolist())
                wanted_index.append([number, *places[:, t, y].tolist()])
    index, values, _ = read(paths, **args)
    assert values == wanted
    assert index == wanted_index


def test_a_region_counts_from_the_end_of_each_store(two):
    paths, stored = two
    index, values, _ = read(paths, concat="samples", window={"t": 3}, dims=["t"], roi_start={"t": -3}, isel={"y": -1})
    assert index == [[0, 7, 3], [1, 4, 5]]
    assert values == [stored[0][7:, -1].tolist(), stored[1][4:, -1].tolist()]


@pytest.mark.parametrize("concat", ["dims", "samples"])
def test_a_single_label_is_named_by_its_position(tmp_path, concat):
    for i, first in enumerate([0, 4]):
        write_array(tmp_path / str(i), "a", np.arange(24, dtype="int32").reshape(6, 4) + 100 * i, dims=("t", "y"))
        write_array(tmp_path / str(i), "t", np.arange(6) + first, dims=("t",))
        write_array(tmp_path / str(i), "y", np.arange(4) + 4 * i, dims=("y",))
    paths = [str(tmp_path / "0"), str(tmp_path / "1")]
    args: dict[str, Any] = {"dims": ["y"], "window": [2], "sel": {"t": 5}, "concat": concat}
    index, values, sources = read(paths, **args)
    assert values == [[20, 21], [22, 23], [104, 105], [106, 107]]
    starts = [[0, 5], [2, 5], [4, 1], [6, 1]] if concat == "dims" else [[0, 0, 5], [0, 2, 5], [1, 0, 1], [1, 2, 1]]
    assert index == starts
    assert [source.split(" t=")[1] for source in sources] == ["5", "5", "1", "1"]
    loader_module = pytest.importorskip("dali_zarr.torch")
    loader = loader_module.Loader(path=paths, arrays=["a"], batch_size=4, device="cpu", host_memory_limit="64MiB", **args)
    coords = next(iter(loader)).coords
    assert coords["t"].tolist() == [5, 5, 5, 5]
    assert coords["y"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_starts_beside_a_selection_with_a_step(line):
    index, values, _ = read(line, isel={"t": slice(1, None, 2)}, window={"t": 2}, starts=[1, 5, 19])
    assert (index, values) == ([[1], [5], [19]], [[1, 3], [5, 7], [19, 21]])
    with pytest.raises(ValueError, match='row 1 starts at 4 along "t", which isn\'t selected: .* selects every 2 elements'):
        read(line, isel={"t": slice(1, None, 2)}, window={"t": 2}, starts=[1, 4])
    with pytest.raises(ValueError, match="starts, step: starts says where samples start, which step contradicts"):
        read(line, isel={"t": slice(1, None, 2)}, window={"t": 2}, step={"t": 1}, starts=[1])


def test_starts_need_no_column_for_a_single_element(tmp_path):
    write_array(tmp_path, "a", np.arange(12, dtype="int32").reshape(6, 2), dims=("t", "level"))
    for starts in ([0, 3], [[0, 1], [3, 1]]):
        index, values, _ = read(tmp_path, window={"t": 2}, isel={"level": 1}, starts=starts)
        assert (index, values) == ([[0, 1], [3, 1]], [[1, 3], [7, 9]])
    with pytest.raises(ValueError, match=r"a column for each of dims \(t\), but the table has 3 columns"):
        read(tmp_path, window={"t": 2}, isel={"level": 1}, starts=[[0, 1, 1]])


@pytest.mark.parametrize("pads", [0, [0], np.array([0]), {"t": 0}], ids=str)
def test_pads_of_no_elements_beside_a_dropped_dimension(tmp_path, pads):
    write_array(tmp_path, "a", np.arange(8, dtype="int32").reshape(4, 2), dims=("t", "level"))
    index, values, _ = read(tmp_path, isel={"level": 1}, window=[2], step=[1], pad_after=pads, out_of_bounds_policy="edge")
    assert (index, values) == ([[0, 1], [1, 1], [2, 1]], [[1, 3], [3, 5], [5, 7]])


@pytest.mark.parametrize("name", ["window", "stride", "step", "overlap", "pad_before", "pad_after"])
def test_names_are_checked_beside_a_selection(line, name):
    args = {"isel": {"t": slice(1, 9)}, "dims": ["t"], "out_of_bounds_policy": "edge"}
    with pytest.raises(ValueError, match=f"{name}: .*nowhere"):
        read(line, **args, **{name: {"nowhere": 1}})
    with pytest.raises(ValueError, match=f"{name}: .*nothing"):
        read(line, **args, **{name: {"nothing": {"t": 1}}})


def test_a_slice_with_a_step_is_not_cropped_at_random(line):
    with pytest.raises(ValueError, match="isel: 't': expected a slice without a step along a dimension of random_crop.* step 2"):
        read(line, isel={"t": slice(1, 9, 2)}, window={"t": 2}, random_crop=["t"])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"starts": [2**41], "out_of_bounds_policy": "pad"}, 'row 0 starts at .* along "t", more than 2.40 elements from'),
        ({"starts": []}, "starts: expected at least one row, but found none"),
        ({"weights": []}, "weights: expected at least one number, but found none"),
    ],
)
def test_what_is_refused(line, args, words):
    with pytest.raises(ValueError, match=words):
        read(line, window={"t": 2}, **args)


def test_stores_without_room_for_a_window_have_no_samples(tmp_path):
    paths = []
    for i, shape in enumerate([(2, 8), (6, 3), (5, 5), (1, 1)]):
        paths.append(tmp_path / str(i))
        write_array(paths[-1], "a", np.full(shape, i, "int32"), dims=("y", "x"), layout=Layout((2, 2)))
    for more in ({}, {"random_shuffle": True}, {"random_crop": ["x"]}, {"random_crop": ["x", "y"], "samples_per_volume": 2}):
        index, values, _ = read(paths, concat="samples", window={"y": 3, "x": 3}, **more)
        assert {one[0] for one in index} == {1, 2}
        assert all(np.unique(one).tolist() == [at[0]] for at, one in zip(index, values, strict=True))
    assert dali_zarr.explain(path=paths, arrays=["a"], concat="samples", window={"y": 3, "x": 3})["samples"] == 3
    with pytest.raises(ValueError, match=r"store .*0: window: along \"y\" a sample spans 7 elements"):
        read(paths, concat="samples", window={"y": 7, "x": 1})


def test_a_step_longer_than_a_store(tmp_path):
    """The last selected element needs none behind it, in any store."""
    for name, length in (("a", 2), ("b", 6)):
        write_array(tmp_path / name, "a", np.arange(length, dtype="int32"), dims=("x",))
    paths = [str(tmp_path / name) for name in "ab"]
    for chosen, starts in [
        (slice(0, -1, 3), [[0, 0], [1, 0], [1, 3]]), (slice(None, None, 5), [[0, 0], [1, 0], [1, 5]]),
        (slice(1, None, 4), [[0, 1], [1, 1], [1, 5]]), (slice(0, None, 9), [[0, 0], [1, 0]]),
    ]:
        index, values, _ = read(paths, concat="samples", isel={"x": chosen})
        assert index == starts and values == [at for _, at in starts], chosen
        assert read(paths[1:], isel={"x": chosen})[0] == [[at] for store, at in starts if store], chosen
    # A store with one element has no pair.
    assert read(paths, concat="samples", isel={"x": slice(0, -1, 3)}, window={"x": 2})[:2] == ([[1, 0]], [[0, 3]])
    padded = read(paths, concat="samples", isel={"x": slice(0, -1, 3)}, window={"x": 2}, step={"x": 1}, out_of_bounds_policy="edge")
    assert padded[:2] == ([[0, 0], [1, 0], [1, 3]], [[0, 0], [0, 3], [3, 3]])


def test_slices_of_segments_are_counted_as_samples_are_cut(tmp_path):
    """How many segments there are depends on the step of a selection, and on what windows say of the dimensions."""
    write_array(tmp_path / "s", "a", np.arange(11, dtype="int32"), layout=Layout((3,)), dims=("x",))
    for chosen, last in ((slice(-11, 13, 3), 9), (slice(0, 10, 4), 8), (slice(1, None, 5), 6)):
        index, values, _ = read(tmp_path / "s", isel={"x": chosen}, segments=slice(None, None, 2))
        assert [[value] for value in values] == index and values[-1] == last, (index, values)
    # Stores that differ along a dimension of which each sample has one element.
    for store, length in (("0", 1), ("1", 3)):
        write_array(tmp_path / store, "one", np.arange(length, dtype="int32") + 10 * length, dims=("t",))
        write_array(tmp_path / store, "two", np.arange(4, dtype="int32").reshape(2, 2), dims=("y", "x"))
    paths, names = [str(tmp_path / "0"), str(tmp_path / "1")], ["one", "two"]
    whole = read(paths, names[:1], dims=["t"], window={"t": 0})
    assert read(paths, names[:1], dims=["t"], window={"t": 0}, segments=slice(0, 1)) == whole
    told = {"path": paths, "arrays": ["two", "one"], "window": {"t": 0}, "cross_stores": False}
    parts = dali_zarr.splits(**told, by="segments", train=slice(0, 1), test=slice(1, None))
    assert [part["segments"] for part in parts.values()] == [[0], [1]]

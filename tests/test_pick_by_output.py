"""``pick`` by output: outputs have other elements of one array, or of several arrays, beside NumPy's indexing."""

from __future__ import annotations

import json
from typing import Any

import dali_zarr
import numpy as np
import pytest
import zarr
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.command_line import command
from support.pipelines import build, same, to_numpy

EXAMPLES = 120
TIMES, LEVELS, CHANNELS = 9, 5, 4
ARRAYS = {"a": ("t", "level", "c"), "b": ("t", "c"), "d": ("t", "level", "x")}
LENGTHS = {"t": TIMES, "level": LEVELS, "c": CHANNELS, "x": 3}


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> tuple[Any, dict[str, np.ndarray]]:
    path = tmp_path_factory.mktemp("pick") / "s.zarr"
    root, rng = zarr.create_group(path), np.random.default_rng(0)
    written = {}
    for name, dims in ARRAYS.items():
        written[name] = rng.random([LENGTHS[dim] for dim in dims]).astype("float32")
        chunks = tuple(max(LENGTHS[dim] // 2, 1) for dim in dims)
        root.create_array(name, data=written[name], chunks=chunks, dimension_names=list(dims))
    for dim in ("level", "c"):
        root.create_array(dim, data=np.arange(LENGTHS[dim]) * 10.0 + 5, dimension_names=[dim])
    return path, written


def taken(values: np.ndarray, dims: tuple[str, ...], picks: dict[str, list[int]]) -> np.ndarray:
    for axis, dim in enumerate(dims):
        if dim in picks:
            values = values.take(picks[dim], axis)
    return values


def lists(dim: str) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(-LENGTHS[dim], LENGTHS[dim] - 1), min_size=1, max_size=5)


@st.composite
def cases(draw) -> dict[str, Any]:
    """Outputs by name, each of some array; what is picked of each; and what is picked of all."""
    outputs = {f"out{i}": draw(st.sampled_from(list(ARRAYS))) for i in range(draw(st.integers(1, 4)))}
    of_all: dict[str, list[int]] = {}
    own: dict[str, dict[str, list[int]]] = {name: {} for name in outputs}
    if draw(st.booleans()):
        of_all["t"] = draw(lists("t"))
    for dim in ("level", "c", "x"):
        having = [name for name, array in outputs.items() if dim in ARRAYS[array]]
        how = draw(st.sampled_from(["none", "all", "own", "own"])) if having else "none"
        if how == "all":
            of_all[dim] = draw(lists(dim))
        for name in having if how == "own" else ():
            if draw(st.booleans()):
                # By position in the output's own array, or by name.
                own[name][dim] = draw(lists(dim))
    by_position = draw(st.booleans())
    return {"outputs": outputs, "of_all": of_all, "own": own, "by_position": by_position, "window": draw(st.integers(0, 2))}


def argument(case: dict[str, Any]) -> dict[Any, Any]:
    given_: dict[Any, Any] = dict(case["of_all"])
    for name, picks in case["own"].items():
        dims = ARRAYS[case["outputs"][name]]
        if picks:
            given_[name] = {dims.index(dim) if case["by_position"] else dim: items for dim, items in picks.items()}
    return given_


@settings(max_examples=EXAMPLES, deadline=None)
@given(cases())
def test_values_are_those_of_numpy(store, case):
    path, written = store
    window = case["window"]
    samples = len(case["of_all"].get("t", range(TIMES))) // max(window, 1)
    assume(samples)
    pipe = build(batch_size=samples, path=path, arrays=case["outputs"], pick=argument(case), dims=["t"], window=[window])
    found = [to_numpy(output) for output in pipe.run()]
    for i, name in enumerate(case["outputs"]):
        dims = ARRAYS[case["outputs"][name]]
        values = taken(written[case["outputs"][name]], dims, case["of_all"] | case["own"][name])
        expected = [values[s * max(window, 1) : (s + 1) * max(window, 1)] for s in range(samples)]
        for s, one in enumerate(expected):
            same(found[i][s], one if window else one[0], f"{name} of sample {s}")


GIVEN: dict[str, Any] = {"arrays": {"source": "a", "target": "a"}, "dims": ["t"]}
PICK: dict[str, Any] = {"source": {"c": [0], "level": [4]}, "target": {"c": [2, 1]}}


def test_loaders_and_their_labels(store, device):
    """Labels of what each output has; ``sel`` stands beside it along another dimension."""
    pytest.importorskip("torch")
    from dali_zarr.torch import Loader

    path, written = store
    a = written["a"]
    loader = Loader(path, **GIVEN, pick=PICK, batch_size=4, random_shuffle=True, device=device)
    for batch in loader:
        for i, (t,) in enumerate(batch.index.tolist()):
            same(batch["source"][i].cpu().numpy(), a[t][[4]][:, [0]], "source")
            same(batch["target"][i].cpu().numpy(), a[t][:, [2, 1]], "target")
        assert set(batch.coords) == {"t"}
        assert batch.coords_of("source")["c"].tolist() == [5.0] and batch.coords_of("source")["level"].tolist() == [45.0]
        assert batch.coords_of("target")["c"].tolist() == [25.0, 15.0] and "level" not in batch.coords_of("target")
    by_channel = {"source": {"c": [3]}, "target": {"c": [2, 1]}}
    selected = Loader(path, **GIVEN, pick=by_channel, sel={"level": [45.0, 5.0]}, batch_size=9, device=device)
    batch = next(iter(selected))
    same(batch["source"].cpu().numpy(), a[:, [4, 0]][:, :, [3]], "source")
    same(batch["target"].cpu().numpy(), a[:, [4, 0]][:, :, [2, 1]], "target")
    assert batch.coords["level"].tolist() == [45.0, 5.0] and "c" not in batch.coords
    with pytest.raises(ValueError, match="pick: 'c': expected pick or a selection, but found isel too"):
        Loader(path, **GIVEN, pick=by_channel, isel={"c": 1}, device="cpu")


def test_states_tell_other_picks(store):
    pytest.importorskip("torch")
    from dali_zarr.torch import Loader

    path, _ = store
    loader = Loader(path, **GIVEN, pick=PICK, device="cpu")
    next(iter(loader))
    state = loader.state_dict()
    same_elements = {"source": {"c": [-4], "level": [-1]}, "target": {"c": [2, 1]}}
    Loader(path, **GIVEN, pick=same_elements, device="cpu").load_state_dict(state)
    other = Loader(path, **GIVEN, pick=PICK | {"target": {"c": [2, 3]}}, device="cpu")
    with pytest.raises(ValueError, match=r"array .a.: shape: .*\[2,1\].* in the checkpoint"):
        other.load_state_dict(state)
        next(iter(other))


def test_a_stack_of_other_channels(store):
    """A stack has as many elements of each array; each may have its own, with its own mean."""
    path, written = store
    stacked = build(
        batch_size=TIMES, path=path, arrays={"one": "b", "other": "b"}, stack_arrays=True, dims=["t"],
        pick={"one": {"c": [1, 3]}, "other": {"c": [0, 2]}}, mean={"one": 1.0, "other": 2.0},
    )
    values = to_numpy(stacked.run()[0])
    b = written["b"].astype("float64")
    same(values, np.stack([b[:, [1, 3]] - 1, b[:, [0, 2]] - 2], 1).astype("float32"), "stack")


def test_stores_have_their_own_lists(tmp_path):
    """Joined, and with samples of each store."""
    values = [np.random.default_rng(i).random((4, 3 + i)).astype("float32") for i in range(2)]
    paths = [tmp_path / f"{i}.zarr" for i in range(2)]
    for path, one in zip(paths, values, strict=True):
        zarr.create_group(path).create_array("a", data=one, dimension_names=["t", "c"])
    pick = {"source": {"c": [[0], [3]]}, "target": {"c": [[2, 1], [0, 1]]}}
    for concat in ("dims", "samples"):
        found = build(batch_size=8, path=paths, arrays={"source": "a", "target": "a"}, pick=pick, dims=["t"], concat=concat).run()
        same(to_numpy(found[0]), np.concatenate([values[0][:, [0]], values[1][:, [3]]]), f"source, {concat}")
        same(to_numpy(found[1]), np.concatenate([values[0][:, [2, 1]], values[1][:, [0, 1]]]), f"target, {concat}")


def test_explain_and_statistics(store):
    path, written = store
    told = dali_zarr.explain(path=path, **GIVEN, pick=PICK)
    assert [output["shape"] for output in told["outputs"]] == [[1, 1], [LEVELS, 2]]
    pick = {"one": {"c": [1], "level": [4, 0]}, "other": {"x": [2]}}
    found = dali_zarr.statistics(path, arrays={"one": "a", "other": "d"}, dims=["t"], pick=pick)["arrays"]
    for name, values in {"a": written["a"][:, [4, 0]][:, :, [1]], "d": written["d"][:, :, [2]]}.items():
        assert found[name]["mean"] == pytest.approx(values.astype("float64").mean(), rel=1e-12)
        assert found[name]["count"] == values.size


@pytest.mark.parametrize(
    ("pick", "error", "words"),
    [
        ({"other": {"c": [0]}}, ValueError, "pick: there is no output 'other'; the outputs are 'source', 'target'"),
        ({"source": {"x": [0]}}, ValueError, 'pick: no array has a dimension "x"'),
        ({"source": {"c": [4]}}, IndexError, "pick: index 4 is outside dimension"),
        ({"source": {"c": [0]}, "c": [1]}, ValueError, 'pick: dimension "c".* is named twice'),
        ({"source": {"t": [0, 1]}}, ValueError, "expected the same indices for all outputs along \"t\", one of dims"),
        ({"source": {"c": [0.5]}}, TypeError, "pick: 'source': 'c': expected whole numbers .* but found float"),
        ({"source": {"c": {"deep": [0]}}}, TypeError, "pick: 'source': expected indices by dimension, but found another dict"),
        ({"nothing": {}}, ValueError, "expected indices of output 'nothing', but found none"),
        ({"source": [0]}, ValueError, 'pick: no array has a dimension "source"'),
    ],
    ids=str,
)
def test_wrong_picks(store, pick, error, words):
    with pytest.raises(error, match=words):
        dali_zarr.explain(path=store[0], **GIVEN, pick=pick)


def test_read_groups_have_one_pick(store):
    from dali_zarr._loading.parts import Rank, divided
    from dali_zarr._selection.axes import Axes

    found = {"path": str(store[0]), **GIVEN, "pick": [{"source": ["c=0"]}]}
    with pytest.raises(ValueError, match="read_group: expected the same pick for all outputs"):
        divided(found, [0], Rank("level", 0, 2, True), Axes.of_reader(found))


@pytest.mark.parametrize("words", [["target=c=2,1"], ["c=1"], ["target=c=2,1", "source=c=1"]], ids=" ".join)
def test_commands(store, monkeypatch, capsys, words):
    picks = {"target=c=2,1": {"target": {"c": [2, 1]}}, "source=c=1": {"source": {"c": [1]}}, "c=1": {"c": [1]}}
    pick = {key: own for word in words for key, own in picks[word].items()}
    arrays = [f"{name}={array}" for name, array in GIVEN["arrays"].items()]
    status, out, err = command(
        monkeypatch, capsys, "explain", store[0], "--json", "--arrays", *arrays, "--dims", *GIVEN["dims"], "--pick", *words
    )
    assert status == 0, err
    expected = dali_zarr.explain(path=store[0], **GIVEN, pick=pick)["outputs"]
    assert [output["shape"] for output in json.loads(out)["outputs"]] == [output["shape"] for output in expected]


def test_words_of_a_command():
    from dali_zarr._commands.words import _picked

    assert _picked("level=0:3,7") == "level=0,1,2,7"
    assert _picked("target=level=0:3") == {"target": "level=0,1,2"}

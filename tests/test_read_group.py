"""Ranks that read the same samples, each its part of a dimension, and gather the parts: batches, orders and states are those of a
loader in one process."""

from __future__ import annotations

import numpy as np
import pytest
from support.read_groups import LEVELS, backends, passes, write

torch = pytest.importorskip("torch", reason="the Loader for PyTorch needs it")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("read_group"))


def needs_gpus(backend: str, world: int) -> None:
    if backend == "nccl" and torch.cuda.device_count() < world:
        pytest.skip("it needs a GPU for each rank")


def random_case(random: np.random.Generator) -> dict:
    """Arguments of a loader."""
    def may(share=0.5):
        return random.random() < share

    is_stack = may(0.2)
    arrays = ["field", "other"] if is_stack else random.permutation(["field", "other", "surface", "hour"])[: random.integers(1, 5)]
    arrays = [str(name) for name in arrays]
    if arrays == ["hour"]:
        arrays = ["surface", "hour"]
    has_levels = bool({"field", "other"} & set(arrays))
    given: dict = {"arrays": arrays, "batch_size": int(random.integers(1, 5)), "return_index": may()}
    if is_stack:
        given["stack_arrays"] = True
    if may():
        given["random_shuffle"] = True
        given["seed"] = int(random.integers(100))
    if may():
        given["offsets"] = [[0, 2], {"input": 0, "target": [1, 3]}, {"now": 1, "then": 2}][random.integers(3)]
    if may(0.3):
        given["window"] = [2]
        if may():
            given |= {"out_of_bounds_policy": "pad", "return_mask": True, "step": [1]}
    if may(0.4) and (is_stack or arrays[0] in ("field", "other")):
        name = "stacked" if is_stack else arrays[0]
        order = ["cell", "..."] if may() else ["...", "level"]
        given["transpose"] = {name: order} if not is_stack else order
    if may(0.4):
        given |= {"mean": 0.5, "stddev": 2.0}
    elif may(0.3):
        given["dtype"] = "float16"
    selections = [slice(3, 20), slice(1, 22, 3), [7, 2, 21, 14, 9], slice(4, 8)]
    if may():
        given["isel"] = {"cell": selections[random.integers(4)]}
    given["read_dim"] = "level" if has_levels and may(0.3) else ["cell", None][random.integers(2)]
    how = random.integers(4)
    given |= [{}, {"drop_last": True}, {"pad_last_batch": True}, {"uneven": "exact"}][how]
    given["gather"] = may(0.75)
    return given


def as_text(case: dict) -> dict:
    """The case for JSON."""
    isel = case.get("isel", {})
    isel = {dim: ["slice", one.start, one.stop, one.step] if isinstance(one, slice) else one for dim, one in isel.items()}
    return case | ({"isel": isel} if isel else {})


CASES = """
for number, (lists, case) in enumerate(told):
    group, own = groups(lists)
    if "isel" in case:
        case["isel"] = {dim: slice(*one[1:]) if one[0] == "slice" else one for dim, one in case["isel"].items()}
    read_dim, gather = case.pop("read_dim"), case.pop("gather")
    plain = make(**case, shard_id=own, num_shards=len(lists))
    loader = make(**case, read_group=group, read_dim=read_dim, gather=gather)
    parts = loader.read_parts
    assert len(parts) == len(lists[0]) and parts[0].start == 0
    dim = read_dim or "cell"

    def cut(name, tensor):
        if gather or name in ("mask", "index"):
            return tensor
        dims = plain._labels.dims(None if "stack_arrays" in case else name.partition("+")[0])
        if dim not in dims:
            return tensor
        return tensor[(slice(None),) * (1 + dims.index(dim)) + (parts[lists[own].index(rank)],)]

    try:
        for epoch in range(2):
            count = 0
            for batch, wanted in zip(loader, plain, strict=True):
                same(batch, wanted, cut)
                count += 1
                # One rank is enough, whose part isn't the first one: coordinates need packages that take seconds to import.
                if rank < world - 1:
                    continue
                coords, others = batch.coords, wanted.coords
                assert coords.keys() - {dim} == others.keys() - {dim}
                for name, values in coords.items():
                    right = others[name] if name in others else np.arange(3) if name == "level" else np.arange(23) * 10
                    if name == dim and not gather:
                        right = right[parts[lists[own].index(rank)]]
                    np.testing.assert_array_equal(values, right, name)
            assert count == len(loader) == len(plain)
            state, right = loader.state_dict(), plain.state_dict()
            assert json.loads(state["reader"]) == json.loads(right["reader"]), (state["reader"], right["reader"])
            assert all(state[name] == right[name] for name in ("rank", "world_size", "next_epoch"))
            states = told_of_all([own, state])
            assert all(one == [own, state] for one in states if one[0] == own), "states of a group differ"
    except BaseException:
        print(number, lists, case, read_dim, gather, file=sys.stderr)
        raise
dist.barrier()
"""

NEIGHBOURS, ACROSS, ALL, TWO = [[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 1, 2, 3]], [[0, 1]]


@pytest.mark.timeout_s(300)
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("backend", backends())
def test_as_in_one_process(path, tmp_path, backend, world):
    """Random arguments and groups: each batch is that of a loader without a group, or a part of it."""
    needs_gpus(backend, world)
    random = np.random.default_rng(world)
    cases = []
    while len(cases) < 24:
        lists = TWO if world == 2 else [NEIGHBOURS, ACROSS, ALL][random.integers(3)]
        case = random_case(random)
        if (LEVELS if case["read_dim"] == "level" else 4) >= len(lists[0]):
            cases.append((lists, as_text(case)))
    assert {case["gather"] for _, case in cases} == {True, False}
    passes(CASES, path, tmp_path, world, cases, backend)


TOGETHER = """
from collections import Counter
import dali_zarr

group = dist.group.WORLD

# Chunks are decoded once in all, since parts end where chunks end: of all arrays, or of the one with most bytes.
for arrays, read_dim, bounds in [
    (["field"], "cell", {2: [0, 10, 23], 4: [0, 5, 10, 20, 23]}), (["field"], "level", {2: [0, 2, 3]}),
    (["other"], None, {2: [0, 12, 23], 4: [0, 4, 12, 16, 23]}),
    (["surface"], "cell", {2: [0, 10, 23]}), (["field", "surface"], "cell", {2: [0, 10, 23]}),
]:
    if world not in bounds:
        continue
    # Of a sampler's samples nothing is read ahead that isn't delivered.
    order = np.random.default_rng(world).permutation(19).tolist()
    plain = make(arrays=arrays, sampler=order)
    loader = make(arrays=arrays, sampler=order, read_group=group, read_dim=read_dim)
    assert [part.stop for part in loader.read_parts] == bounds[world][1:], (arrays, loader.read_parts)
    wanted = [batch.to("cpu") for batch in plain]
    assert len(wanted) == 19
    for batch, right in zip(loader, wanted, strict=True):
        same(batch.to("cpu"), right)
    read = told_of_all(loader.counters()["chunks_read"])
    assert sum(read) == plain.counters()["chunks_read"] and min(read) > 0, (arrays, read)
# Parts that aren't gathered are equal, and so those that need more chunks than there are.
loader = make(arrays=["field"], read_group=group, gather=False)
assert [part.stop - part.start for part in loader.read_parts] == [len(one) for one in np.array_split(np.arange(23), world)]

# A checkpoint in mid-epoch goes on with another size of the group, and without a group.
CASE = {"arrays": ["other", "surface"], "batch_size": 2, "random_shuffle": True, "seed": 9, "uneven": "exact"}
loader = make(**CASE, read_group=group)
batches = iter(loader)
seen = [next(batches).index.flatten().tolist() for _ in range(3)]
state = json.loads(json.dumps(loader.state_dict()))
assert all(one == state for one in told_of_all(state))
rest = [batch.to("cpu") for batch in batches]
again = make(**CASE, read_group=group)
again.load_state_dict(state)
for batch, right in zip(again, rest, strict=True):
    same(batch.to("cpu"), right)
alone = make(**CASE, shard_id=0, num_shards=1)
alone.load_state_dict(state)
for batch, right in zip(alone, rest, strict=True):
    same(batch.to("cpu"), right)
if world == 4:
    smaller, number = groups([[0, 1], [2, 3]])
    smaller = make(**CASE, read_group=smaller)
    smaller.load_state_dict(state)
    own = [batch.index.flatten().tolist() for batch in smaller]
    every = told_of_all([number, own])
    assert every[0] == every[1] and every[2] == every[3]
    samples = Counter(n for _, of in (every[0], every[2]) for one in of for n in one) + Counter(n for one in seen for n in one)
    assert samples == Counter(range(19)), samples
    # And from a loader without a group to one with it.
    alone = make(**CASE, shard_id=0, num_shards=1)
    batches = iter(alone)
    next(batches)
    back = make(**CASE, read_group=group)
    back.load_state_dict(alone.state_dict())
    for batch, right in zip(back, batches, strict=True):
        same(batch.to("cpu"), right)
# What a state of parts can't say of the whole: shapes of many arrays, and of stores one after the other.
for more in ({"arrays": {f"a{i}": "other" for i in range(11)}}, {"path": [path, path], "concat": "samples", "step": [2]}):
    many = Loader(**{"path": path, "dims": ["time"], **OWN, **CASE, **more}, read_group=group)
    batches = iter(many)
    next(batches)
    told_here = many.state_dict()
    assert all(one == told_here for one in told_of_all(told_here))
    rest = [batch.index.tolist() for batch in batches]
    assert len(rest) > 7
    many.load_state_dict(told_here)
    assert [batch.index.tolist() for batch in many] == rest
    for damaged in ("[]", "no state", "{}"):
        try:
            many.load_state_dict(told_here | {"reader": damaged})
        except (ValueError, RuntimeError) as error:
            assert "state" in str(error), error
        else:
            raise AssertionError(damaged)
other = make(**CASE | {"isel": {"cell": slice(0, 20)}}, read_group=group)
try:
    other.load_state_dict(state)
except ValueError as error:
    assert "array 'other' has the shape ['time', 3, 23] in the state, and ['time', 3, 20] here" in str(error), error
else:
    raise AssertionError("another part of the grid")
dist.barrier()
"""


@pytest.mark.timeout_s(300)
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("backend", backends())
def test_what_is_read_and_saved(path, tmp_path, backend, world):
    needs_gpus(backend, world)
    passes(TOGETHER, path, tmp_path, world, backend=backend)

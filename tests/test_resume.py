"""Checkpoints: a pipeline that is built with one goes on as if it had never stopped, also with other shards."""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil

import numpy as np
import pytest
import zarr
from support.pipelines import build, same, to_numpy
from support.stores import Layout, write_array

STEPS = 23
BATCH = 4
ORDERS = {
    "in-order": {},
    "shuffled": {"random_shuffle": True, "seed": 7},
    "chunks": {"random_shuffle": True, "seed": 7, "initial_fill": 6},
    "after-epoch": {"shuffle_after_epoch": True, "seed": 7},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Numbered samples and fields that belong to them."""
    base = tmp_path_factory.mktemp("resume")
    numbers = np.arange(STEPS, dtype=np.int32)
    write_array(base, "n", numbers, layout=Layout((4,)), dims=("time",))
    fields = np.random.default_rng(1).standard_normal((STEPS, 3, 5)).astype("float32")
    write_array(base, "field", fields, layout=Layout((2, 3, 4)), dims=("time", "lat", "lon"))
    return base


def pipeline(path, device="cpu", checkpoint=None, batch_size=BATCH, **args):
    return build(device, batch_size, checkpointing=True, checkpoint=checkpoint, path=path, **({"arrays": ["n"]} | args))


def run(pipe, count: int) -> list[list[np.ndarray]]:
    return [[to_numpy(out) for out in pipe.run()] for _ in range(count)]


def assert_same(found, expected, what):
    for i, (f, e) in enumerate(zip(found, expected, strict=True)):
        for j, (a, b) in enumerate(zip(f, e, strict=True)):
            same(a, b, f"{what}, batch {i}, output {j}")


def states(checkpoint: bytes) -> list[dict]:
    """The states of the readers in a checkpoint: DALI wraps them, but keeps them as they are."""
    found, decoder = [], json.JSONDecoder()
    for match in re.finditer(rb'\{"format":"dali_zarr', checkpoint):
        found.append(decoder.raw_decode(checkpoint[match.start() :].decode("utf-8", "replace"))[0])
    return found


@pytest.mark.parametrize("stick", [False, True])
@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_every_step(path, device, order, pad, stick):
    """From each batch of more than two epochs, what follows is what would have followed."""
    if order == "after-epoch" and stick:
        pytest.skip("shuffle_after_epoch excludes stick_to_shard")
    args = {"pad_last_batch": pad, "stick_to_shard": stick, "num_shards": 2, "shard_id": 1, "arrays": ["n", "field"]}
    args |= ORDERS[order]
    straight = run(pipeline(path, device, **args), 12)
    pipe = pipeline(path, device, **args)
    for step in range(9):
        checkpoint = pipe.checkpoint()
        again = pipeline(path, device, checkpoint, **args)
        assert again.checkpoint() == checkpoint, "nothing was delivered in between"
        assert_same(run(again, 3), straight[step : step + 3], f"after {step} batches")
        pipe.run()


@pytest.mark.parametrize("shuffle", [False, True])
def test_random_crops_go_on(path, device, shuffle):
    """Crops depend on the epoch and the sample, so they are those of the straight run, also in later epochs."""
    args = {
        "arrays": ["field"], "dims": ["time", "lat", "lon"], "window": [0, 2, 2], "random_crop": ["lat", "lon"],
        "breaks": [9], "random_shuffle": shuffle, "initial_fill": 6, "seed": 3, "return_index": True,
    }
    straight = run(pipeline(path, device, **args), 20)
    pipe = pipeline(path, device, **args)
    for step in range(17):
        if step % 4 == 0:
            again = pipeline(path, device, pipe.checkpoint(), **args)
            assert_same(run(again, 3), straight[step : step + 3], f"after {step} batches")
        pipe.run()
    with pytest.raises(ValueError, match=r'random_crop: \["lat","lon"\] in the checkpoint, \[\] here'):
        pipeline(path, device, pipe.checkpoint(), arrays=["field"], dims=args["dims"], window=[0, 2, 2], return_index=True)


@pytest.mark.parametrize("dali_queue", [1, 2, 5])
@pytest.mark.parametrize("depth", [1, 8])
def test_the_state_is_that_of_the_batch_handed_out(path, device, dali_queue, depth):
    """However far DALI and the reader are ahead, then and now."""
    args = {"random_shuffle": True, "seed": 1, "return_index": True}
    straight = run(pipeline(path, device, **args), 14)
    pipe = pipeline(path, device, dali_queue=dali_queue, prefetch_queue_depth=depth, **args)
    assert_same(run(pipe, 7), straight[:7], "before")
    checkpoint = pipe.checkpoint()
    (state,) = states(checkpoint)
    assert (state["legs"][0]["delivered"], state["epoch"], state["position"]) == (28, 1, 28 - STEPS)
    again = pipeline(path, device, checkpoint, dali_queue=3, prefetch_queue_depth=2, io_threads=1, decode_threads=1, **args)
    assert_same(run(again, 7), straight[7:], "after")


EXECUTORS = [{"exec_dynamic": True}, {"exec_dynamic": False}, {"exec_async": False, "exec_pipelined": False}]


@pytest.mark.parametrize("executor", EXECUTORS, ids=str)
def test_several_readers(path, device, executor):
    """Readers with epochs of different lengths, and an operator with a state of its own, in one pipeline."""
    import dali_zarr  # noqa: F401
    from nvidia.dali import fn
    from nvidia.dali.pipeline import Pipeline

    def make(checkpoint=None):
        pipe = Pipeline(
            batch_size=3, num_threads=2, device_id=0 if device == "gpu" else None, enable_checkpointing=True,
            checkpoint=checkpoint, seed=5, **executor,
        )
        how = {"device": device, "path": str(path), "host_memory_limit": 128 << 20}
        if device == "gpu":
            how["device_memory_limit"] = 256 << 20
        with pipe:
            a = fn.zarr_reader(name="a", arrays=["n"], random_shuffle=True, **how)
            windows = {"window": [2], "step": [3], "return_index": True}
            b, index = fn.zarr_reader(name="b", arrays=["field"], pad_last_batch=True, **windows, **how)
            c = fn.zarr_reader(name="c", arrays=["n"], num_shards=3, shard_id=2, **how)
            pipe.set_outputs(a, b, index, c, fn.random.uniform(range=[0, 1]))
        pipe.build()
        return pipe

    straight = run(make(), 20)
    pipe = make()
    for step in range(0, 12, 3):
        checkpoint = pipe.checkpoint()
        assert len(states(checkpoint)) == 3
        assert_same(run(make(checkpoint), 8), straight[step : step + 8], f"after {step} batches")
        run(pipe, 3)


def test_pipeline_def_takes_a_checkpoint(path, device):
    import dali_zarr  # noqa: F401
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=BATCH, num_threads=2, device_id=0 if device == "gpu" else None, enable_checkpointing=True)
    def numbers():
        return fn.readers.zarr(device=device, path=str(path), arrays=["n"], random_shuffle=True, host_memory_limit=128 << 20)

    straight = run(numbers(), 8)
    pipe = numbers()
    run(pipe, 3)
    assert_same(run(numbers(checkpoint=pipe.checkpoint()), 5), straight[3:], "resumed")


# Elsewhere: the same samples, and other shards.


def test_on_the_other_device(path, gpu):
    args = {"random_shuffle": True, "arrays": ["n", "field"]}
    pipes = {device: pipeline(path, device, **args) for device in ("cpu", "gpu")}
    straight = {device: run(pipe, 9) for device, pipe in pipes.items()}
    for one, other in (("cpu", "gpu"), ("gpu", "cpu")):
        pipe = pipeline(path, one, **args)
        run(pipe, 4)
        checkpoint = pipe.checkpoint()
        try:
            again = pipeline(path, other, checkpoint, **args)
        except RuntimeError as error:
            # DALI may add operators of its own on one of the devices, and wants the same ones in a checkpoint.
            assert "doesn't recognize" in str(error), error
            continue
        assert_same(run(again, 5), straight[one][4:], f"from {one} to {other}")


def test_a_store_that_was_moved(path, tmp_path, device):
    pipe = pipeline(path, device, random_shuffle=True)
    run(pipe, 2)
    moved = shutil.copytree(path, tmp_path / "elsewhere")
    assert_same(run(pipeline(moved, device, pipe.checkpoint(), random_shuffle=True), 5), run(pipe, 5), "moved")


def delivered_by(pipes, count: int) -> list[int]:
    """The numbers that the shards deliver in so many batches each, without a shard's repetitions of its last sample."""
    numbers = []
    for pipe in pipes:
        own = [int(n) for batch in run(pipe, count) for n in batch[0]]
        numbers += [n for n, _ in itertools.groupby(own)]
    return numbers


def batches(samples: int, shards: int, batch_size: int = BATCH) -> int:
    """Batches of each shard, with padding."""
    return math.ceil(math.ceil(samples / shards) / batch_size)


@pytest.mark.parametrize("stick", [False, True])
@pytest.mark.parametrize("order", ["in-order", "shuffled", "chunks"])
@pytest.mark.parametrize(("old", "new"), [(1, 2), (2, 1), (2, 3), (4, 2), (3, 5)])
def test_other_shards(path, device, order, stick, old, new):
    """The old shards' samples and the rest that the new ones deliver are each sample once; so is the next epoch."""
    args = ORDERS[order] | {"pad_last_batch": True, "stick_to_shard": stick}
    for first, step in ((0, 1), (1, 1), (0, batches(STEPS, old))):
        pipes = [pipeline(path, device, num_shards=old, shard_id=s, **args) for s in range(old)]
        delivered_by(pipes, first * batches(STEPS, old))
        seen = delivered_by(pipes, step)
        checkpoints = [pipe.checkpoint() for pipe in pipes]
        assert len({json.dumps(states(c)[0]["legs"]) for c in checkpoints}) == 1, "one checkpoint is as good as another"
        pipes = [pipeline(path, device, checkpoints[-1], num_shards=new, shard_id=s, **args) for s in range(new)]
        rest = STEPS - len(seen)
        if rest >= new:
            seen += delivered_by(pipes, batches(rest, new))
            assert sorted(seen) == list(range(STEPS)), f"epoch {first}, {step} batches"
        for pipe in pipes if 0 < rest < new else []:
            run(pipe, 1)
        assert sorted(delivered_by(pipes, batches(STEPS, new))) == list(range(STEPS)), "the next epoch"


def test_other_batch_size_and_shards_again(path, device):
    """Changed twice within an epoch."""
    args = {"random_shuffle": True, "pad_last_batch": True}
    pipes = [pipeline(path, device, num_shards=2, shard_id=s, batch_size=3, **args) for s in range(2)]
    seen = delivered_by(pipes, 1)
    pipes = [pipeline(path, device, pipes[1].checkpoint(), num_shards=3, shard_id=s, batch_size=2, **args) for s in range(3)]
    seen += delivered_by(pipes, 1)
    again = [pipeline(path, device, pipes[0].checkpoint(), num_shards=3, shard_id=s, batch_size=2, **args) for s in range(3)]
    assert_same(run(again[2], 4), run(pipes[2], 4), "with the same shards it goes on in the rest")
    pipe = pipeline(path, device, again[0].checkpoint(), batch_size=5, **args)
    seen += delivered_by([pipe], batches(STEPS - len(seen), 1, 5))
    assert sorted(seen) == list(range(STEPS))
    assert sorted(delivered_by([pipe], batches(STEPS, 1, 5))) == list(range(STEPS))


def test_shards_out_of_step(path, device):
    """Without padding shards may be in different epochs: then what is left of one can't be divided."""
    pipe = pipeline(path, device, num_shards=2, batch_size=11)
    run(pipe, 1)
    with pytest.raises(ValueError, match=r"epoch 1 and shard 1 in epoch 0.*pad_last_batch=True"):
        pipeline(path, device, pipe.checkpoint(), num_shards=3, batch_size=11)
    assert_same(run(pipeline(path, device, pipe.checkpoint(), num_shards=2, batch_size=11), 3), run(pipe, 3), "the same shards")


# What is refused.


def test_other_arguments_are_named(path, device):
    pipe = pipeline(path, device, random_shuffle=True, seed=1)
    checkpoint = pipe.checkpoint()
    with pytest.raises(ValueError, match=r"seed: 1 in the checkpoint, 2 here"):
        pipeline(path, device, checkpoint, random_shuffle=True, seed=2)
    with pytest.raises(ValueError, match=r"random_shuffle: true in the checkpoint, false here"):
        pipeline(path, device, checkpoint, seed=1)
    with pytest.raises(ValueError, match=r"window: \[0\] in the checkpoint, \[2\] here.*samples in an epoch: 23 .*, 11 here"):
        pipeline(path, device, checkpoint, random_shuffle=True, seed=1, window=[2])
    with pytest.raises(ValueError, match=r"array 'field': name: \"n\" in the checkpoint"):
        pipeline(path, device, checkpoint, random_shuffle=True, seed=1, arrays=["field"])


@pytest.mark.parametrize(
    ("what", "change"),
    [
        (r'starts: \[\["23 from 0"\]\] in the checkpoint, \[\["22 from 0"\]\] here', {"shape": (22,)}),
        (r'dtype: "int32" in the checkpoint, "int64" here', {"dtype": "int64"}),
        (r'samples that share chunks: \[\["5 times 4","1 times 3"\]\] in the checkpoint, .*"4 times 5"', {"chunks": (5,)}),
    ],
)
def test_another_data_set_is_named(path, tmp_path, device, what, change):
    args = ORDERS["chunks"]
    checkpoint = pipeline(path, device, **args).checkpoint()
    group = zarr.open_group(tmp_path, mode="w")
    group.create_array("n", **({"shape": (STEPS,), "chunks": (4,), "dtype": "int32", "dimension_names": ["time"]} | change))
    with pytest.raises(ValueError, match=what):
        pipeline(tmp_path, device, checkpoint, **args)


SAME = {
    "dims": {"dims": ["time"]},
    "numbered": {"dims": [-1], "window": [0], "step": [1]},
    "defaults": {"offsets": [0], "stride": [3], "roi_end": [STEPS], "dtype": "int32", "seed": 5},
    "unused": {
        "fill_value": 3.0, "fillna": 1.0, "out_of_bounds_policy": "pad", "mask_and_scale": True, "initial_fill": 2, "breaks": [9],
    },
}


@pytest.mark.parametrize("args", SAME.values(), ids=SAME)
def test_arguments_that_mean_the_same_are_the_same(path, device, args):
    """A default may be written out or left out, and what makes no difference may differ."""
    straight = run(pipeline(path, device), 6)
    pipe = pipeline(path, device)
    run(pipe, 2)
    assert_same(run(pipeline(path, device, pipe.checkpoint(), **args), 4), straight[2:], "written out")
    pipe = pipeline(path, device, **args)
    run(pipe, 2)
    assert_same(run(pipeline(path, device, pipe.checkpoint()), 4), straight[2:], "left out")


def test_an_array_may_be_named_by_the_path(path, device):
    straight = run(pipeline(path, device), 6)
    pipe = pipeline(path, device)
    run(pipe, 2)
    inside = pipeline(path / "n", device, pipe.checkpoint(), arrays=[])
    assert_same(run(inside, 2), straight[2:4], "the array as a store")
    assert_same(run(pipeline(path, device, inside.checkpoint()), 2), straight[4:], "and back")
    with pytest.raises(ValueError, match=r"array 'field': .*name: \"n\" in the checkpoint, \"field\" here"):
        pipeline(path / "field", device, pipe.checkpoint(), arrays=[])


def test_other_chunks_where_the_order_knows_nothing_of_chunks(path, tmp_path, device):
    pipe = pipeline(path, device)
    run(pipe, 2)
    write_array(tmp_path, "n", np.arange(STEPS, dtype=np.int32), layout=Layout((5,)), dims=("time",))
    assert_same(run(pipeline(tmp_path, device, pipe.checkpoint()), 3), run(pipe, 3), "chunks of 5 instead of 4")


def test_damaged_and_foreign_checkpoints(path, device):
    checkpoint = pipeline(path, device).checkpoint()
    with pytest.raises(ValueError, match="version 9 .*reads version 2"):
        pipeline(path, device, checkpoint.replace(b'"version":2', b'"version":9'))
    with pytest.raises(ValueError, match="expected the state of a zarr_reader"):
        pipeline(path, device, checkpoint.replace(b"dali_zarr.reader", b"somebody.else.is"))
    with pytest.raises(ValueError, match="damaged.*legs"):
        pipeline(path, device, checkpoint.replace(b'"num_shards":1', b'"num_shards":0'))


@pytest.mark.parametrize("shards", [1, 2])
def test_a_changed_digit_is_noticed(path, device, shards):
    """Of the numbers that say where all shards are: others may lead to the same place, and to other samples after it."""
    args = {"num_shards": shards, "shard_id": 0, "pad_last_batch": True, "random_shuffle": True}
    pipe = pipeline(path, device, **args)
    run(pipe, 2)
    checkpoint = pipe.checkpoint()
    begin = checkpoint.index(b'"legs":[')
    digits = [i for i in range(begin, checkpoint.index(b"]", begin)) if chr(checkpoint[i]).isdigit()]
    assert len(digits) >= 5
    for i in digits:
        changed = checkpoint[:i] + bytes([checkpoint[i] ^ 1]) + checkpoint[i + 1 :]
        with pytest.raises(ValueError, match="checkpoint|contradicts itself"):
            pipeline(path, device, changed, **args)


def test_a_checkpoint_needs_checkpointing(path, device):
    pipe = build(device, BATCH, path=path, arrays=["n"])
    pipe.run()
    with pytest.raises(RuntimeError, match="checkpointing"):
        pipe.checkpoint()


def test_states_are_small(tmp_path, device):
    """Whatever the data set and the arguments, a few kilobytes."""
    group = zarr.open_group(tmp_path, mode="w")
    names = [f"variable_{i}" for i in range(40)]
    for name in names:
        group.create_array(name, shape=(9, 2, 2), chunks=(1, 2, 2), dtype="float32", dimension_names=["time", "lat", "lon"])
    args = {"arrays": names, "mean": list(np.linspace(0, 1, 40)), "stddev": [2.0] * 40, "dims": ["time"]}
    pipe = pipeline(tmp_path, device, **args)
    checkpoint = pipe.checkpoint()
    (state,) = states(checkpoint)
    assert len(json.dumps(state)) < 4096
    pipeline(tmp_path, device, checkpoint, **args)
    with pytest.raises(ValueError, match="mean"):
        pipeline(tmp_path, device, checkpoint, **args | {"mean": list(np.linspace(0, 2, 40))})
    with pytest.raises(ValueError, match="further arrays"):
        pipeline(tmp_path, device, checkpoint, **args | {"arrays": names[:-2] + names[-2:][::-1]})


# Through DALI's iterator for PyTorch.


def iterator(path, device, policy, checkpoint=None, **args):
    pytest.importorskip("torch", reason="DALIGenericIterator needs PyTorch")
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    pipe = pipeline(path, device, checkpoint, **args)
    return DALIGenericIterator([pipe], ["n"], reader_name="reader", last_batch_policy=LastBatchPolicy[policy], auto_reset=True)


def events(it, epochs: int, stop_after: int | None = None) -> list:
    """What comes out: the numbers of each batch, and "end" after each epoch."""
    out: list = []
    for _ in range(epochs):
        for (batch,) in it:
            out.append(batch["n"].cpu().reshape(-1).tolist())
            if len(out) - out.count("end") == stop_after:
                return out
        out.append("end")
    return out


@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("policy", ["FILL", "DROP", "PARTIAL"])
@pytest.mark.parametrize("shards", [1, 2])
def test_iterators_go_on(path, device, policy, pad, shards):
    """The rest of the epoch, its end, and the epochs after it."""
    args = {"pad_last_batch": pad, "num_shards": shards, "shard_id": shards - 1, "random_shuffle": True}
    straight = events(iterator(path, device, policy, **args), 4)
    total = len(straight) - 4
    for stop in range(total - 1):
        it = iterator(path, device, policy, **args)
        before = events(it, 4, stop) if stop else []
        again = iterator(path, device, policy, it.checkpoints()[0], **args)
        if straight[len(before)] == "end":
            # DALI's iterator swallows the end of an epoch that has no batch left, and begins with the next one.
            before.append("end")
        after = events(again, 4 - before.count("end"))
        assert before + after == straight, f"after {stop} batches"


def test_iterators_without_a_reader_name_take_other_shards(path, device):
    """They count no epochs, so nothing of the old shards is in their checkpoints."""
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    def iterators(shards, checkpoint=None):
        args = {"pad_last_batch": True, "random_shuffle": True, "num_shards": shards}
        return [DALIGenericIterator([pipeline(path, device, checkpoint, shard_id=s, **args)], ["n"]) for s in range(shards)]

    def numbers(its, count):
        own = [[int(n) for _ in range(count) for n in next(it)[0]["n"]] for it in its]
        return [n for mine in own for n, _ in itertools.groupby(mine)]

    its = iterators(2)
    seen = numbers(its, 2)
    its = iterators(3, its[1].checkpoints()[0])
    seen += numbers(its, batches(STEPS - len(seen), 3))
    assert sorted(seen) == list(range(STEPS))
    assert sorted(numbers(its, batches(STEPS, 3))) == list(range(STEPS))


# Through the C ABI.


def test_c_abi(path):
    """dali_zarr_state and dali_zarr_resume, by the same library."""
    import ctypes

    import dali_zarr

    library = ctypes.CDLL(str(dali_zarr._load.LIBRARY))
    library.dali_zarr_last_error.restype = ctypes.c_char_p
    spec = json.dumps({"path": str(path), "arrays": "n", "batch_size": 4, "random_shuffle": True}).encode()

    def numbers(reader, count):
        out = []
        for _ in range(count):
            batch, data, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
            assert library.dali_zarr_next_batch(reader, ctypes.byref(batch)) == 0, library.dali_zarr_last_error()
            assert library.dali_zarr_batch_data(batch, ctypes.c_size_t(0), ctypes.byref(data), ctypes.byref(size)) == 0
            out += np.frombuffer(ctypes.string_at(data, 16), "int32").tolist()
            library.dali_zarr_batch_release(batch)
        return out

    def close(*readers):
        for reader in readers:
            library.dali_zarr_close(reader)

    library.dali_zarr_close.restype = None
    library.dali_zarr_batch_release.restype = None
    one, two, state = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_char_p()
    assert library.dali_zarr_open(spec, ctypes.byref(one)) == 0
    numbers(one, 4)
    assert library.dali_zarr_state(one, ctypes.byref(state)) == 0
    assert json.loads(state.value)["legs"][0]["delivered"] == 16
    assert library.dali_zarr_resume(spec, state, ctypes.byref(two)) == 0, library.dali_zarr_last_error()
    assert numbers(one, 5) == numbers(two, 5)
    close(one, two)
    for bad, status, what in ((b"{}", 1, b"expected the state"), (None, 1, b"state: expected a pointer")):
        assert library.dali_zarr_resume(spec, bad, ctypes.byref(two)) == status
        assert what in library.dali_zarr_last_error() and two.value is None
    assert library.dali_zarr_state(None, ctypes.byref(state)) == 1 and state.value is None


def test_dtypes_are_part_of_it(path, device):
    """Values differ with `dtype`, so it must be the same."""
    checkpoint = build(device, BATCH, checkpointing=True, path=path, arrays=["n"], dtype="float32").checkpoint()
    with pytest.raises(ValueError, match='dtype: "float32" in the checkpoint, "float64" here'):
        build(device, BATCH, checkpointing=True, checkpoint=checkpoint, path=path, arrays=["n"], dtype="float64")

"""The operator's life: memory that outlives the pipeline, pipelines that are dropped, both executors, errors in mid-epoch."""

from __future__ import annotations

import gc
import os

import dali_zarr  # noqa: F401  (loads the operator)
import numpy as np
import pytest
import zarr
from nvidia.dali import fn
from nvidia.dali.pipeline import Pipeline

HOURS = 24


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "store.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=3)
    array = group.create_array("a", shape=(HOURS, 4, 5), chunks=(1, 4, 5), dtype="int32", dimension_names=["time", "lat", "lon"])
    array[:] = np.arange(HOURS * 20, dtype="int32").reshape(HOURS, 4, 5)
    return path


def build(path, batch_size=4, options=None, **arguments):
    pipeline = Pipeline(batch_size=batch_size, num_threads=2, device_id=None, **(options or {}))
    with pipeline:
        outputs = fn.zarr_reader(name="reader", path=str(path), arrays=["a"], **arguments)
        pipeline.set_outputs(*(outputs if isinstance(outputs, list) else [outputs]))
    pipeline.build()
    return pipeline


def threads():
    return len(os.listdir("/proc/self/task"))


EXECUTORS = [{"exec_dynamic": True}, {"exec_dynamic": False}, {"exec_async": False, "exec_pipelined": False}]


@pytest.mark.parametrize("options", EXECUTORS)
def test_every_executor_delivers_the_same(store, options):
    pipeline = build(store, options=options)
    values = zarr.open_group(store, mode="r")["a"][:]
    for epoch in range(3):
        for start in range(0, HOURS, 4):
            (out,) = pipeline.run()
            np.testing.assert_array_equal(out.as_array(), values[start : start + 4], err_msg=f"epoch {epoch}, sample {start}")
            assert out.layout() == "HW"


def test_a_batch_outlives_its_pipeline(store):
    values = zarr.open_group(store, mode="r")["a"][:]
    pipeline = build(store)
    kept = [pipeline.run()[0] for _ in range(3)]
    views = [np.asarray(out.as_tensor()) for out in kept]
    del pipeline
    gc.collect()
    for number, view in enumerate(views):
        np.testing.assert_array_equal(view, values[4 * number : 4 * number + 4])


def test_batches_that_are_kept_are_not_written_again(store):
    values = zarr.open_group(store, mode="r")["a"][:]
    pipeline = build(store, options={"prefetch_queue_depth": 2})
    kept = [np.array(pipeline.run()[0].as_array()) for _ in range(12)]
    for number, batch in enumerate(kept):
        start = 4 * number % HOURS
        np.testing.assert_array_equal(batch, values[start : start + 4])


def test_reader_meta(store):
    pipeline = build(store, num_shards=5, shard_id=2, pad_last_batch=True, stick_to_shard=True)
    assert pipeline.reader_meta("reader") == {
        "epoch_size": HOURS,
        "epoch_size_padded": 25,
        "number_of_shards": 5,
        "shard_id": 2,
        "pad_last_batch": 1,
        "stick_to_shard": 1,
    }


def test_dropped_pipelines_leave_no_threads(store):
    pipeline = build(store)
    pipeline.run()
    del pipeline
    gc.collect()
    before = threads()
    for runs in (0, 1, 3, 5):
        pipeline = build(store)
        for _ in range(runs):
            pipeline.run()
        del pipeline
        gc.collect()
    assert threads() <= before


def test_a_pipeline_that_could_not_be_built_leaves_no_threads(store):
    def refused():
        with pytest.raises(ValueError):
            build(store, dims=["nowhere"])
        gc.collect()

    refused()
    before = threads()
    for _ in range(5):
        refused()
    assert threads() <= before


def test_an_error_in_mid_epoch_names_the_place(store):
    pipeline = build(store, batch_size=1, options={"prefetch_queue_depth": 1}, prefetch_queue_depth=1)
    pipeline.run()
    store.rename(store.with_name("gone"))
    with pytest.raises(RuntimeError, match=f"zarr_reader: store .*{store.name}"):
        for _ in range(HOURS):
            pipeline.run()

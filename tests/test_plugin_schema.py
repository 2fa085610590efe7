"""The operator as DALI shows it: its names, arguments and documentation, and the arguments that it refuses."""

from __future__ import annotations

import dali_zarr
import numpy as np
import pytest
import zarr
from nvidia.dali import backend, fn, ops, types
from nvidia.dali.pipeline import Pipeline
from support.versions import DALI

# Every argument and the type that DALI gives it: an argument appears here when the engine honours it.
ARGUMENTS = {
    "path": "_STRING_VEC",
    "storage_options": "_STRING_VEC",
    "arrays": "_STRING_VEC",
    "stack_arrays": "BOOL",
    "pick": "_STRING_VEC",
    "dims": "_STRING_VEC",
    "window": "_INT64_VEC",
    "step": "_INT64_VEC",
    "overlap": "_INT64_VEC",
    "starts": "STRING",
    "weights": "STRING",
    "num_samples": "INT64",
    "replacement": "BOOL",
    "samples_per_volume": "INT64",
    "concat": "STRING",
    "groups": "_STRING_VEC",
    "random_crop": "_STRING_VEC",
    "scale_by": "STRING",
    "scale_method": "STRING",
    "grid": "STRING",
    "stride": "_INT64_VEC",
    "offsets": "_INT64_VEC",
    "roi_start": "_INT64_VEC",
    "roi_end": "_INT64_VEC",
    "breaks": "_INT64_VEC",
    "missing_dates": "STRING",
    "fill_missing": "STRING",
    "transpose": "_STRING_VEC",
    "squeeze": "_STRING_VEC",
    "cross_stores": "BOOL",
    "out_of_bounds_policy": "STRING",
    "fill_value": "FLOAT",
    "ragged": "STRING",
    "ragged_ends": "STRING",
    "max_length": "INT64",
    "mask_and_scale": "BOOL",
    "fillna": "FLOAT",
    "dtype": "DATA_TYPE",
    "mean": "_FLOAT_VEC",
    "stddev": "_FLOAT_VEC",
    "channels": "_STRING_VEC",
    "random_shuffle": "BOOL",
    "initial_fill": "INT64",
    "shuffle_after_epoch": "BOOL",
    "seed": "INT64",
    "shard_id": "INT64",
    "num_shards": "INT64",
    "stick_to_shard": "BOOL",
    "pad_last_batch": "BOOL",
    "prefetch_queue_depth": "INT64",
    "decode_device": "STRING",
    "on_bad_chunk": "STRING",
    "device_memory_limit": "INT64",
    "host_memory_limit": "INT64",
    "io": "STRING",
    "use_o_direct": "BOOL",
    "io_threads": "INT64",
    "io_concurrency": "INT64",
    "cache_size": "INT64",
    "cache_dir": "STRING",
    "cache_dir_size": "INT64",
    "cache_validate": "BOOL",
    "decode_threads": "INT64",
    "pad_after": "_INT64_VEC", "pad_before": "_INT64_VEC", "return_mask": "BOOL", "segments": "_INT64_VEC",
    "return_index": "BOOL",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("schema") / "store.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=3)
    for name in ("a", "b"):
        array = group.create_array(name, shape=(20, 4), chunks=(5, 4), dtype="float32", dimension_names=["time", "lon"])
        array[:] = np.arange(80, dtype="float32").reshape(20, 4)
    return str(path)


def build(function=fn.readers.zarr, seed=None, batch_size=2, options=None, **arguments):
    pipeline = Pipeline(batch_size=batch_size, num_threads=1, device_id=None, seed=seed, **(options or {}))
    with pipeline:
        outputs = function(name="reader", **arguments)
        pipeline.set_outputs(*(outputs if isinstance(outputs, list) else [outputs]))
    pipeline.build()
    return pipeline


def test_names():
    for function in (fn.zarr_reader, fn.readers.zarr):
        assert callable(function)
    assert ops.readers.Zarr is not None and ops.ZarrReader is not None
    if DALI >= (2, 4):
        assert backend.GetSchema("ZarrReader").AliasFor() == "readers__Zarr"


def test_arguments():
    schema = backend.GetSchema("readers__Zarr")
    shared = set(backend.GetSchema("readers__File").GetArgumentNames()) & {"bytes_per_sample_hint", "preserve"}
    found = {name: schema.GetArgumentType(name).name for name in schema.GetArgumentNames() if name not in shared}
    lists = "_INT64_VEC" if DALI >= (2, 4) else "_INT32_VEC"
    assert found == {name: kind.replace("_INT64_VEC", lists) for name, kind in ARGUMENTS.items()}


def test_every_argument_is_documented():
    schema = backend.GetSchema("readers__Zarr")
    for name in ARGUMENTS:
        assert len(schema.GetArgumentDox(name)) > 20, name
        assert name in fn.zarr_reader.__doc__
    assert "Zarr" in schema.Dox()


def test_unknown_arguments_are_refused(store):
    for name in ("lazy_init", "windows"):
        with pytest.raises((KeyError, TypeError), match=name):
            build(path=store, arrays=["a"], **{name: 1})


def test_one_input_is_taken(store):
    with pytest.raises(ValueError, match="2"):
        build(lambda **a: fn.readers.zarr(types.Constant(1), types.Constant(1), **a), path=store, arrays=["a"])


@pytest.mark.parametrize(
    "arguments, count",
    [
        ({"arrays": ["a"]}, 1),
        ({"arrays": ["a", "b"]}, 2),
        ({"arrays": ["a", "b"], "offsets": [0, 1, 3]}, 6),
        ({"arrays": ["a", "b"], "offsets": [0, 1], "stack_arrays": True}, 2),
        ({"arrays": ["a", "b"], "return_index": True}, 3),
        ({"arrays": ["a", "b"], "return_index": True, "return_mask": True}, 4),
    ],
)
def test_number_of_outputs(store, arguments, count):
    assert len(build(path=store, **arguments).run()) == count


def test_a_single_value_stands_for_a_list(store):
    (out,) = build(path=store, arrays="a", dims="time", window=3, step=1, batch_size=1).run()
    assert out.shape() == [(3, 4)]


@pytest.mark.parametrize(
    "arguments, kind, text",
    [
        ({"decode_device": "tpu"}, ValueError, 'decode_device: expected "auto", "gpu" or "cpu", but found "tpu"'),
        ({"out_of_bounds_policy": "wrap"}, ValueError, "out_of_bounds_policy: expected"),
        ({"io_threads": 0}, ValueError, "io_threads: expected a whole number of at least 1, but found 0"),
        ({"initial_fill": 0}, ValueError, "initial_fill: expected a whole number of at least 1, but found 0"),
        ({"breaks": 20}, ValueError, "breaks: expected"),
        ({"random_crop": "lon"}, ValueError, "random_crop: samples aren't cut along"),
        ({"io_concurrency": 0}, ValueError, "io_concurrency: expected a whole number of at least 1, but found 0"),
        ({"cache_size": -1}, ValueError, "cache_size: expected a number of bytes, or 0, but found -1"),
        ({"cache_size": 64}, ValueError, "cache_size: expected 0, or at least 1048576 bytes"),
        ({"cache_dir_size": 0}, ValueError, "cache_dir_size: expected a whole number of at least 1, but found 0"),
        ({"cache_dir_size": 1 << 30}, ValueError, "give cache_dir too"),
        ({"cache_dir": "/tmp/x"}, ValueError, "cache_dir: expected none, since every path is local"),
        ({"cache_size": 1.5}, TypeError, "cache_size: expected integers"),
        ({"decode_threads": -1}, ValueError, "decode_threads: expected"),
        ({"prefetch_queue_depth": 0}, ValueError, "prefetch_queue_depth: expected"),
        ({"host_memory_limit": -5}, ValueError, "host_memory_limit: expected"),
        ({"pick": "time"}, ValueError, 'zarr_reader: pick: expected "DIMENSION=INDEX'),
        ({"dtype": types.STRING}, TypeError, 'float64, bfloat16, but found "string"'),
        ({"storage_options": ["region"]}, ValueError, 'storage_options: expected "NAME=VALUE"'),
        ({"storage_options": {"region": "x"}}, ValueError, "every path is local"),
        ({"storage_options": {"region": None}}, TypeError, "storage_options: 'region': expected a string"),
        ({"path": []}, ValueError, "path: expected at least one store"),
    ],
)
def test_wrong_values_are_refused_when_the_pipeline_is_built(store, arguments, kind, text):
    with pytest.raises(kind) as caught:
        build(**{"path": store, "arrays": ["a"], **arguments})
    assert text in str(caught.value)


def order(pipeline):
    return [int(i) for _ in range(10) for i in np.asarray(pipeline.run()[0].as_array()).ravel()]


def test_the_pipelines_seed_does_not_set_the_order(store):
    """Shards in different processes must agree on the order, and DALI draws a seed for each process."""
    arguments = {"path": store, "arrays": ["a"], "random_shuffle": True, "return_index": True}

    def reader(**more):
        return lambda **a: fn.readers.zarr(**a, **more)[1]

    first = order(build(reader(), seed=1, **arguments))
    assert first == order(build(reader(), seed=2, **arguments))
    assert first == order(build(reader(), seed=None, **arguments))
    assert first != sorted(first)
    seeded = order(build(reader(seed=7), seed=1, **arguments))
    assert seeded != first
    assert seeded == order(build(reader(seed=7), seed=2, **arguments))


def test_the_second_name_is_the_same_operator(store):
    arguments = {"path": store, "arrays": ["a"], "return_index": True}
    one, other = build(fn.readers.zarr, **arguments).run(), build(fn.zarr_reader, **arguments).run()
    for left, right in zip(one, other):
        np.testing.assert_array_equal(left.as_array(), right.as_array())


@pytest.mark.parametrize("mean", [1 / 3, [1 / 3], np.array([1 / 3]), np.float64(1 / 3)])
@pytest.mark.parametrize("api", [fn.zarr_reader, lambda **a: ops.readers.Zarr(**a)()])
def test_numbers_have_double_precision(store, mean, api):
    """DALI's own floating-point arguments have single precision."""
    (out,) = build(api, path=store, arrays=["a"], mean=mean, stddev=0.7, dtype=types.FLOAT64).run()
    expected = (np.arange(8, dtype="float64").reshape(2, 4) - 1 / 3) / 0.7
    np.testing.assert_array_equal(out.as_array(), expected)


@pytest.mark.parametrize("value", [0.1, 1e300, float("nan"), float("inf"), float("-inf"), 7, True])
def test_fill_values_have_double_precision(store, value):
    arguments = {"path": store, "arrays": ["a"], "offsets": [19], "out_of_bounds_policy": "pad", "dtype": types.FLOAT64}
    (out,) = build(fill_value=value, **arguments).run()
    np.testing.assert_array_equal(out.as_array()[1], np.full(4, value, "float64"))
    assert dali_zarr.explain(**arguments, fill_value=value)["samples"] == 20


def test_numbers_that_come_without_python_have_single_precision(store):
    """As of pipelines that were serialized by other means."""

    def function(**arguments):
        reader = object.__new__(ops.readers.Zarr)
        ops.readers.Zarr.__init__.__wrapped__(reader, **arguments)
        return reader()

    with pytest.raises(ValueError, match="mean: expected finite numbers.* found inf"):
        build(function, path=[store], arrays=["a"], mean=float("inf"))
    (out,) = build(function, path=[store], arrays=["a"], mean=0.1, dtype=types.FLOAT64).run()
    np.testing.assert_array_equal(out.as_array().ravel(), np.arange(8) - np.float64(np.float32(0.1)))


@pytest.mark.parametrize("name", ['"', "\\", "a\nb\t\x01\x7f", "é 漢 😀", "{}[],:", "%s"], ids=ascii)
def test_any_text_reaches_the_engine(store, tmp_path, name):
    (tmp_path / name).symlink_to(store)
    pipeline = build(path=str(tmp_path / name), arrays="a", pick=["lon=1"])
    assert pipeline.run()[0].as_array().tolist() == [[1.0], [5.0]]


def test_wrong_numbers_are_refused(store):
    with pytest.raises(ValueError, match="mean: expected numbers or a file of statistics, but 'much' can't be read"):
        build(path=store, arrays=["a"], mean="much")

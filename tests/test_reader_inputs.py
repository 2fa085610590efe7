"""The input of the operator: sample numbers from other operators, on both backends and executors, and in the dynamic mode."""

from __future__ import annotations

import numpy as np
import pytest
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline
from support.pipelines import run_script, to_numpy
from support.stores import Layout, write_array

STEPS = 23
DATA = np.random.default_rng(2).standard_normal((STEPS, 3, 5)).astype("float32")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    base = tmp_path_factory.mktemp("inputs")
    write_array(base, "a", DATA, layout=Layout((4, 3, 5)), dims=("t", "y", "x"))
    write_array(base, "n", np.arange(STEPS, dtype="int32"), layout=Layout((4,)), dims=("t",))
    return str(base)


def make(path, device="cpu", batch_size=6, executor=True, source=None, ndim=0, dtype=types.INT64, **args):
    """A pipeline whose reader gets its samples from an external source: fed, or a function."""
    import dali_zarr

    args = {"host_memory_limit": 128 << 20, "arrays": ["a", "n"]} | args
    if device == "gpu":
        args = {"device_memory_limit": 256 << 20} | args
    pipe = Pipeline(batch_size=batch_size, num_threads=2, device_id=0 if device == "gpu" else None, exec_dynamic=executor)
    with pipe:
        samples = fn.external_source(source=source, name="samples", dtype=dtype, ndim=ndim, batch=True)
        found = dali_zarr.zarr_reader(samples, device=device, path=path, **args)
        pipe.set_outputs(*(found if isinstance(found, list) else [found]))
    pipe.build()
    return pipe


@pytest.mark.parametrize("executor", [True, False], ids=["dynamic executor", "pipelined executor"])
def test_batches_have_the_samples_of_the_input(path, device, executor):
    batches = [[3, 22, 0, 7, 7, 1], [5], [9, 8], [2, 2, 2, 2, 2, 2]]
    given = iter(batches * 3)
    pipe = make(path, device, executor=executor, source=lambda: np.array(next(given)))
    for _ in range(3):
        for numbers in batches:
            a, n = pipe.run()
            np.testing.assert_array_equal(to_numpy(a), DATA[numbers])
            np.testing.assert_array_equal(to_numpy(n), numbers)
            named = [n[i].source_info() for i in range(len(numbers))]
            assert [name.rpartition("t=")[2] for name in named] == [str(number) for number in numbers]


def test_rows_of_the_index(path, device):
    """The samples are given by what return_index gave."""
    how = {"window": 4, "step": 1, "breaks": [9], "return_index": True, "arrays": ["n"]}
    everything = iter([np.arange(17)] * 3)
    n, index = make(path, device, batch_size=17, source=lambda: next(everything), **how).run()
    rows = to_numpy(index)
    assert rows.shape == (17, 2)
    chosen = [16, 0, 6, 5]
    given = iter([rows[chosen].astype("int32")] * 3)
    again = make(path, device, source=lambda: next(given), ndim=1, dtype=types.INT32, **how)
    found, index_again = again.run()
    np.testing.assert_array_equal(to_numpy(found), to_numpy(n)[chosen])
    np.testing.assert_array_equal(to_numpy(index_again), rows[chosen])


def test_fed_one_by_one(path, device):
    pipe = make(path, device)
    batches = [[4], [1, 2, 3], [22]]
    # The pipeline runs once ahead.
    for numbers in [*batches, [0]]:
        pipe.feed_input("samples", [np.array(number) for number in numbers])
    for numbers in batches:
        a, n = pipe.run()
        np.testing.assert_array_equal(to_numpy(a), DATA[numbers])
        np.testing.assert_array_equal(to_numpy(n), numbers)


def test_ragged_rows(tmp_path, device):
    ends = np.cumsum([3, 0, 5])
    write_array(tmp_path, "x", np.arange(8, dtype="int32"), layout=Layout((3,)), dims=("i",))
    write_array(tmp_path, "ends", ends, dims=("row",))
    given = iter([[2, 2, 2], [1], [0, 2]] * 2)
    pipe = make(str(tmp_path), device, batch_size=3, source=lambda: np.array(next(given)), arrays=["x"], ragged_ends="ends")
    rows = {0: [0, 1, 2], 1: [], 2: [3, 4, 5, 6, 7]}
    for numbers in ([2, 2, 2], [1], [0, 2]):
        (x,) = pipe.run()
        x = x.as_cpu() if device == "gpu" else x
        assert [np.array(x.at(i)).tolist() for i in range(len(x))] == [rows[n] for n in numbers]


@pytest.mark.parametrize(
    ("given", "how", "says"),
    [
        (np.array([1, 23]), {}, "expected numbers of samples from 0 to 22, but found 23 as number 1 of the batch"),
        (np.array([[1, 2]]), {"ndim": 1}, "expected samples by 1 numbers each"),
        (np.array([1.0]), {"dtype": types.FLOAT64}, "the input: expected for each sample its number"),
        (np.array([[[1]]]), {"ndim": 2}, "the input: expected for each sample its number"),
        ([np.array([1]), np.array([1, 2])], {"ndim": 1}, "the input: expected for each sample its number"),
    ],
    ids=str,
)
def test_inputs_that_are_no_samples(path, given, how, says):
    pipe = make(path, source=lambda: given, **how)
    with pytest.raises((RuntimeError, IndexError, ValueError)) as caught:
        pipe.run()
    assert says in str(caught.value), caught.value


@pytest.mark.parametrize("what", ["random_shuffle", "shuffle_after_epoch", "stick_to_shard", "pad_last_batch"])
def test_an_order_of_its_own_is_refused(path, what):
    with pytest.raises(ValueError, match=f"{what}: expected none in the caller's order"):
        make(path, **{what: True})


def test_chunks_are_shared_across_batches(path):
    import dali_zarr

    given = iter([[i % 4] for i in range(40)])
    pipe = make(path, batch_size=1, source=lambda: np.array(next(given)), name="reader")
    for _ in range(30):
        pipe.run()
    assert dali_zarr.counters(pipe)["reader"]["chunks_read"] == 2


def test_a_source_that_ends(path):
    """DALI ends the epoch, and the pipeline can go on."""
    class Source:
        def __iter__(self):
            self.left = iter([[1, 2], [3]])
            return self

        def __next__(self):
            return np.array(next(self.left))

    pipe = make(path, source=Source())
    found = []
    with pytest.raises(StopIteration):
        while True:
            found.append(to_numpy(pipe.run()[1]).tolist())
    assert found == [[1, 2], [3]]
    pipe.reset()


def test_a_pipeline_that_is_dropped_without_input(path, device):
    make(path, device)


def test_dynamic_mode(path, device):
    script = f"""
import numpy as np
import dali_zarr
import nvidia.dali.experimental.dynamic as ndd
reader = ndd.readers.Zarr(path={path!r}, arrays=["n"], device={device!r}, host_memory_limit=128 << 20, max_batch_size=8)
for numbers in ([3, 22, 0], [5], [7, 7, 1, 2]):
    found = reader(ndd.batch(np.array(numbers)))
    assert np.asarray(found.evaluate().cpu() if hasattr(found, "cpu") else found).tolist() == numbers, found
print("fine")
"""
    assert "fine" in run_script(script)

"""The functions of the C ABI for the caller's order, called as a C program calls them."""

from __future__ import annotations

import ctypes
import json
import threading
import time
from ctypes import byref, c_size_t, c_uint64, c_void_p

import dali_zarr
import numpy as np
import pytest
from support.stores import Layout, write_array

VALUE_ERROR, INDEX_ERROR, FULL = 1, 3, -1
NEXT_PLACE, NO_PLACE = 2**64 - 1, 2**64 - 2
DATA = np.arange(20 * 3, dtype="int32").reshape(20, 3)


@pytest.fixture(scope="module")
def library():
    library = ctypes.CDLL(dali_zarr.plugin_path())
    library.dali_zarr_last_error.restype = ctypes.c_char_p
    library.dali_zarr_reader_push.argtypes = [c_void_p, c_void_p, c_size_t, c_uint64, c_uint64]
    library.dali_zarr_push.argtypes = [c_uint64, c_void_p, c_size_t, c_uint64, c_uint64]
    for name, of in (("reader_push_batches", c_void_p), ("push_batches", c_uint64)):
        getattr(library, f"dali_zarr_{name}").argtypes = [of, c_void_p, c_void_p, c_void_p, c_size_t, c_uint64, c_void_p]
    library.dali_zarr_reader_find.argtypes = [c_void_p, c_void_p, c_size_t, c_size_t, c_void_p]
    for name in ("next_batch", "batch_samples", "stats"):
        getattr(library, f"dali_zarr_{name}").argtypes = [c_void_p, c_void_p]
    library.dali_zarr_batch_release.argtypes = library.dali_zarr_close.argtypes = [c_void_p]
    library.dali_zarr_batch_data.argtypes = [c_void_p, c_size_t, c_void_p, c_void_p]
    return library


@pytest.fixture
def opened(library, tmp_path):
    write_array(tmp_path, "a", DATA, layout=Layout((4, 3)), dims=("t", "x"))
    readers = []

    def open_reader(**more):
        reader = c_void_p()
        spec = {"path": str(tmp_path), "dims": "t", "batch_size": 3, "order": "pushed"} | more
        status = library.dali_zarr_open(json.dumps(spec).encode(), byref(reader))
        assert status == 0, library.dali_zarr_last_error()
        readers.append(reader)
        return reader

    yield open_reader
    for reader in readers:
        library.dali_zarr_close(reader)


def push(library, reader, numbers, epoch=0, place=NEXT_PLACE) -> int:
    array = np.array(numbers, "int64")
    return library.dali_zarr_reader_push(reader, array.ctypes.data, len(array), epoch, place)


def push_batches(library, reader, batches, epoch=0, places=None) -> tuple[int, int]:
    """Returns the status, and how many batches were pushed."""
    samples, counts = np.array(sum(batches, []), "int64"), np.array([len(batch) for batch in batches], "uintp")
    places, pushed = np.array(places or [NEXT_PLACE] * len(batches), "uint64"), c_size_t(99)
    arrays = (one.ctypes.data for one in (samples, counts, places))
    push = library.dali_zarr_push_batches if isinstance(reader, int) else library.dali_zarr_reader_push_batches
    return push(reader, *arrays, len(batches), epoch, byref(pushed)), pushed.value


def taken(library, reader) -> tuple[bytes, int]:
    """Takes a batch. Returns its first output, and how many samples count."""
    batch, data, size, count = c_void_p(), c_void_p(), c_size_t(), c_size_t()
    assert library.dali_zarr_next_batch(reader, byref(batch)) == 0, library.dali_zarr_last_error()
    assert library.dali_zarr_batch_data(batch, 0, byref(data), byref(size)) == 0
    assert library.dali_zarr_batch_samples(batch, byref(count)) == 0
    values = ctypes.string_at(data, size.value)
    library.dali_zarr_batch_release(batch)
    return values, count.value


def take(library, reader) -> tuple[np.ndarray, int]:
    values, count = taken(library, reader)
    return np.frombuffer(values, "int32").reshape(-1, 3), count


def test_batches_are_what_was_pushed(library, opened):
    reader = opened()
    for numbers in ([4, 19, 0], [7], [7, 7]):
        assert push(library, reader, numbers) == 0
    for numbers, count in (([4, 19, 0], 3), ([7, 7, 7], 1), ([7, 7, 7], 2)):
        values, found = take(library, reader)
        np.testing.assert_array_equal(values, DATA[numbers])
        assert found == count


def test_errors_push_nothing(library, opened):
    reader, own = opened(), opened(order="own")
    for numbers, status, says in [
        ([1, 20], INDEX_ERROR, "found 20 as number 1"), ([], VALUE_ERROR, "but 0 were pushed"),
        ([1] * 4, VALUE_ERROR, "but 4 were pushed"),
    ]:
        assert push(library, reader, numbers) == status and says in library.dali_zarr_last_error().decode()
    assert library.dali_zarr_reader_push(reader, None, 2, 0, 0) == VALUE_ERROR
    assert library.dali_zarr_reader_push(None, None, 0, 0, 0) == VALUE_ERROR
    assert push(library, reader, [1], place=1 << 62) == VALUE_ERROR
    assert push(library, own, [1]) == VALUE_ERROR and b"its own" in library.dali_zarr_last_error()
    assert library.dali_zarr_push(10**9, None, 0, 0, 0) == VALUE_ERROR
    assert b"there is no reader 1000000000" in library.dali_zarr_last_error()
    assert take(library, own)[1] == 3
    assert push(library, reader, [2]) == 0
    np.testing.assert_array_equal(take(library, reader)[0], DATA[[2, 2, 2]])


def test_a_full_queue(library, opened):
    reader = opened(prefetch_queue_depth=1)
    pushed = 0
    while (status := push(library, reader, [pushed % 20])) == 0:
        pushed += 1
    assert status == FULL and pushed >= 1024
    for i in range(pushed):
        assert take(library, reader)[0][0, 0] == DATA[i % 20, 0]
    assert push(library, reader, [3]) == 0


def number_of(library, reader) -> int:
    text = ctypes.c_char_p()
    assert library.dali_zarr_stats(reader, byref(text)) == 0
    return json.loads(text.value)["reader"]


@pytest.mark.parametrize("by_number", [False, True])
def test_several_batches_at_once(library, opened, by_number):
    reader = opened()
    to = number_of(library, reader) if by_number else reader
    assert push_batches(library, to, []) == (0, 0)
    assert push_batches(library, to, [[4, 19, 0], [7], [7, 8]]) == (0, 3)
    for numbers, count in (([4, 19, 0], 3), ([7, 7, 7], 1), ([7, 8, 8], 2)):
        values, found = take(library, reader)
        np.testing.assert_array_equal(values, DATA[numbers])
        assert found == count


def test_of_several_batches_those_before_an_error_are_pushed(library, opened):
    reader, own = opened(), opened(order="own")
    for batches, status, says in [
        ([[1], [2, 20], [3]], INDEX_ERROR, "found 20 as number 1 of the batch"), ([[4], [], [5]], VALUE_ERROR, "but 0 were pushed"),
        ([[6], [1] * 4], VALUE_ERROR, "but 4 were pushed"),
    ]:
        assert push_batches(library, reader, batches) == (status, 1) and says in library.dali_zarr_last_error().decode()
    assert push_batches(library, reader, [[8], [9]], places=[0, 1 << 62]) == (VALUE_ERROR, 1)
    assert push_batches(library, own, [[1]]) == (VALUE_ERROR, 99) and b"its own" in library.dali_zarr_last_error()
    assert push_batches(library, 10**9, [[1]])[0] == VALUE_ERROR
    numbers, pushed = np.array([1, 2**63, 2**63], "uint64"), c_size_t()
    one, huge = numbers.ctypes.data, numbers[1:].ctypes.data
    for *pointers, batches in (
        (None, one, one, byref(pushed), 1), (one, None, one, byref(pushed), 1), (one, one, None, byref(pushed), 1),
        (one, one, one, None, 1), (one, huge, huge, byref(pushed), 2),
    ):
        assert library.dali_zarr_reader_push_batches(reader, *pointers[:3], batches, 0, pointers[3]) == VALUE_ERROR
    for number in (1, 4, 6, 8):
        assert take(library, reader)[0][0, 0] == DATA[number, 0]


def test_of_several_batches_as_many_are_pushed_as_there_is_room_for(library, opened):
    reader = opened(prefetch_queue_depth=1)
    pushed, status = 0, 0
    while status == 0:
        status, count = push_batches(library, reader, [[(pushed + k) % 20] for k in range(7)])
        pushed += count
    assert status == FULL and pushed >= 1024
    for i in range(pushed):
        assert take(library, reader)[0][0, 0] == DATA[i % 20, 0]


def test_places_of_several_batches(library, opened):
    """Random windows depend on them."""
    how = {"window": {"t": 0, "x": 1}, "dims": ["t", "x"], "random_crop": ["x"], "seed": 3, "batch_size": 2}
    batches, places = [[n, n] for n in range(20)], [(7 * n) % 20 for n in range(20)]
    one, several = opened(**how), opened(**how)
    for batch, place in zip(batches, places, strict=True):
        assert push(library, one, batch, 5, place) == 0
    assert push_batches(library, several, batches, 5, places) == (0, 20)
    found = [[taken(library, reader)[0] for _ in batches] for reader in (one, several)]
    assert found[0] == found[1] and len(set(found[0])) > 1


def test_a_push_while_another_thread_waits(library, opened):
    reader = opened()
    found = []
    waiting = threading.Thread(target=lambda: found.append(take(library, reader)))
    waiting.start()
    time.sleep(0.05)
    assert not found and push(library, reader, [9]) == 0
    waiting.join(timeout=60)
    np.testing.assert_array_equal(found[0][0], DATA[[9, 9, 9]])


def test_by_the_readers_number(library, opened):
    reader = opened()
    number = number_of(library, reader)
    array = np.array([5, 6], "int64")
    assert library.dali_zarr_push(number, array.ctypes.data, 2, 0, NO_PLACE) == 0
    np.testing.assert_array_equal(take(library, reader)[0], DATA[[5, 6, 6]])


def test_samples_by_their_starts(library, opened):
    reader = opened(window=2, step=3, roi_start=1)
    rows, found = np.array([[7], [1], [4]], "int64"), np.empty(3, "int64")
    assert library.dali_zarr_reader_find(reader, rows.ctypes.data, 3, 1, found.ctypes.data) == 0
    assert found.tolist() == [2, 0, 1]
    rows[1] = 2
    assert library.dali_zarr_reader_find(reader, rows.ctypes.data, 3, 1, found.ctypes.data) == INDEX_ERROR
    assert library.dali_zarr_reader_find(reader, rows.ctypes.data, 1, 3, found.ctypes.data) == VALUE_ERROR
    assert library.dali_zarr_reader_find(reader, None, 0, 1, None) == 0


def test_closing_with_pushes_and_without(library, opened):
    opened()
    reader = opened()
    for i in range(20):
        assert push(library, reader, [i]) == 0

"""Plans of ``rechunk``, without stores: regions tile the target, stay within memory, and count reads as they happen."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from dali_zarr._rechunk.plan import Axis, Copy, Sizes, compared, planned, regions, smallest, task_bytes
from hypothesis import given
from hypothesis import strategies as st

FLOAT = Sizes(4, 4, 0, False, 1)
MIB = 1 << 20


@st.composite
def axes(draw):
    length = draw(st.integers(1, 60))
    chunk = draw(st.integers(1, 40))
    unit = draw(st.integers(1, length))
    kind = draw(st.sampled_from(["whole", "spaced", "listed"]))
    if kind == "whole":
        return Axis(length, unit, chunk)
    if kind == "spaced":
        return Axis(length, unit, chunk, draw(st.integers(0, 20)), draw(st.integers(1, 5)))
    places = draw(st.lists(st.integers(0, 100), min_size=length, max_size=length))
    return Axis(length, unit, chunk, indices=tuple(places))


def places(axis):
    if axis.indices is not None:
        return np.asarray(axis.indices)
    return axis.start + axis.step * np.arange(axis.length)


def reads(axes, region):
    """Source chunks that are touched, region by region."""
    count = 0
    for part in regions([axis.length for axis in axes], region):
        count += math.prod(len(set(places(axis)[one] // axis.chunk)) for axis, one in zip(axes, part, strict=True))
    return count


@given(st.lists(axes(), min_size=0, max_size=3), st.integers(8, 20), st.sampled_from([1, 4]))
def test_a_plan_tiles_the_target_within_memory(axes, bits, workers):
    budget = 1 << bits
    plan = planned(axes, FLOAT, budget, workers)
    if plan is None:
        assert smallest(axes, FLOAT) > budget
        return
    shape = [axis.length for axis in axes]
    assert plan.task_bytes <= budget
    for number, copy in enumerate(plan.copies):
        unit = plan.intermediate if plan.intermediate and number == 0 else [axis.unit for axis in axes]
        found = list(regions(shape, copy.region))
        assert len(found) == copy.count
        written = np.zeros(shape, int)
        for part in found:
            written[part] += 1
            # Whole objects: none is written by two tasks.
            assert all(one.start % extent == 0 for one, extent in zip(part, unit, strict=True))
            assert all(one.stop % extent == 0 or one.stop == n for one, extent, n in zip(part, unit, shape, strict=True))
        assert (written == 1).all()
    if plan.intermediate is None and math.prod(shape):
        (copy,) = plan.copies
        touched = math.prod(len(set(places(axis) // axis.chunk)) for axis in axes)
        assert copy.amplification == pytest.approx(reads(axes, copy.region) / touched)


@given(st.lists(axes(), min_size=1, max_size=3), st.integers(10, 20), st.data())
def test_regions_of_a_comparison_tile_too(axes, bits, data):
    chunks = [data.draw(st.integers(1, axis.length)) for axis in axes]
    region = compared(axes, chunks, FLOAT, 1 << bits)
    written = np.zeros([axis.length for axis in axes], int)
    for part in regions(written.shape, region):
        written[part] += 1
    assert (written == 1).all()


def test_more_memory_means_fewer_reads():
    """From fields to time series: a source chunk is read less often the more of it a task can hold."""
    fields = [Axis(1000, 1000, 1), Axis(100, 10, 100), Axis(200, 10, 200)]
    found = [
        plan.copies[0].amplification for memory in (2, 8, 32, 256)
        if (plan := planned(fields, FLOAT, memory * MIB, 1)) is not None and plan.intermediate is None
    ]
    assert found == sorted(found, reverse=True) and found[-1] == 1.0


def test_crossing_chunks_and_little_memory_need_an_intermediate_array():
    """1000 fields of 400 x 800 become series of all times: directly each field would be read many times."""
    fields = [Axis(1000, 1000, 1), Axis(400, 10, 400), Axis(800, 10, 800)]
    plan = planned(fields, FLOAT, 64 * MIB, 2)
    assert plan is not None and plan.intermediate is not None and len(plan.copies) == 2
    assert plan.task_bytes <= 64 * MIB
    assert all(copy.amplification < 1.5 for copy in plan.copies)
    between = plan.intermediate
    assert 1 < between[0] < 1000 and between[1] * between[2] < 400 * 800
    # With memory for the whole array there is nothing to gain.
    whole = planned(fields, FLOAT, 4096 * MIB, 1)
    assert whole is not None and whole.intermediate is None and whole.copies[0].amplification == 1


@pytest.mark.parametrize("mib", [48, 64, 80, 100, 120])
def test_both_copies_read_each_chunk_once_if_smaller_intermediate_chunks_allow_it(mib):
    """Fields that become series at each place, with memory for a few whole fields."""
    plan = planned([Axis(120, 120, 1), Axis(721, 72, 721), Axis(1440, 72, 1440)], Sizes(4, 4, 0, False, 2), mib << 20, 2)
    assert plan is not None and plan.intermediate is not None
    assert [copy.amplification for copy in plan.copies] == [1, 1], plan


def test_splitting_chunks_reads_each_once():
    """Chunks of ten hours become chunks of one: regions are multiples of both."""
    plan = planned([Axis(8760, 1, 10), Axis(721, 721, 721), Axis(1440, 1440, 1440)], FLOAT, 256 * MIB, 2)
    assert plan is not None and plan.intermediate is None
    (copy,) = plan.copies
    assert copy.amplification == 1 and copy.region[0] % 10 == 0


def test_small_chunks_are_put_together():
    """A task is no single chunk of some bytes, and there are still tasks for all workers."""
    plan = planned([Axis(1 << 20, 16, 16), Axis(4, 4, 4)], FLOAT, 256 * MIB, 2)
    assert plan is not None
    assert 8 <= plan.copies[0].count <= 64


def test_shards_count_as_what_is_written():
    shards = replace(FLOAT, sharded=True)
    axes = [Axis(100, 50, 1), Axis(1000, 1000, 1000)]
    assert smallest(axes, shards) > smallest(axes, FLOAT) == task_bytes(axes, FLOAT, (50, 1000))
    assert planned(axes, shards, smallest(axes, shards) - 1, 1) is None
    plan = planned(axes, shards, smallest(axes, shards), 1)
    assert plan is not None and plan.copies[0].region == (50, 1000)


def test_the_longest_axes_are_planned_in_time():
    """A billion elements in small chunks, and a hundred thousand chunks in four dimensions."""
    assert planned([Axis(10**9, 1 << 20, 1 << 18)], FLOAT, 256 * MIB, 2) is not None
    fields = [Axis(10**5, 7, 5), Axis(13, 1, 13), Axis(721, 721, 100), Axis(1440, 1440, 100)]
    assert planned(fields, FLOAT, 256 * MIB, 2) is not None


def test_numbers_of_regions_are_their_places():
    """What is done is kept by number, so the order is part of the format."""
    found = list(regions((4, 3), (2, 2)))
    assert found == [
        (slice(0, 2), slice(0, 2)), (slice(0, 2), slice(2, 3)), (slice(2, 4), slice(0, 2)), (slice(2, 4), slice(2, 3)),
    ]
    assert list(regions((), ())) == [()] and not list(regions((0, 3), (1, 1)))
    assert all(isinstance(copy, Copy) for copy in planned([], FLOAT, MIB, 1).copies)
    assert list(itertools.chain(regions((0,), (1,)))) == []

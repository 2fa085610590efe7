"""Random arrays under random arguments: the operator and the oracle must agree, in values and in what they refuse."""

from __future__ import annotations

import tempfile
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.oracle import Oracle
from support.pipelines import build, check
from support.stores import CODECS_V2, CODECS_V3, DTYPES, Layout, sample_values, write_array

DIMS = ("time", "level", "lat", "lon")


@st.composite
def groups(draw: st.DrawFn) -> list[dict[str, Any]]:
    """What to write: one to three arrays that share the lengths of their dimensions."""
    extents = {d: draw(st.integers(1, 9)) for d in DIMS}
    zarr_format = draw(st.sampled_from([2, 3]))
    arrays = []
    for i in range(draw(st.integers(1, 3))):
        dims = tuple(d for d in DIMS if draw(st.booleans())) or ("time",)
        shape = tuple(extents[d] for d in dims)
        chunks = tuple(draw(st.integers(1, n + 1)) for n in shape)
        shards = None
        if zarr_format == 3 and draw(st.booleans()):
            shards = tuple(c * draw(st.integers(1, 3)) for c in chunks)
        layout = Layout(
            chunks, shards=shards, order=draw(st.sampled_from("CF")), big_endian=draw(st.booleans()),
            index_location=draw(st.sampled_from(["start", "end"])),
        )
        counts = [-(-n // c) for n, c in zip(shape, shards or chunks)]
        dtype = draw(st.sampled_from(DTYPES))
        missing = tuple(draw(st.sets(st.tuples(*(st.integers(0, n - 1) for n in counts)), max_size=3)))
        arrays.append(
            {
                "name": f"a{i}", "dims": dims, "layout": layout, "zarr_format": zarr_format, "missing": missing,
                "codec": draw(st.sampled_from(sorted(CODECS_V3 if zarr_format == 3 else CODECS_V2))),
                "values": sample_values(dtype, shape, seed=i),
                "fill_value": draw(st.sampled_from([0, 1, float("nan")] if dtype.startswith("float") else [0, 1])),
            }
        )
    return arrays


@st.composite
def arguments(draw: st.DrawFn, arrays: list[dict[str, Any]]) -> dict[str, Any]:
    """Arguments that mostly make sense; some don't, and must be refused."""
    names = sorted({d for a in arrays for d in a["dims"]})
    extents = {d: n for a in arrays for d, n in zip(a["dims"], a["values"].shape)}
    args: dict[str, Any] = {"arrays": [a["name"] for a in arrays], "return_index": draw(st.booleans())}
    if draw(st.booleans()):
        dim = draw(st.sampled_from(names))
        n = extents[dim]
        args["pick"] = [f"{dim}={','.join(map(str, draw(st.lists(st.integers(-n, n - 1), min_size=1, max_size=5))))}"]
    if draw(st.booleans()):
        args["dims"] = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
        count = len(args["dims"])

        def maybe(key: str, values: st.SearchStrategy[int]) -> None:
            if draw(st.booleans()):
                args[key] = draw(st.lists(values, min_size=count, max_size=count))

        maybe("window", st.integers(0, 4))
        maybe("step", st.integers(1, 4))
        maybe("stride", st.integers(1, 3))
        maybe("roi_start", st.integers(-2, 3))
    if draw(st.booleans()):
        args["offsets"] = draw(st.lists(st.integers(-2, 3), min_size=1, max_size=3))
    if draw(st.booleans()):
        args["breaks"] = draw(st.lists(st.integers(-9, 9), max_size=3))
    args["out_of_bounds_policy"] = draw(st.sampled_from(["drop", "drop", "pad", "edge", "error"]))
    if draw(st.booleans()):
        args["fillna"] = draw(st.sampled_from([0.0, 0.1, -300.0]))
    if draw(st.booleans()):
        args["dtype"] = draw(st.sampled_from(DTYPES))
    if draw(st.booleans()):
        args["mean"] = draw(st.lists(st.sampled_from([0.0, 1.5, -300.0]), min_size=1, max_size=1))
        args["stddev"] = draw(st.lists(st.sampled_from([1.0, 0.3, 1e4]), min_size=len(arrays), max_size=len(arrays)))
    dtypes = [args["dtype"]] if "dtype" in args else ["float32"] if "mean" in args else [str(a["values"].dtype) for a in arrays]
    # All types have 0 and 1.
    is_float = all(str(dtype).startswith("float") for dtype in dtypes)
    args["fill_value"] = draw(st.sampled_from([0.0, -2.5, 300.0] if is_float else [0.0, 1.0]))
    # Which dimensions are the grid is only defined when some array has two.
    if max(len(a["dims"]) for a in arrays) >= 2:
        args["stack_arrays"] = draw(st.booleans())
    args["num_shards"] = draw(st.integers(1, 3))
    args["shard_id"] = draw(st.integers(0, args["num_shards"] - 1))
    args["stick_to_shard"] = draw(st.booleans())
    args["pad_last_batch"] = draw(st.booleans())
    return args


@given(data=st.data())
def test_random_plans(device, data):
    arrays = data.draw(groups())
    args = data.draw(arguments(arrays))
    batch_size = data.draw(st.integers(1, 4))
    with tempfile.TemporaryDirectory() as path:
        for a in arrays:
            write_array(path, **a)
        try:
            oracle = Oracle(batch_size, path=path, **args)
        except (ValueError, IndexError) as refused:
            # Stacks of mixed types may also be refused as a TypeError.
            with pytest.raises((type(refused), TypeError)):
                build(device, batch_size, path=path, **args)
            return
        assume(oracle.num_samples < 400)
        # Where a stack puts a dimension that its array of the highest rank lacks is not specified.
        assume(not args.get("stack_arrays") or set(oracle._grid) <= set(oracle.reference.dims))
        check(device, batch_size, epochs=2, path=path, **args)

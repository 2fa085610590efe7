"""mask_and_scale left out: packed arrays are decoded as xarray does it, others stay as stored, and both are told."""

from __future__ import annotations

import base64
import logging
import struct

import dali_zarr
import numpy as np
import pytest
import xarray as xr
from dali_zarr import _log, _native
from support.pipelines import build, check, same, to_numpy
from support.stores import Layout, write_array

DIMS = ("time", "x")
PACKED = {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -999}
NAN = base64.standard_b64encode(struct.pack("<d", np.nan)).decode()
# The attributes of each array, its type, and the missing values that are named where it stays as stored.
ARRAYS = {
    "packed": (PACKED, "int16", None),
    "scaled": ({"scale_factor": 0.5}, "int16", None),
    "shifted": ({"add_offset": 2.0}, "float32", None),
    "filled": ({"_FillValue": -999}, "int16", "-999"),
    "missing": ({"missing_value": [3, -999]}, "int32", "3, -999"),
    "nan": ({"_FillValue": NAN}, "float32", None),
    "plain": ({"units": "K"}, "int16", None),
}
DECODED = ("packed", "scaled", "shifted")


def write(path, names=tuple(ARRAYS), **attributes):
    for seed, name in enumerate(names):
        given, dtype, _ = ARRAYS[name]
        values = np.random.default_rng(seed).integers(0, 10, (6, 4)).astype(dtype)
        values[::2, 1] = -999
        write_array(path, name, values, layout=Layout((2, 4)), dims=DIMS, attributes=given | attributes)
    return path


def stored(path, name):
    return xr.open_zarr(path, consolidated=False, mask_and_scale=False)[name].values


def decoded(path, name):
    return xr.open_zarr(path, consolidated=False)[name].values


def logged(caplog, **spec):
    """What the engine tells of a reader: levels and texts."""
    caplog.clear()
    caplog.set_level(logging.INFO, "dali_zarr")
    with _log.engine(), _native.Reader({name: str(v) if name == "path" else v for name, v in spec.items()}) as reader:
        reader.skip()
    return [(record.levelname, record.getMessage()) for record in caplog.records]


@pytest.mark.parametrize("name", ARRAYS)
def test_each_array_by_itself(tmp_path, device, name):
    write(tmp_path)
    (found,) = build(device, 6, path=tmp_path, arrays=[name]).run()
    same(to_numpy(found), (decoded if name in DECODED else stored)(tmp_path, name), name)
    for told, expected in ((True, decoded), (False, stored)):
        (found,) = build(device, 6, path=tmp_path, arrays=[name], mask_and_scale=told).run()
        same(to_numpy(found), expected(tmp_path, name), f"{name}, {told}")


def test_v2_without_attributes_stays_as_stored(tmp_path, device, caplog):
    """There an array's own fill value masks what equals it, in arrays that are decoded; others are told."""
    for name, attributes in (("plain", {}), ("packed", {"scale_factor": 0.5})):
        values = np.arange(24, dtype="int16").reshape(6, 4)
        write_array(tmp_path, name, values, zarr_format=2, dims=DIMS, fill_value=7, attributes=attributes)
    (warning, text), (level, decodes) = logged(caplog, path=tmp_path, arrays=["plain", "packed"])
    why = "array 'plain': stays as stored, though its fill_value, in Zarr v2, means missing values (7)"
    assert warning == "WARNING" and why in text
    assert level == "INFO" and decodes.endswith(": 'packed'")
    # Other readers of the process don't say it again.
    assert logged(caplog, path=tmp_path, arrays=["plain", "packed"]) == []
    check(device, 2, path=tmp_path, arrays=["plain", "packed"])


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(("fill", "is_told"), [(-999.0, True), (0.0, False), (np.nan, False), (None, False)])
def test_what_xarray_writes_is_told_in_both_versions(tmp_path, caplog, version, fill, is_told):
    """It keeps _FillValue in the metadata of Zarr v2, in an attribute of v3: there 0 is told too."""
    values = np.float32([[1, 2], [-999, 4], [5, 6]])
    encoding = {"sst": {"_FillValue": None if fill is None else np.float32(fill)}}
    store = tmp_path / "s"
    xr.Dataset({"sst": (("t", "x"), values)}).to_zarr(store, zarr_format=version, encoding=encoding, consolidated=False)
    is_told = is_told or (version == 3 and fill == 0)
    given = {"path": store, "arrays": ["sst"]}
    texts = [text for level, text in logged(caplog, **given) if level == "WARNING"]
    assert len(texts) == is_told and all(f"missing values ({fill})" in text for text in texts)
    told = [text for text in dali_zarr.explain(**given)["advice"] if "stays as stored" in text]
    assert told == texts
    same(to_numpy(build("cpu", 3, **given).run()[0]), values, "as stored")
    found = dali_zarr.statistics(**given)["arrays"]["sst"]
    assert found["min"] == -999 and found["nan_share"] == 0 and found["mask_and_scale"] is False
    for told in (True, False):
        assert logged(caplog, **given, mask_and_scale=told) == []
    decoded_values = np.where(values == fill, np.nan, values) if fill == -999 else values
    same(to_numpy(build("cpu", 3, **given, mask_and_scale=True).run()[0]), decoded_values.astype("float32"), "decoded")


def test_what_the_log_says(tmp_path, caplog):
    write(tmp_path)
    *warnings, (level, text) = logged(caplog, path=tmp_path, arrays=[*ARRAYS, "packed", "filled"])
    assert (level, text) == (
        "INFO", f"store {tmp_path}: decoded as xarray does it, since they have scale_factor or add_offset and mask_and_scale "
        "is left out: 'packed', 'scaled', 'shifted'",
    )
    assert warnings == [
        ("WARNING", f"store {tmp_path}, array '{name}': stays as stored, though its attributes name missing values ({values}): "
         "mask_and_scale=True makes them NaN, as xarray does it; mask_and_scale=False keeps them without this warning")
        for name, (_, _, values) in ARRAYS.items() if values is not None
    ]
    for told in (True, False):
        assert logged(caplog, path=tmp_path, arrays=list(ARRAYS), mask_and_scale=told) == []
    assert logged(caplog, path=tmp_path, arrays=["plain", "nan"]) == []


def test_attributes_that_do_not_decode(tmp_path, caplog):
    """Those of packed arrays are errors, as in xarray; others are named as they are."""
    write(tmp_path / "s", ["packed"], scale_factor="half")
    write(tmp_path / "t", ["filled"], _FillValue="none")
    with pytest.raises(ValueError, match="array 'packed': .*scale_factor = \"half\".*mask_and_scale=False"):
        build(path=tmp_path / "s", arrays=["packed"])
    ((level, text),) = logged(caplog, path=tmp_path / "t", arrays=["filled"])
    assert level == "WARNING" and "missing values (_FillValue = \"none\")" in text
    # Dimensions and coordinates are found whatever the attributes say.
    pipe = build(path=tmp_path / "s", arrays=["packed"], mask_and_scale=False, isel={"x": [0, 2]})
    same(to_numpy(pipe.run()[0]), stored(tmp_path / "s", "packed")[:2, [0, 2]], "picked")


def test_stacks(tmp_path, device):
    """The stack's type is that of its arrays after the decision."""
    write(tmp_path)
    check(device, 2, path=tmp_path, arrays=["packed", "scaled"], stack_arrays=True, dtype="float32")
    check(device, 2, path=tmp_path, arrays=["packed", "filled", "plain"], stack_arrays=True, dtype="float32", mean=[1.0, 2.0, 3.0])
    check(device, 2, path=tmp_path, arrays=["filled", "plain"], stack_arrays=True)
    with pytest.raises(TypeError, match="array 'packed' gives float64 but array 'plain' gives int16; give the stack's type"):
        build(device, path=tmp_path, arrays=["packed", "plain"], stack_arrays=True)
    check(device, 2, path=tmp_path, arrays=["packed", "plain"], stack_arrays=True, mask_and_scale=False)


def test_joined_stores(tmp_path, device, caplog):
    one, other = (write(tmp_path / name, ["packed", "plain"]) for name in "ab")
    check(device, 2, path=[one, other], arrays=["packed", "plain"])
    differs = write(tmp_path / "c", ["packed", "plain"], scale_factor=0.02)
    message = "array 'packed': expected the same decoding attributes .*; mask_and_scale=False reads them as stored"
    with pytest.raises(ValueError, match=message):
        build(device, path=[one, differs], arrays=["packed"])
    check(device, 2, path=[one, differs], arrays=["packed", "plain"], mask_and_scale=False)
    # In any of the stores: the first that names a value is told.
    plain = write(tmp_path / "d", ["plain"])
    named = write(tmp_path / "e", ["plain"], missing_value=4)
    caplog.clear()
    with _log.engine(), _native.Reader({"path": [str(plain), str(named)], "arrays": ["plain"]}):
        pass
    (record,) = caplog.records
    assert record.levelname == "WARNING" and record.getMessage().startswith(f"store {named}, array 'plain': stays as stored")


@pytest.mark.parametrize("name", ["packed", "filled"])
def test_checkpoints(tmp_path, device, name):
    """A state of a reader that decoded is refused by one that doesn't, whoever decided it."""
    write(tmp_path)

    def make(checkpoint=None, **args):
        return build(device, 2, checkpointing=True, checkpoint=checkpoint, path=tmp_path, arrays=[name], dtype="float32", **args)

    pipe = make()
    pipe.run()
    state, following = pipe.checkpoint(), to_numpy(pipe.run()[0])
    is_decoded = name in DECODED
    for args in ({}, {"mask_and_scale": is_decoded}):
        same(to_numpy(make(state, **args).run()[0]), following, f"{args}")
    with pytest.raises(ValueError, match="mask_and_scale: "):
        make(state, mask_and_scale=not is_decoded)


def test_explain(tmp_path):
    write(tmp_path)
    found = dali_zarr.explain(path=tmp_path, arrays=list(ARRAYS))
    assert {a["name"]: a["mask_and_scale"] for a in found["arrays"]} == {name: name in DECODED for name in ARRAYS}
    assert {o["name"]: o["dtype"] for o in found["outputs"]} == {
        name: "float64" if name in DECODED else dtype for name, (_, dtype, _) in ARRAYS.items()
    }
    told = [text for text in found["advice"] if "mask_and_scale" in text]
    assert len(told) == 2 and "array 'filled': stays as stored" in told[0] and "(3, -999)" in told[1]
    assert "array packed (time, x), int16, decoded by mask_and_scale" in str(found)
    for told in (True, False):
        found = dali_zarr.explain(path=tmp_path, arrays=list(ARRAYS), mask_and_scale=told)
        assert {a["mask_and_scale"] for a in found["arrays"]} == {told}
        assert not any("mask_and_scale" in text for text in found["advice"])


def test_none_is_left_out(tmp_path):
    write(tmp_path)
    (found,) = build("cpu", 6, path=tmp_path, arrays=["packed"], mask_and_scale=None).run()
    same(to_numpy(found), decoded(tmp_path, "packed"), "None")
    with pytest.raises(TypeError, match="mask_and_scale: expected True or False"):
        build("cpu", path=tmp_path, arrays=["packed"], mask_and_scale=1)


def test_datasets_of_xarray_decode_as_they_were_opened(tmp_path):
    write(tmp_path, ["packed"])
    for is_decoded in (True, False):
        dataset = xr.open_zarr(tmp_path, consolidated=False, chunks=None, mask_and_scale=is_decoded)
        args = dali_zarr.from_xarray(dataset, path=str(tmp_path))
        assert args["mask_and_scale"] is is_decoded
        (found,) = build("cpu", 6, **args).run()
        same(to_numpy(found), dataset["packed"].values, f"{is_decoded}")


def test_statistics_tell_what_was_decoded(tmp_path):
    write(tmp_path)
    names = ["packed", "filled"]
    found = dali_zarr.statistics(tmp_path, arrays=names)["arrays"]
    assert [found[name]["mask_and_scale"] for name in names] == [True, False]
    assert np.isclose(found["packed"]["mean"], np.nanmean(decoded(tmp_path, "packed"))) and found["packed"]["nan_share"] > 0
    assert np.isclose(found["filled"]["mean"], stored(tmp_path, "filled").mean()) and found["filled"]["nan_share"] == 0
    found = dali_zarr.statistics(tmp_path, arrays=names, mask_and_scale=False)["arrays"]
    assert [found[name]["mask_and_scale"] for name in names] == [False, False]

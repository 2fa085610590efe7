"""Images as chunks: the codecs of imagecodecs in v2 and v3, read beside zarr-python with imagecodecs, to the bit.

imagecodecs has classes for zarr-python 3 since 2026.4, for later Pythons than ours. Here its codecs of v2 stand in v3
too, by the same names and with the same bytes."""

from __future__ import annotations

import asyncio
import base64
import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dali_zarr
import numcodecs
import numpy as np
import pytest
import zarr
from dali_zarr.torch import Loader
from support.command_line import command
from support.pipelines import build, check
from support.stores import chunk_files, metadata
from zarr.abc.codec import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec
from zarr.registry import register_codec

imagecodecs = pytest.importorskip("imagecodecs")
images = pytest.importorskip("imagecodecs.numcodecs")
images.register_codecs(verbose=False)
pytestmark = pytest.mark.filterwarnings("ignore")

LOSSLESS: dict[str, dict[str, Any]] = {
    "png": {"id": "imagecodecs_png", "level": 4},
    "webp": {"id": "imagecodecs_webp", "lossless": True},
    "jpeg2k": {"id": "imagecodecs_jpeg2k", "reversible": True},
    "jpeg2k-alone": {"id": "imagecodecs_jpeg2k", "reversible": True, "codecformat": "j2k"},
    "jpegxl": {"id": "imagecodecs_jpegxl", "lossless": True},
    "jpegxl-fast": {"id": "imagecodecs_jpegxl", "lossless": True, "effort": 1, "usecontainer": True},
}
TYPES = {
    "imagecodecs_png": ("uint8", "uint16"), "imagecodecs_webp": ("uint8",),
    "imagecodecs_jpeg2k": ("uint8", "uint16", "int8", "int16"),
    "imagecodecs_jpegxl": ("uint8", "uint16", "float16", "float32"),
}
JPEG: dict[str, dict[str, Any]] = {
    "jpeg": {"id": "imagecodecs_jpeg", "level": 90},
    "jpeg-444": {"id": "imagecodecs_jpeg", "level": 75, "subsampling": "444"},
    "jpeg-422": {"id": "imagecodecs_jpeg", "level": 98, "subsampling": "422"},
    "jpeg-440": {"id": "imagecodecs_jpeg", "level": 50, "subsampling": "440"},
    "jpeg-rgb": {"id": "imagecodecs_jpeg", "level": 90, "colorspace_data": "RGB", "colorspace_jpeg": "RGB"},
    "jpeg-ycbcr": {"id": "imagecodecs_jpeg", "level": 90, "colorspace_data": "RGB", "colorspace_jpeg": "YCBCR"},
}


def scene(shape: tuple[int, ...], dtype: str = "uint8") -> np.ndarray:
    """Smooth colours with some noise, in the whole range of the type; floats from 0 to 1."""
    y, x = np.mgrid[0 : shape[-3], 0 : shape[-2]] if len(shape) > 2 else np.mgrid[0 : shape[0], 0 : shape[1]]
    channels = shape[-1] if len(shape) > 2 else 1
    planes = np.stack([np.sin(x / (7 + k) + k) + np.cos(y / (5 + k)) for k in range(channels)], -1)
    values = np.broadcast_to(planes.reshape(shape[-3:] if len(shape) > 2 else shape), shape)
    values = ((values + np.random.default_rng(3).normal(0, 0.1, shape)) / 5 + 0.5).clip(0, 1)
    d = np.dtype(dtype)
    return values.astype(d) if d.kind == "f" else (values * np.iinfo(d).max).astype(d)


def _v3(kind: type, name: str) -> type:
    """A class of zarr-python 3 around the codec of v2."""

    @dataclass(frozen=True)
    class Codec(kind):  # type: ignore[misc,valid-type]
        configuration: dict[str, Any] = field(default_factory=dict)
        is_fixed_size = False

        @classmethod
        def from_dict(cls, data: dict[str, Any]) -> Any:
            return cls(data.get("configuration", {}))

        def to_dict(self) -> dict[str, Any]:
            return {"name": name, "configuration": self.configuration}

        def _own(self, spec: Any) -> Any:
            more = {"shape": spec.shape, "dtype": spec.dtype.to_native_dtype().str} if kind is ArrayArrayCodec else {}
            return numcodecs.get_codec({"id": name, **self.configuration, **more})

        async def _decode_single(self, chunk: Any, spec: Any) -> Any:
            data = chunk.as_numpy_array()
            data = data.tobytes() if kind is ArrayArrayCodec else data
            out = await asyncio.to_thread(self._own(spec).decode, data)
            if kind is BytesBytesCodec:
                return spec.prototype.buffer.from_bytes(bytes(out))
            return spec.prototype.nd_buffer.from_numpy_array(np.asarray(out).reshape(spec.shape))

        async def _encode_single(self, chunk: Any, spec: Any) -> Any:
            out = await asyncio.to_thread(self._own(spec).encode, np.ascontiguousarray(chunk.as_numpy_array()))
            if kind is ArrayArrayCodec:
                values = np.frombuffer(out, spec.dtype.to_native_dtype()).reshape(spec.shape)
                return spec.prototype.nd_buffer.from_numpy_array(values)
            return spec.prototype.buffer.from_bytes(bytes(out))

        def compute_encoded_size(self, length: int, _spec: Any) -> int:
            return length

    return Codec


V3: dict[str, type] = {}
for _id in ("jpeg", "jpeg2k", "jpegxl", "png", "webp"):
    V3[f"imagecodecs_{_id}"] = _v3(ArrayBytesCodec, f"imagecodecs_{_id}")
for _id in ("lzw", "deflate"):
    V3[f"imagecodecs_{_id}"] = _v3(BytesBytesCodec, f"imagecodecs_{_id}")
for _id in ("delta", "floatpred"):
    V3[f"imagecodecs_{_id}"] = _v3(ArrayArrayCodec, f"imagecodecs_{_id}")
for _name, _class in V3.items():
    register_codec(_name, _class)


def codec_v3(config: dict[str, Any]) -> Any:
    return V3[config["id"]]({k: v for k, v in config.items() if k != "id"})


def write(
    path: Path, name: str, values: np.ndarray, chunks: tuple[int, ...], layout: str, compressor: dict[str, Any],
    filters: tuple[dict[str, Any], ...] = (),
) -> None:
    """Writes ``values`` with a compressor or image codec and filters, as v2, v3, or v3 in shards."""
    zarr.open_group(str(path), mode="a", zarr_format=2 if layout == "v2" else 3)
    how: dict[str, Any] = {"store": str(path), "name": name, "shape": values.shape, "chunks": chunks, "dtype": values.dtype}
    if layout == "v2":
        codecs = {"filters": [numcodecs.get_codec(f) for f in filters] or None, "compressors": numcodecs.get_codec(compressor)}
        how |= {"zarr_format": 2, **codecs}
    else:
        how |= {"zarr_format": 3, "filters": [codec_v3(f) for f in filters]}
        image = compressor["id"].endswith(("jpeg", "jpeg2k", "jpegxl", "png", "webp"))
        how |= {"serializer": codec_v3(compressor), "compressors": None} if image else {"compressors": [codec_v3(compressor)]}
        if layout == "v3-shards":
            how["shards"] = tuple(2 * n for n in chunks)
    zarr.create_array(**how)[...] = values


LAYOUTS = ("v2", "v3", "v3-shards")
# Shape and chunks of images: frames, tiles at the edge, odd sizes, one row, one column.
SHAPES = (
    ((6, 20, 30, 3), (1, 20, 30, 3)),
    ((5, 19, 33, 3), (1, 19, 33, 3)),
    ((45, 70, 3), (17, 31, 3)),
    ((45, 70), (16, 32)),
    ((4, 9, 7), (1, 9, 7)),
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int8", "int16", "float16", "float32"])
def test_lossless_images(tmp_path, device, layout, dtype):
    """Each format with each of its types: values are those that were written."""
    names = []
    for codec, config in LOSSLESS.items():
        if dtype not in TYPES[config["id"]]:
            continue
        for number, (shape, chunks) in enumerate(SHAPES):
            colours = shape[-1] in (3, 4)
            if codec == "webp" and not colours:
                continue
            values = scene(shape, dtype)
            write(tmp_path, f"{codec}{number}", values, chunks, layout, config)
            np.testing.assert_array_equal(zarr.open_array(str(tmp_path), path=f"{codec}{number}", mode="r")[...], values)
            names.append(f"{codec}{number}")
    for name in names:
        check(device, 2, path=tmp_path, arrays=[name])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("codec", JPEG)
def test_jpeg_is_equal_to_imagecodecs(tmp_path, device, layout, codec):
    """Values of the CPU's decoder are those of libjpeg-turbo, to the bit; more than the promise of one level."""
    for number, (shape, chunks) in enumerate(SHAPES):
        if codec != "jpeg" and shape[-1] != 3:
            continue
        write(tmp_path, f"a{number}", scene(shape), chunks, layout, JPEG[codec])
        check(device, 2, path=tmp_path, arrays=[f"a{number}"], decode_device="cpu")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "most"), [("uint8", 1), ("int8", 1), ("uint16", 2), ("int16", 2)])
def test_lossy_jpeg2k_is_near_imagecodecs(tmp_path, layout, dtype, most):
    """The transform of floating-point numbers is rounded in another order than OpenJPEG's. With the reversible one, values that
    lack their last bits are equal too."""
    for number, (shape, chunks) in enumerate(SHAPES):
        for reversible in (True, False):
            config = {"id": "imagecodecs_jpeg2k", "level": 45, "reversible": reversible}
            name = f"a{number}{reversible}"
            write(tmp_path, name, scene(shape, dtype), chunks, layout, config)
            expected = zarr.open_array(str(tmp_path), path=name, mode="r")[...]
            loader = Loader(tmp_path, arrays=[name], batch_size=7, device="cpu")
            found = np.concatenate([batch[name].numpy() for batch in loader])
            assert np.abs(found.astype("i8") - expected).max() <= (0 if reversible else most)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "most"), [("uint8", 1), ("uint16", 3), ("float16", 2**-10), ("float32", 1e-4)])
def test_lossy_jpegxl_is_near_imagecodecs(tmp_path, layout, dtype, most):
    """libjxl and the decoder both compute with float32, in another order. Small distances have large low frequencies."""
    for number, (shape, chunks) in enumerate(SHAPES):
        for how in ({"level": 99}, {"distance": 0.01}, {"distance": 4.0, "effort": 3}):
            config = {"id": "imagecodecs_jpegxl", "lossless": False, **how}
            name = f"a{number}{len(how)}{how.get('level')}"
            write(tmp_path, name, scene(shape, dtype), chunks, layout, config)
            expected = zarr.open_array(str(tmp_path), path=name, mode="r")[...]
            loader = Loader(tmp_path, arrays=[name], batch_size=7, device="cpu")
            found = np.concatenate([batch[name].numpy() for batch in loader])
            assert np.abs(found.astype("f8") - expected.astype("f8")).max() <= most


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float16", "float32"])
def test_jpegxl_of_other_channels(tmp_path, layout, dtype):
    """Gray and colours with alpha; planes of their own; letters, which are in a frame of their own; several groups."""
    letters = np.zeros((60, 90, 3), dtype)
    letters[5:50:12, 4:80:9] = letters[6:50:12, 5:80:9] = letters[7:50:12, 4:80:9] = scene((1, 1, 3), dtype)[0, 0]
    for name, values, more in (
        ("two", scene((12, 34, 2), dtype), {}), ("four", scene((12, 34, 4), dtype), {}), ("letters", letters, {}),
        ("planes", np.moveaxis(scene((12, 34, 5), dtype), -1, 0), {"planar": True}), ("groups", scene((20, 300, 3), dtype), {}),
        ("lossy", scene((12, 34, 4), dtype), {"lossless": False}),
    ):
        config = {"id": "imagecodecs_jpegxl", "lossless": True, **more}
        write(tmp_path, name, np.stack([values] * 4), (1, *values.shape), layout, config)
        expected = zarr.open_array(str(tmp_path), path=name, mode="r")[...]
        (found,) = [batch[name].numpy() for batch in Loader(tmp_path, arrays=[name], batch_size=4, device="cpu")]
        if name == "lossy":
            assert np.abs(found.astype("f8") - expected.astype("f8")).max() <= (3 if dtype[0] == "u" else 2**-10)
        else:
            assert np.array_equal(found, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("config", "lossy"),
    [
        (JPEG["jpeg"], True), (LOSSLESS["png"], False), (LOSSLESS["webp"], False), ({"id": "imagecodecs_webp", "level": 80}, None),
        ({"id": "imagecodecs_webp", "lossless": False, "level": 80}, True), (LOSSLESS["jpeg2k"], False),
        ({"id": "imagecodecs_jpeg2k"}, None), ({"id": "imagecodecs_jpeg2k", "level": 40}, True),
        ({"id": "imagecodecs_jpeg2k", "reversible": False}, True), ({"id": "imagecodecs_lzw"}, False),
        (LOSSLESS["jpegxl"], False), ({"id": "imagecodecs_jpegxl", "lossless": False, "level": 90}, True),
    ],
    ids=str,
)
def test_explain_and_info_say_that_images_are_lossy(tmp_path, monkeypatch, capsys, layout, config, lossy):
    """What the configuration says: True, False, or None where it says nothing."""
    write(tmp_path, "a", scene((4, 20, 30, 3)), (1, 20, 30, 3), layout, config)
    (array,) = dali_zarr.explain(path=tmp_path, arrays=["a"], batch_size=2)["arrays"]
    assert [stored["lossy_images"] for stored in array["stores"]] == [lossy]
    status, out, _ = command(monkeypatch, capsys, "info", tmp_path, "--json")
    (store,) = json.loads(out)
    (array,) = store["arrays"]
    assert status == 0 and array["lossy_images"] is lossy
    _, out, _ = command(monkeypatch, capsys, "info", tmp_path)
    told = {True: "(lossy images)", None: "(images, perhaps lossy)", False: None}[lossy]
    text = " ".join(out.split())
    assert told in text if told else "lossy" not in text


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("packer", ["lzw", "deflate"])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "float32", "float64"])
def test_tiles_of_tiff(tmp_path, device, layout, packer, dtype):
    """LZW and deflate after TIFF's predictors, of one channel and of several."""
    packer = {"id": f"imagecodecs_{packer}"}
    for name, shape, chunks, axis in (("plain", (40, 50), (16, 32), -1), ("pixels", (40, 50, 3), (16, 32, 3), -2)):
        told = {"shape": chunks, "dtype": np.dtype(dtype).str} if layout == "v2" else {}
        values = scene(shape, dtype)
        write(tmp_path, name, values, chunks, layout, packer)
        write(tmp_path, f"{name}2", values, chunks, layout, packer, ({"id": "imagecodecs_delta", "axis": axis, **told},))
        names = [name, f"{name}2"]
        if np.dtype(dtype).kind == "f":
            filter_ = {"id": "imagecodecs_floatpred", "axis": axis, **told}
            write(tmp_path, f"{name}3", values, chunks, layout, packer, (filter_,))
            names.append(f"{name}3")
        for each in names:
            check(device, 8, path=tmp_path, arrays=[each])


def split_tables(encoded: bytes) -> tuple[bytes, bytes]:
    """An abbreviated stream and its tables, as TIFF stores them."""
    at, tables, rest = 2, b"", b""
    while encoded[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(encoded[at + 2 : at + 4])
        if encoded[at + 1] in (0xDB, 0xC4):
            tables += encoded[at:end]
        else:
            rest += encoded[at:end]
        at = end
    return b"\xff\xd8" + tables + b"\xff\xd9", b"\xff\xd8" + rest + encoded[at:]


@pytest.mark.parametrize("key", ["tables", "header"])
def test_abbreviated_streams(tmp_path, device, key):
    """Tables beside the chunks (TIFF's JPEGTables), and a header before each of them."""
    values = scene((32, 48, 3))
    write(tmp_path, "a", values, (16, 16, 3), "v2", JPEG["jpeg"])
    told = b""
    for file in chunk_files(tmp_path, "a"):
        whole = file.read_bytes()
        if key == "tables":
            told, part = split_tables(whole)
        else:
            cut = whole.index(b"\xff\xda") + 14
            told, part = whole[:cut], whole[cut:-2]
        file.write_bytes(part)
    file, document = metadata(tmp_path, "a")
    document["compressor"][key] = base64.b64encode(told).decode()
    file.write_text(json.dumps(document))
    check(device, 8, path=tmp_path, arrays=["a"])


@pytest.mark.parametrize("codec", ["png", "webp", "jpeg", "jpeg2k", "jpeg2k-alone", "jpegxl", "jpegxl-fast"])
def test_damage_and_other_images(tmp_path, device, codec):
    """Truncated images and those of other sizes are errors that name the chunk."""
    config = {**LOSSLESS, **JPEG}[codec]
    write(tmp_path, "a", scene((4, 20, 30, 3)), (1, 20, 30, 3), "v2", config)
    file = chunk_files(tmp_path, "a")[0]
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RuntimeError, match="chunk a/0.0.0.0.*damaged"):
        build(device, 4, path=tmp_path, arrays=["a"]).run()
    file.write_bytes(numcodecs.get_codec(config).encode(scene((20, 31, 3))))
    with pytest.raises(RuntimeError, match="20 rows of 31 pixels with 3 channels of uint8"):
        build(device, 4, path=tmp_path, arrays=["a"]).run()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"id": "imagecodecs_jpeg", "lossless": True}, "lossless JPEG has no decoder"),
        ({"id": "imagecodecs_jpeg", "colorspace_data": "HSV"}, "colorspace_data"),
        ({"id": "imagecodecs_jpeg", "tables": "////"}, "tables"),
        ({"id": "imagecodecs_png", "gamma": 2.2}, "gamma"),
        ({"id": "imagecodecs_webp", "index": 3}, "index"),
        ({"id": "imagecodecs_jpeg2k", "planar": True}, "planar"),
        ({"id": "imagecodecs_jpegxl", "index": 2}, "index"),
        ({"id": "imagecodecs_lerc"}, "imagecodecs_lerc"),
    ],
)
def test_what_is_refused(tmp_path, device, change, expected):
    """Fields that change what is decoded are honoured, or refused by name when the pipeline is built."""
    write(tmp_path, "a", scene((4, 20, 30, 3)), (1, 20, 30, 3), "v2", LOSSLESS["png"])
    file, document = metadata(tmp_path, "a")
    document["compressor"] = change
    file.write_text(json.dumps(document))
    with warnings.catch_warnings(), pytest.raises((ValueError, RuntimeError), match=expected):
        build(device, 4, path=tmp_path, arrays=["a"])

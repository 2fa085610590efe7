"""JPEG 2000 images on a GPU through nvJPEG2000: values, by which chunks, and what is left to the CPU."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.stores import chunk_files
from test_images import LAYOUTS, scene, write
from test_images_engine import frames, furthest, read

imagecodecs = pytest.importorskip("imagecodecs")
pytestmark = pytest.mark.filterwarnings("ignore")
LOSSLESS: dict[str, Any] = {"id": "imagecodecs_jpeg2k", "reversible": True}
COUNT = 20


@cache
def why_no_decoder(path: Path) -> str | None:
    write(path, "a", scene((48, 64)), (48, 64), "v2", LOSSLESS)
    try:
        read(path, batch_size=1, decode_device="gpu")
    except (RuntimeError, ValueError) as error:
        return str(error)
    return None


@pytest.fixture(scope="session")
def decoder_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jpeg2k")


@pytest.fixture(autouse=True)
def _decoder(gpu: str, decoder_store: Path) -> None:  # noqa: ARG001
    """Skips where nvJPEG2000 isn't installed."""
    if reason := why_no_decoder(decoder_store):
        pytest.skip(reason)


def stored(path: Path) -> np.ndarray:
    return zarr.open_array(str(path), path="a", mode="r")[...]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16"])
@pytest.mark.parametrize("channels", [0, 1, 2, 3, 4])
def test_lossless_values(tmp_path, layout, dtype, channels):
    """To the bit, in odd sizes, in files and alone; each chunk by the GPU, none by the CPU."""
    for number, size in enumerate([(48, 64), (61, 75), (1, 1), (7, 300), (530, 517)]):
        path = tmp_path / str(number)
        chunk = (1, *size) if channels == 0 else (1, *size, channels)
        config = LOSSLESS | ({"codecformat": "j2k"} if number % 2 else {})
        values = np.stack([np.roll(scene(chunk[1:], dtype), k, 0) for k in range(COUNT)])
        write(path, "a", values, chunk, layout, config)
        found, counters = read(path, decode_device="gpu")
        assert np.array_equal(found, values)
        assert (counters["chunks_decoded_gpu"], counters["cpu_fallbacks"]) == (COUNT, 0), counters
        either, _ = read(path)
        assert np.array_equal(either, values)


@pytest.mark.parametrize(("dtype", "bits"), [("uint8", 4), ("uint8", 7), *(("uint16", n) for n in (9, 10, 12, 15)), ("int16", 12)])
@pytest.mark.parametrize("lossy", [False, True])
def test_fewer_bits(tmp_path, dtype, bits, lossy):
    """Lossy values are bounded by their bits, as Sentinel-2's are by 15."""
    values = (frames((COUNT, 61, 75)).astype("u4") * 257 >> 16 - bits).astype("i4")
    values[:, 20:40] = np.random.default_rng(5).integers(0, 2, (COUNT, 20, 75)) * ((1 << bits) - 1)
    values = (values - (1 << bits - 1) if dtype == "int16" else values).astype(dtype)
    how = {"level": 40, "reversible": False} if lossy else {"reversible": True}
    config = {"id": "imagecodecs_jpeg2k", "bitspersample": bits} | how
    write(tmp_path, "a", values, (1, 61, 75), "v2", config)
    found, counters = read(tmp_path, decode_device="gpu")
    assert counters["chunks_decoded_gpu"] == COUNT
    if lossy:
        assert furthest(found, stored(tmp_path)) <= 1
    else:
        assert np.array_equal(found, values)


@pytest.mark.parametrize("reversible", [True, False])
def test_noise(tmp_path, reversible):
    """Of the least and the largest value alone, the hardest to be rounded alike."""
    values = np.random.default_rng(1).integers(0, 2, (COUNT, 64, 90)).astype("u2") * 65535
    write(tmp_path, "a", values, (1, 64, 90), "v2", {"id": "imagecodecs_jpeg2k", "level": 50, "reversible": reversible})
    found, counters = read(tmp_path, decode_device="gpu")
    assert furthest(found, stored(tmp_path)) <= 5 and counters["chunks_decoded_gpu"] == COUNT


def test_bytes_with_a_sign_are_for_the_cpu(tmp_path):
    values = np.stack([np.roll(scene((61, 75), "int8"), k, 0) for k in range(COUNT)])
    write(tmp_path, "a", values, (1, 61, 75), "v2", LOSSLESS)
    found, counters = read(tmp_path)
    assert np.array_equal(found, values)
    assert (counters["chunks_decoded_gpu"], counters["cpu_fallbacks"]) == (0, 0), counters
    with pytest.raises((RuntimeError, ValueError), match="decode_device"):
        read(tmp_path, decode_device="gpu")


def test_large_and_small(tmp_path):
    """Tiles of which few fit into a decoder's memory, beside small ones, and then small ones alone."""
    large = np.stack([np.roll(scene((2600, 2600), "uint16"), 7 * k, 0) for k in range(4)])
    small = np.stack([np.roll(scene((50, 60)), k, 0) for k in range(4)])
    write(tmp_path, "a", large, (1, 2600, 2600), "v2", LOSSLESS)
    write(tmp_path, "b", small, (1, 10, 20), "v2", LOSSLESS)
    from dali_zarr.torch import Loader

    for arrays in (["b"], ["a", "b"], ["b"]):
        for batch in Loader(tmp_path, arrays=arrays, batch_size=4, device="gpu", decode_device="gpu"):
            assert np.array_equal(batch["b"].cpu().numpy(), small)
            assert "a" not in arrays or np.array_equal(batch["a"].cpu().numpy(), large)


@pytest.mark.parametrize("reversible", [True, False])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16"])
def test_lossy_values_are_within_a_level(tmp_path, dtype, reversible):
    """Of OpenJPEG's, as the CPU's are."""
    chunk = (1, 240, 321, 3)
    values = np.stack([np.roll(scene(chunk[1:], dtype), k, 0) for k in range(COUNT)])
    write(tmp_path, "a", values, chunk, "v2", {"id": "imagecodecs_jpeg2k", "level": 45, "reversible": reversible})
    found, counters = read(tmp_path, decode_device="gpu")
    assert furthest(found, stored(tmp_path)) <= 1 and counters["chunks_decoded_gpu"] == COUNT


def test_what_other_encoders_write(tmp_path):
    """Tiles, layers, precincts, small blocks, each order of packets: by Pillow."""
    image = pytest.importorskip("PIL.Image")
    values = frames((COUNT, 250, 300, 3))
    write(tmp_path, "a", values, (1, 250, 300, 3), "v2", LOSSLESS)
    orders = ("LRCP", "RLCP", "RPCL", "PCRL", "CPRL")
    kinds: list[dict[str, Any]] = [{"progression": order, "num_resolutions": 4} for order in orders]
    kinds += [{"tile_size": (64, 64)}, {"tile_size": (128, 100), "num_resolutions": 2}, {"codeblock_size": (16, 16)}, {"mct": 0}]
    kinds += [{"precinct_size": (64, 64), "progression": "RPCL"}, {"quality_mode": "rates", "quality_layers": [40, 10, 1]}]
    for number, kind in enumerate(kinds):
        out = io.BytesIO()
        image.fromarray(values[number]).save(out, "JPEG2000", **kind)
        (tmp_path / f"a/{number}.0.0.0").write_bytes(out.getvalue())
    found, counters = read(tmp_path, decode_device="gpu")
    assert np.array_equal(found, values)
    assert (counters["chunks_decoded_gpu"], counters["cpu_fallbacks"]) == (COUNT, 0), counters


def test_what_the_gpu_lacks_is_decoded_on_the_cpu(tmp_path):
    """Lengths of tiles in the header (of another encoder), beside images for the GPU."""
    values = frames((COUNT, 48, 64))
    write(tmp_path, "a", values, (1, 48, 64), "v2", LOSSLESS | {"codecformat": "j2k"})
    for file in chunk_files(tmp_path, "a")[::4]:
        whole = file.read_bytes()
        at = whole.index(b"\xff\x90")
        length = (len(whole) - at - 2).to_bytes(4, "big")
        file.write_bytes(whole[:at] + b"\xff\x55\x00\x09\x00\x50\x00" + length + whole[at:])
    found, counters = read(tmp_path, decode_device="gpu")
    assert np.array_equal(found, values)
    assert (counters["chunks_decoded_gpu"], counters["cpu_fallbacks"]) == (COUNT - COUNT // 4, COUNT // 4), counters


def test_transposed_and_normalised(tmp_path):
    values = np.stack([np.roll(scene((240, 321, 4), "uint16"), k, 0) for k in range(COUNT)])
    write(tmp_path, "a", values, (1, 240, 321, 4), "v3", LOSSLESS)
    how = {"transpose": [2, 0, 1], "mean": 3000.0, "stddev": 800.0, "dtype": "float32"}
    found, _ = read(tmp_path, decode_device="gpu", **how)
    assert furthest(found, (values.transpose(0, 3, 1, 2) - 3000.0) / 800.0) < 1e-4


@pytest.mark.parametrize("damage", ["truncated", "header", "other"])
def test_damage_is_an_error_or_nan(tmp_path, damage):
    """The message is the CPU's, images beside it are whole, and the context lives on."""
    values = frames((COUNT, 48, 64, 3))
    write(tmp_path, "a", values, (1, 48, 64, 3), "v2", LOSSLESS)
    file = chunk_files(tmp_path, "a")[7]
    number = int(file.name.split(".")[0])
    whole = file.read_bytes()
    siz = whole.index(b"\xff\x51")
    other = imagecodecs.jpeg2k_encode(scene((48, 66, 3)), level=0)
    header = whole[: siz + 8] + b"\xff" + whole[siz + 9 :]
    file.write_bytes({"truncated": whole[: len(whole) // 2], "header": header, "other": other}[damage])
    with pytest.raises(RuntimeError, match=f"chunk a/{number}.0.0.0"):
        read(tmp_path, decode_device="gpu")
    found, counters = read(tmp_path, decode_device="gpu", on_bad_chunk="nan", dtype="float32")
    assert counters["chunks_bad"] == 1 and np.isnan(found[number]).all()
    assert np.array_equal(np.delete(found, number, 0), np.delete(values, number, 0))


def test_beside_jpeg(tmp_path):
    """Two formats in one sample, whose decoders are lent together, in several readers at once."""
    from concurrent.futures import ThreadPoolExecutor

    from dali_zarr.torch import Loader

    values = frames((COUNT, 48, 64, 3))
    write(tmp_path, "a", values, (1, 48, 64, 3), "v2", LOSSLESS)
    write(tmp_path, "b", values, (1, 48, 64, 3), "v2", {"id": "imagecodecs_jpeg", "level": 95})
    expected = zarr.open_array(str(tmp_path), path="b", mode="r")[...]

    def both(_: int) -> None:
        for _ in range(3):
            loader = Loader(tmp_path, arrays=["a", "b"], batch_size=3, device="gpu")
            found = [(batch["a"].cpu().numpy(), batch["b"].cpu().numpy()) for batch in loader]
            assert np.array_equal(np.concatenate([a for a, _ in found]), values)
            assert furthest(np.concatenate([b for _, b in found]), expected) <= 1

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(both, range(6)))


def test_little_device_memory(tmp_path):
    values = np.stack([np.roll(scene((512, 512), "uint16"), k, 0) for k in range(COUNT)])
    write(tmp_path, "a", values, (1, 512, 512), "v2", LOSSLESS)
    with pytest.raises((RuntimeError, ValueError), match="device_memory_limit") as refused:
        read(tmp_path, decode_device="gpu", device_memory_limit=1 << 20)
    least = int("".join(c for c in str(refused.value).split("at least")[1].split("bytes")[0] if c.isdigit()))
    found, _ = read(tmp_path, decode_device="gpu", device_memory_limit=least)
    assert np.array_equal(found, values)

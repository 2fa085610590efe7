"""JPEG images on a GPU's JPEG engine: values within one level of libjpeg-turbo's, by which chunks, and what is left to the CPU."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from dali_zarr.torch import Loader
from support.stores import chunk_files
from test_images import JPEG, LAYOUTS, scene, write

imagecodecs = pytest.importorskip("imagecodecs")
pytestmark = pytest.mark.filterwarnings("ignore")
ENGINE: dict[str, dict[str, Any]] = {name: JPEG[name] for name in ("jpeg", "jpeg-444", "jpeg-422", "jpeg-440", "jpeg-ycbcr")}
COUNT = 48


@cache
def why_no_engine(path: Path) -> str | None:
    write(path, "a", scene((1, 48, 64, 3)), (1, 48, 64, 3), "v2", JPEG["jpeg"])
    try:
        Loader(path, arrays=["a"], batch_size=1, device="gpu", decode_device="gpu")
    except (RuntimeError, ValueError) as error:
        return str(error)
    return None


@pytest.fixture(scope="session")
def engine_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine")


@pytest.fixture(autouse=True)
def _engine(gpu: str, engine_store: Path) -> None:  # noqa: ARG001
    """Skips where the GPU has no engine, or nvImageCodec isn't installed."""
    if reason := why_no_engine(engine_store):
        pytest.skip(reason)


def frames(shape: tuple[int, ...]) -> np.ndarray:
    """Scenes that differ, of one shape."""
    return np.stack([np.roll(scene(shape[1:]), k, 0) for k in range(shape[0])])


def read(path: Path, **how: Any) -> tuple[np.ndarray, dict[str, Any]]:
    loader = Loader(path, arrays=["a"], device="gpu", **({"batch_size": 5} | how))
    found = np.concatenate([batch["a"].cpu().numpy() for batch in loader])
    return found, loader.counters()


def furthest(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found.astype("f8") - expected).max())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("codec", ENGINE)
def test_values_are_within_a_level(tmp_path, layout, codec):
    """All kinds of sampling, in odd sizes; each chunk by the engine, none by the CPU."""
    for number, size in enumerate([(48, 64), (61, 75), (240, 321), (16, 16)]):
        path = tmp_path / str(number)
        write(path, "a", frames((COUNT, *size, 3)), (1, *size, 3), layout, ENGINE[codec])
        expected = zarr.open_array(str(path), path="a", mode="r")[...].astype("f8")
        found, counters = read(path, decode_device="gpu")
        assert furthest(found, expected) <= 1
        assert (counters["chunks_decoded_gpu"], counters["cpu_fallbacks"]) == (COUNT, 0), counters
        exactly, counters = read(path, decode_device="cpu")
        assert furthest(exactly, expected) == 0 and counters["chunks_decoded_gpu"] == 0
        either, _ = read(path)
        assert furthest(either, expected) <= 1


def test_gray(tmp_path):
    write(tmp_path, "a", frames((COUNT, 48, 64)), (1, 48, 64), "v2", JPEG["jpeg"])
    expected = zarr.open_array(str(tmp_path), path="a", mode="r")[...]
    found, counters = read(tmp_path, decode_device="gpu")
    assert furthest(found, expected) <= 1 and counters["chunks_decoded_gpu"] == COUNT


def test_what_the_engine_lacks_is_decoded_on_the_cpu(tmp_path):
    """Sampling 4:1:1, and RGB, beside images for the engine, to the bit."""
    values = frames((COUNT, 48, 64, 3))
    write(tmp_path, "a", values, (1, 48, 64, 3), "v2", JPEG["jpeg"])
    ways = [{"subsampling": "411"}, {"colorspace": "RGB", "outcolorspace": "RGB"}]
    for number, file in enumerate(chunk_files(tmp_path, "a")[::3]):
        file.write_bytes(imagecodecs.jpeg8_encode(values[3 * number], level=90, **ways[number % 2]))
    expected = zarr.open_array(str(tmp_path), path="a", mode="r")[...]
    found, counters = read(tmp_path, decode_device="gpu")
    assert counters["chunks_decoded_gpu"] == 2 * COUNT // 3 and counters["cpu_fallbacks"] == COUNT // 3, counters
    assert furthest(found, expected) <= 1
    left = [int(file.name.split(".")[0]) for file in chunk_files(tmp_path, "a")[::3]]
    assert furthest(found[left], expected[left]) == 0


def test_transposed_and_normalised(tmp_path):
    """As models of images want them: float16, channels first."""
    write(tmp_path, "a", frames((COUNT, 48, 64, 3)), (1, 48, 64, 3), "v3", JPEG["jpeg"])
    expected = zarr.open_array(str(tmp_path), path="a", mode="r")[...].transpose(0, 3, 1, 2)
    how = {"transpose": [2, 0, 1], "mean": 127.5, "stddev": 64, "dtype": "float16", "random_shuffle": True}
    found, _ = read(tmp_path, decode_device="gpu", **how)
    order = [int(np.abs(expected - (one.astype("f4") * 64 + 127.5)).reshape(COUNT, -1).mean(1).argmin()) for one in found]
    assert sorted(order) == list(range(COUNT))
    assert furthest(found.astype("f4") * 64 + 127.5, expected[order]) < 1.1


@pytest.mark.parametrize("damage", ["truncated", "middle", "other"])
def test_damage_is_an_error_or_nan(tmp_path, damage):
    """The message is the CPU's, images beside it are whole, and the context lives on."""
    write(tmp_path, "a", frames((COUNT, 48, 64, 3)), (1, 48, 64, 3), "v2", JPEG["jpeg"])
    expected = zarr.open_array(str(tmp_path), path="a", mode="r")[...]
    file = chunk_files(tmp_path, "a")[7]
    number = int(file.name.split(".")[0])
    whole = file.read_bytes()
    other = imagecodecs.jpeg8_encode(scene((48, 66, 3)), level=90)
    cut = len(whole) // 2
    file.write_bytes({"truncated": whole[:cut], "middle": whole[:cut] + b"\xff\xd3" + whole[cut:], "other": other}[damage])
    with pytest.raises(RuntimeError, match=f"chunk a/{number}.0.0.0"):
        read(tmp_path, decode_device="gpu")
    found, counters = read(tmp_path, decode_device="gpu", on_bad_chunk="nan", dtype="float32")
    assert counters["chunks_bad"] == 1 and np.isnan(found[number]).all()
    assert furthest(np.delete(found, number, 0), np.delete(expected, number, 0)) <= 1


def test_little_device_memory(tmp_path):
    write(tmp_path, "a", frames((COUNT, 240, 320, 3)), (1, 240, 320, 3), "v2", JPEG["jpeg"])
    expected = zarr.open_array(str(tmp_path), path="a", mode="r")[...]
    with pytest.raises((RuntimeError, ValueError), match="device_memory_limit") as refused:
        read(tmp_path, decode_device="gpu", device_memory_limit=1 << 20)
    least = int("".join(c for c in str(refused.value).split("at least")[1].split("bytes")[0] if c.isdigit()))
    found, _ = read(tmp_path, decode_device="gpu", device_memory_limit=least)
    assert furthest(found, expected) <= 1

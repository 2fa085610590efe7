"""The store of the study's form: hours of ERA5-like fields, in chunks of ten hours; and the same values in other forms.

    python examples/study/store.py --size small

``fields`` is float32 (time, channel, latitude, longitude), made up. Waves drift with a westerly flow and the dispersion of Rossby
waves, and within four days others take their place: the next hours can be learned from this one. Energy falls with the third power
of the wave number and values have 16 bits, so that codecs treat them as they treat reanalyses. ``dali-zarr rechunk`` makes
the same forms of a store that is there already.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from common import Size, arguments

DIMS = ("time", "channel", "latitude", "longitude")
BLOCK = 10
MEAN, STDDEV = 280.0, 15.0
RENEWAL = 96
# Hours in a chunk, hours in a shard, codec. Chunks and shards have one channel.
FORMS: dict[str, tuple[int, int | None, str]] = {
    "ten-hours": (BLOCK, None, "zstd"), "one-hour": (1, None, "zstd"), "blosc-lz4": (1, None, "blosc-lz4"),
    "uncompressed": (1, None, "none"), "sharded": (1, BLOCK, "zstd"),
}


class Waves:
    """The fields of one channel at any hour."""

    def __init__(self, latitudes: int, longitudes: int, channel: int = 0):
        self.shape, self.channel = (latitudes, longitudes), channel
        ky = np.fft.fftfreq(latitudes, 0.5 / latitudes)[:, None]
        kx = np.fft.rfftfreq(longitudes, 1 / longitudes)[None]
        k2 = kx**2 + ky**2
        k = np.sqrt(k2) / 6
        self.amplitude = k / (1 + k**2) ** 1.5
        # Radians in an hour: 15 degrees a day to the east, and the westward drift of long waves.
        self.omega = kx * np.deg2rad(15) / 24 - 0.3 * kx / (k2 + 4)

        self.pattern = functools.lru_cache(maxsize=3)(self._pattern)

    def _pattern(self, number: int) -> np.ndarray:
        rng = np.random.default_rng([7, self.channel, number])
        half = (2, self.shape[0], self.shape[1] // 2 + 1)
        noise = rng.standard_normal(half, np.float32)
        waves = (noise[0] + 1j * noise[1]) * self.amplitude.astype(np.float32)
        return waves / np.fft.irfft2(waves, s=self.shape).std()

    def at(self, hour: int) -> np.ndarray:
        """(latitude, longitude), in 16 bits of float32."""
        number, within = divmod(hour, RENEWAL)
        turn = np.pi / 2 * within / RENEWAL
        waves = np.cos(turn) * self.pattern(number) + np.sin(turn) * self.pattern(number + 1)
        values = np.fft.irfft2(waves * np.exp(-1j * self.omega * hour).astype(np.complex64), s=self.shape)
        return np.rint((MEAN + STDDEV * values) * 512).astype(np.float32) / np.float32(512)


def _codecs(name: str) -> Any:
    from zarr.codecs import BloscCodec, ZstdCodec

    lz4 = BloscCodec(cname="lz4", clevel=5, shuffle="shuffle", typesize=4)
    return {"zstd": [ZstdCodec(level=3)], "blosc-lz4": [lz4], "none": None}[name]


def _create(path: Path, size: Size, form: str) -> None:
    import zarr

    hours, shard, codec = FORMS[form]
    whole = (1, size.latitudes, size.longitudes)
    group = zarr.open_group(str(path), mode="w")
    group.create_array(
        "fields", shape=(size.hours, size.channels, *whole[1:]), chunks=(hours, *whole), shards=(shard, *whole) if shard else None,
        dtype="f4", dimension_names=DIMS, compressors=_codecs(codec),
    )
    coordinate = group.create_array("time", data=np.arange(size.hours), dimension_names=("time",))
    coordinate.attrs["units"] = "hours since 2020-01-01"
    zarr.consolidate_metadata(str(path))


def _write(folder: Path, size: Size, part: tuple[int, int]) -> None:
    """Ten hours of a channel, into all forms."""
    import zarr

    start, channel = part
    waves = Waves(size.latitudes, size.longitudes, channel)
    stop = min(start + BLOCK, size.hours)
    values = np.stack([waves.at(hour) for hour in range(start, stop)])[:, None]
    with zarr.config.set({"threading.max_workers": 1, "async.concurrency": 1}):
        for form in FORMS:
            zarr.open_array(str(folder / f"{form}.zarr"), path="fields", mode="r+")[start:stop, channel : channel + 1] = values


def prepare(data: Path, size: Size) -> dict[str, Path]:
    """All forms, written by all cores where they aren't there already."""
    folder = data / f"{size.hours}-{size.channels}-{size.latitudes}"
    if not folder.exists():
        unfinished = folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        for form in FORMS:
            _create(unfinished / f"{form}.zarr", size, form)
        write = functools.partial(_write, unfinished, size)
        parts = list(itertools.product(range(0, size.hours, BLOCK), range(size.channels)))
        if size.bytes < 32 << 20:
            for part in parts:
                write(part)
        else:
            # Not forked: the process may have threads.
            with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn")) as pool:
                for _ in pool.map(write, parts):
                    pass
        unfinished.rename(folder)
    return {name: folder / f"{name}.zarr" for name in FORMS}


if __name__ == "__main__":
    args = arguments(__doc__)
    began = time.monotonic()
    for name, path in prepare(args.data, args.size).items():
        print(f"{name}: {path}, {sum(file.stat().st_size for file in path.rglob('*') if file.is_file()) / 1e6:.0f} MB", flush=True)
    print(f"{time.monotonic() - began:.1f} s")

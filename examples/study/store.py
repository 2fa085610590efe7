"""The store of the study's form: hours of ERA5-like fields, in chunks of ten hours; and the same values in other forms.

    python examples/study/store.py --small

``fields`` is float32 (time, channel, latitude, longitude). Fields have the energy spectrum of the atmosphere and are quantised to
16 bits, so that codecs treat them as they treat reanalyses. The other forms are written by ``dali-zarr rechunk``.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from common import Size, arguments

DIMS = ("time", "channel", "latitude", "longitude")
# Chunks by dimension (the rest whole), shards, codec.
FORMS: dict[str, tuple[dict[str, int], dict[str, int] | None, str]] = {
    "ten-hours": ({"time": 10, "channel": 1}, None, "zstd:3"),
    "one-hour": ({"time": 1, "channel": 1}, None, "zstd:3"),
    "blosc-lz4": ({"time": 1, "channel": 1}, None, "blosc-lz4"),
    "uncompressed": ({"time": 1, "channel": 1}, None, "none"),
    "sharded": ({"time": 1, "channel": 1}, {"time": 10, "channel": -1}, "zstd:3"),
}


def field(rng: np.random.Generator, latitudes: int, longitudes: int) -> np.ndarray:
    """Noise whose energy falls with the third power of the wave number, 16 bits of it."""
    ky, kx = np.fft.fftfreq(latitudes, 1 / latitudes)[:, None], np.fft.rfftfreq(longitudes, 1 / longitudes)[None]
    k = np.hypot(ky, kx)
    k[0, 0] = 1
    waves = (rng.standard_normal(k.shape) + 1j * rng.standard_normal(k.shape)) * k**-2.0
    values = np.fft.irfft2(waves, s=(latitudes, longitudes))
    values = 280 + 15 * values / values.std()
    step = 2.0 ** np.ceil(np.log2(np.ptp(values) / 65535))
    return (values.min() + np.rint((values - values.min()) / step) * step).astype(np.float32)


def make(path: Path, size: Size) -> None:
    """Writes the first form. Fields drift from hour to hour: each is a mean of two patterns with weights that change."""
    import zarr
    from zarr.codecs import ZstdCodec

    rng = np.random.default_rng(7)
    group = zarr.open_group(str(path), mode="w")
    shape = (size.hours, size.channels, size.latitudes, size.longitudes)
    array = group.create_array(
        "fields", shape=shape, chunks=(10, 1, *shape[2:]), dtype="f4", dimension_names=DIMS, compressors=[ZstdCodec(level=3)],
    )
    hours = group.create_array("time", data=np.arange(size.hours), dimension_names=("time",))
    hours.attrs["units"] = "hours since 2020-01-01"
    patterns = [[field(rng, *shape[2:]) for _ in range(3)] for _ in range(min(size.channels, 4))]
    for start in range(0, size.hours, 10):
        stop = min(start + 10, size.hours)
        block = np.empty((stop - start, *shape[1:]), np.float32)
        for i, hour in enumerate(range(start, stop)):
            for channel in range(size.channels):
                one, two, three = patterns[channel % len(patterns)]
                weight = np.float32(0.5 + 0.5 * np.sin(hour / 9 + channel))
                mixed = np.roll(one, 3 * hour, 1) * weight + np.roll(two, -2 * hour, 1) * (1 - weight) + three * np.float32(0.1)
                # Quantised again, as each field of a reanalysis is.
                block[i, channel] = np.rint(mixed * 512) / 512
        array[start:stop] = block
    zarr.consolidate_metadata(str(path))


def prepare(data: Path, size: Size) -> dict[str, Path]:
    """All forms; those that are there already stay. What was interrupted is gone on with."""
    # Not at the top: worker processes of data loaders import this module too.
    from dali_zarr._rechunk.options import Options
    from dali_zarr._rechunk.run import rechunk

    paths = {name: data / f"{size.hours}-{size.channels}-{size.latitudes}" / f"{name}.zarr" for name in FORMS}
    first = paths["ten-hours"]
    if not first.exists():
        unfinished = first.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        make(unfinished, size)
        unfinished.rename(first)
    for name, (chunks, shards, codec) in FORMS.items():
        if name != "ten-hours":
            rechunk(str(first), str(paths[name]), Options(chunks=chunks, shards=shards, codec=codec), show=False)
    return paths


if __name__ == "__main__":
    args = arguments(__doc__)
    for name, path in prepare(args.data, args.size).items():
        print(f"{name}: {path}, {sum(file.stat().st_size for file in path.rglob('*') if file.is_file()) / 1e6:.0f} MB")

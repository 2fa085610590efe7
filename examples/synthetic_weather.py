"""Made-up weather that moves like weather: for examples that need an ERA5-like Zarr store and no download.

A stream function of random planetary and synoptic waves, which drift with a westerly flow and the dispersion of Rossby
waves and slowly change, gives geopotential height and, by geostrophic balance, winds; temperature and humidity follow the
waves with a lag and gradients from equator to pole; the two-metre temperature adds land, sea and the Sun. Physically it
is a sketch, but the next hour can be learned from this one, and it isn't the same as this one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zarr
from zarr.codecs import ZstdCodec

# Name in the store -> what it is, and its unit.
VARIABLES = {
    "t2m": ("2 metre temperature", "K"),
    "U500": ("Eastward wind at 500 hPa", "m s-1"),
    "V500": ("Northward wind at 500 hPa", "m s-1"),
    "T500": ("Temperature at 500 hPa", "K"),
    "Z500": ("Geopotential at 500 hPa", "m2 s-2"),
    "Q500": ("Specific humidity at 500 hPa", "kg kg-1"),
}


@dataclass
class Statistics:
    """Mean and standard deviation of each variable over the whole store, in the order of VARIABLES."""

    mean: list[float]
    stddev: list[float]


class Weather:
    """The state of the made-up atmosphere; :meth:`hour` gives its fields, hour after hour."""

    def __init__(self, lat: int, lon: int, seed: int = 0):
        self.rng = np.random.default_rng(seed)
        self.shape = (lat, lon)
        self.phi = np.deg2rad(np.linspace(90, -90, lat))[:, None]
        self.lam = np.deg2rad(np.arange(lon) * 360 / lon)[None, :]
        ky = np.fft.fftfreq(lat, 0.5 / lat)[:, None]
        kx = np.fft.rfftfreq(lon, 1 / lon)[None, :]
        k2 = kx**2 + ky**2
        self.kx, self.ky = kx, ky
        # Energy falls as k^-3 beyond the synoptic scale; single grid points carry none.
        k = np.sqrt(np.maximum(k2, 1.0))
        self.amplitude = np.where(k2 > 0, (k / 6) / (1 + (k / 6) ** 2) ** 1.75 * np.exp(-((k / (0.28 * lat)) ** 4)), 0.0)
        # Radians per hour: a mean flow of 15 degrees a day to the east against the westward drift of long waves.
        self.omega = kx * np.deg2rad(30) / 24 - 0.9 * kx / (k2 + 4)
        self.memory = np.exp(-1 / (24 * np.clip(200 / k, 8, 40)))
        self.waves = self.amplitude * self._noise()
        self.humid = self.amplitude * self._noise()
        self.scale = 1 / np.fft.irfft2(self.waves, s=self.shape).std()
        land = np.fft.irfft2(self._noise() * np.where(k2 > 0, k**-2.2, 0.0), s=self.shape)
        self.land = 1 / (1 + np.exp(-4 * (land / land.std() - 0.4)))

    def _noise(self) -> np.ndarray:
        half = (self.shape[0], self.shape[1] // 2 + 1)
        return self.rng.standard_normal(half) + 1j * self.rng.standard_normal(half)

    def _field(self, spectrum: np.ndarray) -> np.ndarray:
        return np.fft.irfft2(spectrum, s=self.shape) * self.scale

    def _step(self, spectrum: np.ndarray) -> np.ndarray:
        turned = spectrum * np.exp(-1j * self.omega) * self.memory
        return turned + np.sqrt(1 - self.memory**2) * self.amplitude * self._noise()

    def hour(self, number: int) -> dict[str, np.ndarray]:
        """All variables (lat, lon) in float32 at this hour, then moves on by one."""
        psi, humid = self._field(self.waves), self._field(self.humid)
        east, north = self._field(1j * self.kx * self.waves), self._field(1j * self.ky * self.waves)
        lagged = self._field(self.waves * np.exp(-0.6j * np.sign(self.kx)))
        storm = np.sin(2 * self.phi) ** 2 * 0.85 + 0.15  # mid-latitudes are the stormy ones
        warm = np.cos(self.phi) ** 2
        jet = 32 * np.exp(-(((np.abs(self.phi) - 0.75) / 0.25) ** 2))
        sun = np.cos(self.phi) * np.cos(self.lam + 2 * np.pi * (number - 14) / 24)
        t500 = 240 + 28 * warm + 5.5 * storm * lagged
        surface = 246 + 52 * warm + 7 * storm * lagged * (0.6 + 0.7 * self.land) + self.land * (3 * sun - 2)
        moisture = 0.8 * storm * lagged + 0.7 * humid
        fields = {
            "t2m": surface,
            "U500": jet + 1.6 * storm * north,
            "V500": 1.6 * storm * east,
            "T500": t500,
            "Z500": 9.80665 * (5150 + 700 * warm + 130 * storm * psi),
            "Q500": 2.2e-3 * (0.1 + warm) * np.exp(0.5 * moisture),
        }
        self.waves, self.humid = self._step(self.waves), self._step(self.humid)
        return {name: pack(field) for name, field in fields.items()}


def pack(field: np.ndarray, bits: int = 16) -> np.ndarray:
    """Rounds to 16 bits as GRIB's simple packing does, so that chunks compress as those of a reanalysis."""
    low = float(np.float32(field.min()))
    scale = 2.0 ** np.ceil(np.log2(max(float(field.max()) - low, 1e-30) / (2**bits - 1)))
    return (low + np.rint((field - low) / scale) * scale).astype(np.float32)


def write_store(
    path: Path, hours: int, lat: int, lon: int, *, seed: int = 0, progress: Callable[[int], None] = lambda hour: None
) -> Statistics:
    """Writes a Zarr v3 group: the six VARIABLES (time, latitude, longitude), one zstd chunk per hour, and coordinates.

    Returns their statistics, which it also keeps in the arrays' attributes ``mean`` and ``stddev``.
    """
    group = zarr.create_group(store=str(path), zarr_format=3)
    arrays = {
        name: group.create_array(
            name, shape=(hours, lat, lon), chunks=(1, lat, lon), dtype="float32",
            dimension_names=("time", "latitude", "longitude"), compressors=ZstdCodec(level=3),
            attributes={"long_name": long_name, "units": units},
        )
        for name, (long_name, units) in VARIABLES.items()
    }
    coordinates = {
        "time": (np.arange(hours, dtype=np.int64), "hours since 2020-01-01"),
        "latitude": (np.linspace(90, -90, lat, dtype=np.float32), "degrees_north"),
        "longitude": (np.arange(lon, dtype=np.float32) * np.float32(360 / lon), "degrees_east"),
    }
    for name, (values, units) in coordinates.items():
        array = group.create_array(
            name, shape=values.shape, dtype=values.dtype, dimension_names=(name,), attributes={"units": units}
        )
        array[:] = values

    weather = Weather(lat, lon, seed)
    total = {name: np.zeros(2) for name in VARIABLES}
    block = 24
    for first in range(0, hours, block):
        steps = [weather.hour(h) for h in range(first, min(first + block, hours))]
        for name, array in arrays.items():
            values = np.stack([step[name] for step in steps])
            array[first : first + len(steps)] = values
            # Around a typical value, so that squares of large means don't swallow small variances.
            shifted = values.astype(np.float64) - _origin(name)
            total[name] += shifted.sum(), (shifted**2).sum()
        progress(first + len(steps))

    count = hours * lat * lon
    mean = [total[name][0] / count for name in VARIABLES]
    stddev = [float(np.sqrt(total[name][1] / count - m**2)) for name, m in zip(VARIABLES, mean)]
    mean = [float(m + _origin(name)) for name, m in zip(VARIABLES, mean)]
    for array, m, s in zip(arrays.values(), mean, stddev):
        array.update_attributes({"mean": m, "stddev": s})
    zarr.consolidate_metadata(str(path), zarr_format=3)
    return Statistics(mean, stddev)


def _origin(name: str) -> float:
    return {"t2m": 280.0, "T500": 255.0, "Z500": 54000.0}.get(name, 0.0)

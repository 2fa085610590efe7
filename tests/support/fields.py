"""Synthetic fields that compress and look like a reanalysis, for tests, benchmarks and examples.

Two-dimensional Gaussian random fields on a latitude-longitude grid with a kinetic energy spectrum that falls as
k^-3, quantised to 16 bits in the way GRIB's simple packing does it: ``reference + n * 2**exponent``. Compressors
treat such data as they treat the real thing: the low mantissa bits are zero, neighbours are alike, nothing is constant.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np


def spectral_field(rng: np.random.Generator, lat: int, lon: int, slope: float = -3.0) -> np.ndarray:
    """A float32 field (lat, lon) of mean 0 and standard deviation 1 whose energy spectrum falls as ``k**slope``."""
    ky = np.fft.fftfreq(lat, 1 / lat)[:, None].astype(np.float32)
    kx = np.fft.rfftfreq(lon, 1 / lon)[None, :].astype(np.float32)
    k2 = ky * ky + kx * kx
    k2[0, 0] = 1.0
    # A ring of wave number k holds about k modes, so the energy per mode falls one power faster than the spectrum.
    amplitude = k2 ** np.float32((slope - 1.0) / 4.0)
    amplitude[0, 0] = 0.0
    shape = amplitude.shape
    noise = rng.standard_normal(shape, dtype=np.float32) + 1j * rng.standard_normal(shape, dtype=np.float32)
    field = np.fft.irfft2((noise * amplitude).astype(np.complex64), s=(lat, lon)).astype(np.float32)
    return field / field.std()


def grib_pack(field: np.ndarray, bits: int = 16) -> np.ndarray:
    """What remains of ``field`` after GRIB's simple packing to ``bits`` bits, as float32."""
    reference = np.float64(np.float32(field.min()))
    span = max(float(field.max()) - reference, 1e-30)
    scale = 2.0 ** np.ceil(np.log2(span / (2**bits - 1)))
    return (reference + np.rint((field - reference) / scale) * scale).astype(np.float32)


def weather_fields(
    count: int, lat: int, lon: int, *, seed: int = 0, mean: float = 280.0, stddev: float = 15.0,
    threads: int | None = None,
) -> np.ndarray:
    """``count`` independent packed fields (count, lat, lon), float32, by default in the range of 2 m temperatures in K.

    The same seed gives the same fields, however many threads draw them.
    """
    out = np.empty((count, lat, lon), np.float32)

    def draw(i: int) -> None:
        rng = np.random.default_rng([seed, i])
        out[i] = grib_pack(mean + stddev * spectral_field(rng, lat, lon))

    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        list(pool.map(draw, range(count)))
    return out

"""Stores that other programs write. Two references say what they hold, and the reader must deliver the same."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import zarr

from support.oracle import Oracle, Variable
from support.pipelines import batches, build, check, same

# ``make foreign`` sets this variable. It has installed every writer, so a missing one is a mistake and no reason to
# skip.
REQUIRED = "DALI_ZARR_FOREIGN_REQUIRED"


def missing(writer: str) -> None:
    """Skips the tests of a writer that isn't installed, or fails them under ``make foreign``."""
    reason = f"{writer} isn't installed: `make foreign` installs it"
    if os.environ.get(REQUIRED):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def writer(module: str) -> ModuleType:
    """Imports a module of a writer."""
    try:
        return importlib.import_module(module)
    except ImportError as e:
        missing(f"{module} ({e})")
        raise


@dataclass
class Foreign:
    """One array that another program wrote."""

    path: Path
    """The store."""
    name: str
    """The array's name in the store; empty if the store is the array."""
    references: dict[str, np.ndarray]
    """All its values, by who read or wrote them. There are at least two, which must be equal to the bit."""
    dims: list[str] | None = None
    """Names of its dimensions, for layouts and for `pick`; by default they have none."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the reader: ``mask_and_scale``, by default False."""

    def values(self) -> np.ndarray:
        """Returns the values that the references agree on, in native byte order; times are int64."""
        assert len(self.references) >= 2, f"{self.name}: one reference is none"
        (first, expected), *others = ((who, native(values)) for who, values in self.references.items())
        for who, values in others:
            same(values, expected, f"{self.name}: {who} and {first} disagree")
        return expected


def native(values: Any) -> np.ndarray:
    """An array in C order and native byte order, times as the integers that are stored."""
    values = np.asarray(values)
    if values.dtype.kind in "mM":
        values = values.view(values.dtype.str.replace(values.dtype.str[1:], "i8"))
    return np.ascontiguousarray(values.astype(values.dtype.newbyteorder("="), copy=False)).reshape(values.shape)


def zarr_python(path: Path, name: str = "") -> np.ndarray:
    """An array as zarr-python reads it."""
    return np.asarray(zarr.open_array(str(path), path=name, mode="r")[...])


def tensorstore(path: Path, name: str = "") -> np.ndarray:
    """An array as tensorstore reads it."""
    import tensorstore as ts

    place = Path(path) / name
    driver = "zarr3" if (place / "zarr.json").exists() else "zarr"
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{place}/"}}
    return np.asarray(ts.open(spec, open=True, read=True).result().read().result())


def xarray_values(path: Path, name: str, **options: Any) -> np.ndarray:
    """A variable as xarray decodes it, without times: what ``mask_and_scale`` must give."""
    import xarray

    group, _, variable = name.rpartition("/")
    options = {"consolidated": False, "decode_times": False, "decode_coords": False} | options
    with xarray.open_zarr(str(path), group=group or None, **options) as ds:
        return ds[variable].values


def unpack(stored: np.ndarray, missing: float | None, scale: float = 1.0, offset: float = 0.0) -> np.ndarray:
    """Unpacks stored integers by hand, with the scale and the offset of the attributes: to float64, as xarray does."""
    values = stored.astype("float64") * scale + offset
    return values if missing is None else np.where(stored == missing, np.nan, values)


def compare(device: str, array: Foreign, seed: int = 0, tries: int = 4) -> None:
    """Reads the array whole and in random windows and compares every value, shape and layout."""
    values = array.values()
    reader = {"mask_and_scale": False} | array.options | {"path": array.path} | ({"arrays": [array.name]} if array.name else {})
    dims = array.dims or [f"dim_{i}" for i in range(values.ndim)]

    def load(*_: Any) -> Variable:
        return Variable(array.name, list(dims), values)

    def run(**arguments: Any) -> None:
        told = {"arrays": [array.name], "load": load}
        try:
            Oracle(1, path=str(array.path), **told, **arguments)
        except ValueError:
            # Windows that fit nowhere.
            with pytest.raises(ValueError, match="."):
                build(device, 1, **reader, **arguments)
            return
        check(device, int(rng.integers(1, 4)), told=told, **reader, **arguments)

    rng = np.random.default_rng(seed)
    if values.ndim == 0:
        (found,) = next(batches(build(device, 2, **reader)))
        same(found, np.stack([values, values]), f"{array.name}, a scalar")
        return
    run(dims=[str(k) for k in range(values.ndim)], window=[-1] * values.ndim)
    for _ in range(tries):
        run(**windows(rng, values.shape))


def windows(rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, Any]:
    """Draws arguments that cut an array of this shape into a few samples. Each argument that chooses elements comes now
    and then."""
    cut = [int(k) for k in rng.permutation(len(shape))[: int(rng.integers(1, min(len(shape), 3) + 1))]]
    args: dict[str, list[Any]] = {key: [] for key in ("window", "step", "stride", "roi_start", "roi_end")}
    for k in cut:
        low = int(rng.integers(0, shape[k])) if rng.random() < 0.4 else 0
        high = int(rng.integers(low + 1, shape[k] + 1)) if rng.random() < 0.4 else shape[k]
        stride = int(rng.integers(1, 4)) if rng.random() < 0.4 else 1
        count = int(rng.integers(0, (high - low - 1) // stride + 2))
        args["window"].append(-1 if stride == 1 and rng.random() < 0.1 else count)
        # A few windows along each dimension: many dimensions make many samples, long arrays don't.
        args["step"].append(int(rng.integers(1, 4)) + (high - low) // 4)
        args["stride"].append(stride)
        args["roi_start"].append(low - shape[k] if rng.random() < 0.3 and low else low)
        args["roi_end"].append(high)
    args["dims"] = [str(k - len(shape)) if rng.random() < 0.2 else str(k) for k in cut]
    if rng.random() < 0.4:
        args["offsets"] = [int(i) for i in rng.integers(-2, 3, int(rng.integers(1, 4)))]
    whole = [k for k in range(len(shape)) if k not in cut]
    if whole and rng.random() < 0.5:
        k = int(rng.choice(whole))
        args["pick"] = [f"{k}={','.join(str(i) for i in rng.integers(-shape[k], shape[k], int(rng.integers(1, 5))))}"]
    more = {"out_of_bounds_policy": "pad", "fill_value": 3.0} if rng.random() < 0.3 else {}
    return args | more | {"return_index": bool(rng.random() < 0.3)}

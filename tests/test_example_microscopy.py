"""The example that rotates and flips volumes: run as it is, and with known angles beside NumPy."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import zarr
from support.stores import write_array

EXAMPLE = Path(__file__).parents[1] / "examples" / "microscopy.py"


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("microscopy", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["zyx", "czyx"])
def image(tmp_path, request):
    """Two channels, of which labels are the first one, without a channel axis or with one of length 1: what is done to both must be
    the same."""
    of_labels = request.param
    cells = np.random.default_rng(0).integers(0, 9, (12, 20, 24)).astype("uint16")
    write_array(tmp_path, "0", np.stack([cells, cells + 100]))
    labels = cells.astype("uint8")
    write_array(tmp_path / "labels" / "cells", "0", labels if of_labels == "zyx" else labels[None])
    for group, axes in ((tmp_path, "czyx"), (tmp_path / "labels" / "cells", of_labels)):
        scale = [{"type": "scale", "scale": [1.0] * len(axes)}]
        level = {"axes": [{"name": name} for name in axes], "datasets": [{"path": "0", "coordinateTransformations": scale}]}
        zarr.open_group(str(group), mode="a").attrs["ome"] = {"version": "0.5", "multiscales": [level]}
    return tmp_path, cells


def test_it_runs(example, image, device):
    pipe = example.main(str(image[0]), crop=(4, 8, 8), device=device)
    values, labels = (output.as_cpu() for output in pipe.run())
    assert np.array(values.at(0)).shape == (2, 4, 8, 8) and np.array(values.at(0)).dtype == np.float32
    assert np.array(labels.at(0)).shape == (4, 8, 8) and np.array(labels.at(0)).dtype == np.int32


def test_image_and_labels_stay_together(example, image, device, monkeypatch):
    """With a right angle, for which both ways to interpolate agree, each label is its element of the image; and the whole is one
    of the crops of the volume, rotated and flipped as NumPy does it."""
    monkeypatch.setattr(example.fn.random, "uniform", lambda range: 90.0)  # noqa: A006
    pipe = example.main(str(image[0]), crop=(3, 6, 6), device=device)
    cells = image[1].astype(np.int32)
    windows = np.lib.stride_tricks.sliding_window_view(cells, (3, 6, 6)).reshape(-1, 3, 6, 6)
    for _ in range(10):
        values, labels = (output.as_cpu() for output in pipe.run())
        for i in range(2):
            value, label = np.array(values.at(i)), np.array(labels.at(i))
            np.testing.assert_allclose(value[0], label, atol=1e-3)
            np.testing.assert_allclose(value[1], label + 100, atol=1e-3)
            undone = [
                np.rot90(np.flip(label, axes), turns, (1, 2))
                for axes in ((), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)) for turns in (1, 3)
            ]
            assert any((windows == one).all((1, 2, 3)).any() for one in undone)

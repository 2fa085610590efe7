"""Frameworks that take a loader as it is: Keras with each backend, and Ray Train. The lines are those of docs/from/keras.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
import dali_zarr  # noqa: E402

HERE = Path(__file__).resolve().parent


def run(name: str, package: str, *words: str) -> list[list]:
    installed = HERE.parents[1] / "build" / "integrations" / name
    if not (installed / package).is_dir():
        pytest.skip(f"{package} isn't installed: `make integrations` installs it")
    path = os.pathsep.join(map(str, (installed, Path(dali_zarr.__file__).parents[1])))
    command = [sys.executable, "-W", "ignore", str(HERE / words[0]), *words[1:]]
    environment = os.environ | {"PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(done.stdout.partition("FOUND")[2].splitlines()[0])


@pytest.mark.parametrize(("backend", "name"), [("torch", "keras"), ("jax", "keras"), ("tensorflow", "tensorflow")])
def test_keras(backend, name):
    """Losses of two epochs of six batches are those with the same batches in memory."""
    if backend == "jax":
        pytest.importorskip("jax")
    ours, theirs = run(name, backend if backend == "tensorflow" else "keras", "keras_fit.py", backend)
    assert len(set(ours)) == 2 and ours == theirs


def test_ray_train():
    """Workers share the samples: each has 21 in both epochs, of which one repeats another."""
    epochs = run("ray", "ray", "ray_train.py")
    for number in range(2):
        shares = [worker[number] for worker in epochs]
        assert [len(share) for share in shares] == [21, 21] and sorted({*shares[0], *shares[1]}) == list(range(41))
    assert epochs[0][0] != epochs[0][1]

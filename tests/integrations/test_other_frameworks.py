"""Frameworks that take a loader as it is: Keras with each backend, and Ray Train. The lines are those of docs/from/keras.md."""

from __future__ import annotations

import pytest
from support.beside import installed, run_beside


def run(name: str, package: str, script: str, *words: str) -> list[list]:
    return run_beside(installed(name, package, package), script, *words, timeout=170, TF_CPP_MIN_LOG_LEVEL="3")


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

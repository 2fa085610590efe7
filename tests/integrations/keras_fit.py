"""Fits a Keras model to a loader, as docs/from/keras.md says, and to the same batches in memory. Its argument is Keras's backend.
It prints the losses of both as JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

BACKEND = sys.argv[1]
os.environ["KERAS_BACKEND"] = BACKEND

import keras  # noqa: E402
import numpy as np  # noqa: E402
import zarr  # noqa: E402

if BACKEND == "jax":
    from dali_zarr.jax import Loader
else:
    from dali_zarr.torch import Loader

STEPS = 41


def fit(data: Any, **how: Any) -> list[float]:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model.fit(data, epochs=2, verbose=0, shuffle=False, **how).history["loss"]


def of_tensorflow(loader: Any) -> Any:
    """A tf.data.Dataset of the loader's batches, which share its memory."""
    import tensorflow as tf

    def batches() -> Iterator[Any]:
        for batch in loader:
            yield tuple(tf.experimental.dlpack.from_dlpack(batch[name].__dlpack__()) for name in ("x", "y"))

    signature = tf.TensorSpec((None, 3), tf.float32), tf.TensorSpec((None,), tf.float32)
    return tf.data.Dataset.from_generator(batches, output_signature=signature)


def endless(loader: Any) -> Iterator[Any]:
    while True:
        for batch in loader:
            yield batch["x"], batch["y"]


with tempfile.TemporaryDirectory() as folder:
    group = zarr.open_group(f"{folder}/x.zarr", mode="w")
    x = np.random.default_rng(0).normal(size=(STEPS, 3)).astype("f4")
    for name, values in {"x": x, "y": x[:, 0] * 2}.items():
        group.create_array(name, shape=values.shape, chunks=(4, *values.shape[1:]), dtype="f4")[:] = values
    how: Any = {"arrays": ["x", "y"], "batch_size": 8, "device": "cpu", "random_shuffle": True, "seed": 1}
    how["host_memory_limit"] = "64MiB"
    loader = Loader(f"{folder}/x.zarr", **how)
    if BACKEND == "tensorflow":
        ours = fit(of_tensorflow(loader))
    else:
        ours = fit(endless(loader), steps_per_epoch=len(loader))
    again = Loader(f"{folder}/x.zarr", **how)
    kept = [(np.array(batch["x"]), np.array(batch["y"])) for _ in range(2) for batch in again]
theirs = fit((batch for batch in [*kept, kept[-1]]), steps_per_epoch=len(kept) // 2)
print("FOUND" + json.dumps([ours, theirs]))

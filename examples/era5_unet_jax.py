"""Trains a small U-Net by JAX to predict the weather an hour ahead, fed by fn.zarr_reader.

The same as era5_unet.py, for machines without a GPU: JAX takes a tenth of the space that PyTorch with CUDA takes.
Leaves example-data/demo/era5_unet.png. See --help for what can be changed.
"""

from __future__ import annotations

from typing import Any

import era5_demo as demo
import jax
import numpy as np
import unet_jax
from dali_zarr.jax import Loader
from synthetic_weather import VARIABLES

untyped: Any = jax
jnp = untyped.numpy


def error(prediction: Any, target: Any) -> Any:
    """Mean squared error in units of the variables' variance, rows weighted by the area that they stand for."""
    weight = jnp.maximum(jnp.cos(jnp.deg2rad(jnp.linspace(90, -90, target.shape[-2]))), 0)
    return ((prediction - target) ** 2 * (weight / weight.mean())[:, None]).mean()


def loss_of(weights: Any, now: Any, later: Any) -> Any:
    return error(unet_jax.forecast(weights, now), later)


@untyped.jit
def adamw(weights: Any, moments: Any, now: Any, later: Any, rate: Any, step: Any) -> tuple[Any, Any, Any]:
    """One step of AdamW; `moments` are the means of gradients and of their squares, and `step` counts from 1."""
    loss, gradients = untyped.value_and_grad(loss_of)(weights, now, later)

    def mean(decay: float, old: Any, new: Any) -> Any:
        def of_one(one: Any, other: Any) -> Any:
            return decay * one + (1 - decay) * other

        return untyped.tree.map(of_one, old, new)

    first = mean(0.9, moments[0], gradients)
    second = mean(0.999, moments[1], untyped.tree.map(jnp.square, gradients))

    def moved(weight: Any, m: Any, v: Any) -> Any:
        change = m / (1 - 0.9**step) / (jnp.sqrt(v / (1 - 0.999**step)) + 1e-8)
        return weight - rate * (change + demo.WEIGHT_DECAY * weight)

    return untyped.tree.map(moved, weights, first, second), (first, second), loss


def train(weights: Any, feed: demo.Feed, epochs: int) -> tuple[Any, list[float]]:
    """Trains with AdamW and one cycle of the learning rate; returns the RMSE of each step too."""
    moments = (untyped.tree.map(np.zeros_like, weights),) * 2
    course = demo.Course(epochs, len(feed))
    for epoch in range(epochs):
        for now, later in feed:
            done = len(course.losses)
            rate = demo.learning_rate(done, epochs * len(feed))
            weights, moments, loss = adamw(weights, moments, now, later, rate, done + 1.0)
            course.add(epoch, float(loss))
    return weights, course.losses


def test(weights: Any, feed: demo.Feed) -> demo.Test:
    forecast, error_of = untyped.jit(unet_jax.forecast), untyped.jit(error)
    found = demo.Test()
    for now, later in feed:
        prediction = forecast(weights, now)
        found.add(len(now), float(error_of(prediction, later)), float(error_of(now, later)))
        if found.example is None:
            found.example = np.asarray(now[0]), np.asarray(later[0]), np.asarray(prediction[0])
    return found


def main() -> None:
    args = demo.arguments(__doc__, lambda: untyped.default_backend() == "gpu")
    statistics = demo.write(args)
    split = demo.split_of(args.hours)
    # Each shape of a batch is compiled anew, so a last batch that isn't full is left out of the training.
    feed = demo.Feed(Loader(**demo.reader(args, statistics, 0, split, shuffle=True), device=args.device, drop_last=True))
    held_back = demo.Feed(Loader(**demo.reader(args, statistics, split, args.hours, shuffle=False), device=args.device))
    weights = unet_jax.initial(args.seed, len(VARIABLES))
    demo.announce(args, sum(array.size for array in untyped.tree.leaves(weights)))
    weights, losses = train(weights, feed, args.epochs)
    demo.conclude(args, statistics, feed, losses, test(weights, held_back))


if __name__ == "__main__":
    main()

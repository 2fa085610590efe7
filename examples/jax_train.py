"""Trains a small network with JAX on all of its devices, and goes on after a stop.

The network says how the next hour differs from this one. A checkpoint after each epoch holds its weights and the loader's state.
"""

import argparse
import json
import os
from typing import Any

import dali_zarr
import jax
import numpy as np
from dali_zarr.jax import Loader

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("store", help="such as example-data/days.zarr, which small_stores.py writes")
parser.add_argument("checkpoint", help="a file, such as example-data/jax.npz; if it exists, the training goes on from it")
parser.add_argument("--epochs", type=int, default=4)
args = parser.parse_args()

untyped: Any = jax
jnp, lax, P = untyped.numpy, untyped.lax, jax.sharding.PartitionSpec

mesh = jax.sharding.Mesh(np.array(untyped.devices()), ("data",))
divided, everywhere = (jax.sharding.NamedSharding(mesh, spec) for spec in (P("data"), P()))
parts = dali_zarr.splits(
    path=args.store, arrays=["t2m"], stack_arrays=True, offsets={"input": 0, "target": 1}, mean=280, stddev=3, batch_size=8,
    random_shuffle=True, drop_last=True, sharding=divided, train=slice(None, "2020-01-01"), validation="2020-01-02",
)
training, validation = Loader(**parts["train"]), Loader(**parts["validation"])


def forecast(weights: Any, x: Any) -> Any:
    """Of fields (batch, 1, latitude, longitude): the same plus a learned change, by two convolutions."""
    hidden = untyped.nn.gelu(lax.conv(x, weights["first"], (1, 1), "SAME"))
    return x + lax.conv(hidden, weights["second"], (1, 1), "SAME")


def loss_of(weights: Any, batch: Any) -> Any:
    return jnp.mean((forecast(weights, batch["input"]) - batch["target"]) ** 2)


@untyped.jit
def step(weights: Any, batch: Any) -> tuple[Any, Any]:
    """Gradient descent. XLA adds up what the devices found."""
    loss, gradients = untyped.value_and_grad(loss_of)(weights, batch)
    return {name: weight - 0.02 * gradients[name] for name, weight in weights.items()}, loss


error = untyped.jit(loss_of)
rng = np.random.default_rng(0)
values = {"first": 0.1 * rng.standard_normal((8, 1, 3, 3)), "second": 0.1 * rng.standard_normal((1, 8, 3, 3))}
if os.path.exists(args.checkpoint):
    with np.load(args.checkpoint) as saved:
        values = {name: saved[name] for name in values}
        training.load_state_dict(json.loads(str(saved["loader"])))
weights = untyped.device_put({name: value.astype("float32") for name, value in values.items()}, everywhere)

if training.epoch >= args.epochs:
    parser.exit(0, f"{args.checkpoint} has {training.epoch} epochs already: give more --epochs, or another checkpoint\n")
for epoch in range(training.epoch, args.epochs):
    losses: list[Any] = []
    for batch in training:
        weights, loss = step(weights, batch)
        losses.append(loss)
    mean, unseen = (float(jnp.mean(jnp.array(found))) for found in (losses, [error(weights, batch) for batch in validation]))
    print(f"epoch {epoch} training {mean:.6f} validation {unseen:.6f}")
    np.savez(args.checkpoint + ".new.npz", **jax.device_get(weights), loader=json.dumps(training.state_dict()))
    os.replace(args.checkpoint + ".new.npz", args.checkpoint)

"""Global arrays over all of JAX's devices, each of which has a reader of its own.

To try it without GPUs: JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=2 python jax_devices.py
"""

import argparse
from typing import Any

import jax
import numpy as np
from dali_zarr.jax import Loader

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("store", nargs="?", default="example-data/hours.zarr", help="default: %(default)s")
args = parser.parse_args()

untyped: Any = jax
jnp, devices = untyped.numpy, untyped.devices()
mesh = jax.sharding.Mesh(np.array(devices), ("data",))
loader = Loader(
    args.store,
    arrays=["t2m"],
    offsets={"input": 0, "target": 6},
    batch_size=8,  # over all devices
    sharding=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data")),
    drop_last=True,  # functions that are compiled for one shape want full batches
    random_shuffle=True,
)


def error_of(batch: Any) -> Any:
    """The error of saying that nothing changes. XLA adds the devices' parts up."""
    return jnp.sqrt(jnp.mean((batch["target"]["t2m"] - batch["input"]["t2m"]) ** 2))


persistence = untyped.jit(error_of)


for batch in loader:
    error = float(persistence(batch))
    print(batch["input"]["t2m"].shape, f"on {len(devices)} devices, error {error:.2f}")

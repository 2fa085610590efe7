"""Global arrays over all of JAX's devices, each of which has a reader of its own: python jax_devices.py [STORE]

To try it without GPUs: JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=2 python jax_devices.py
"""

import sys
from typing import Any

import jax
import numpy as np
from dali_zarr.jax import Loader

if "--help" in sys.argv:
    sys.exit(print(__doc__))

untyped: Any = jax
jnp, devices = untyped.numpy, untyped.devices()
mesh = jax.sharding.Mesh(np.array(devices), ("data",))
loader = Loader(
    sys.argv[1] if len(sys.argv) > 1 else "hours.zarr",
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

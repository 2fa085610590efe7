"""The U-Net of unet.py for JAX: functions of its weights, a dictionary by layer."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

untyped: Any = jax
jnp, lax = untyped.numpy, untyped.lax

# Fields are (sample, latitude, longitude, channel) inside, as XLA's convolutions on the CPU want them.
LAYOUT = ("NHWC", "HWIO", "NHWC")
GROUPS = 4


def initial(seed: int, channels: int, width: int = 16) -> dict[str, Any]:
    """Weights as PyTorch draws them; the last layer's are zero, so that the first forecast is that nothing changes."""

    def small(array: Any) -> Any:
        return array.astype("float32")

    w = width
    shapes = {
        "down0": (channels, w, w), "down1": (w, 2 * w, 2 * w), "bottom": (2 * w, 4 * w, 2 * w), "up1": (4 * w, 2 * w, w),
        "up0": (2 * w, w, w),
    }
    rng = np.random.default_rng(seed)
    weights: dict[str, Any] = {"head": {"kernel": np.zeros((w, channels)), "bias": np.zeros(channels)}}
    for name, sizes in shapes.items():
        for i, (inputs, outputs) in enumerate(zip(sizes, sizes[1:], strict=False)):
            limit = (9 * inputs) ** -0.5
            weights[f"{name}.{i}"] = {
                "kernel": rng.uniform(-limit, limit, (3, 3, inputs, outputs)), "bias": rng.uniform(-limit, limit, outputs),
                "scale": np.ones(outputs), "shift": np.zeros(outputs),
            }
    return untyped.tree.map(small, weights)


def conv(layer: Any, x: Any) -> Any:
    """3 x 3 convolution that wraps around in longitude and repeats the edge in latitude, group normalisation, GELU."""
    x = jnp.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)), mode="wrap")
    x = jnp.pad(x, ((0, 0), (1, 1), (0, 0), (0, 0)), mode="edge")
    x = lax.conv_general_dilated(x, layer["kernel"], (1, 1), "VALID", dimension_numbers=LAYOUT) + layer["bias"]
    groups = x.reshape(*x.shape[:3], GROUPS, -1)
    mean, variance = groups.mean((1, 2, 4), keepdims=True), groups.var((1, 2, 4), keepdims=True)
    x = ((groups - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape)
    return untyped.nn.gelu(x * layer["scale"] + layer["shift"], approximate=False)


def pair(weights: Any, name: str, x: Any) -> Any:
    return conv(weights[f"{name}.1"], conv(weights[f"{name}.0"], x))


def halved(x: Any) -> Any:
    n, lat, lon, channels = x.shape
    return x.reshape(n, lat // 2, 2, lon // 2, 2, channels).mean((2, 4))


def doubled(x: Any) -> Any:
    return x.repeat(2, 1).repeat(2, 2)


def forecast(weights: Any, fields: Any) -> Any:
    """(sample, channel, latitude, longitude), both grid lengths multiples of 4; the same shape comes back: the fields plus a
    learned change."""
    x = jnp.moveaxis(fields, 1, -1)
    fine = pair(weights, "down0", x)
    middle = pair(weights, "down1", halved(fine))
    coarse = pair(weights, "bottom", halved(middle))
    middle = pair(weights, "up1", jnp.concatenate([middle, doubled(coarse)], -1))
    fine = pair(weights, "up0", jnp.concatenate([fine, doubled(middle)], -1))
    return fields + jnp.moveaxis(fine @ weights["head"]["kernel"] + weights["head"]["bias"], -1, 1)

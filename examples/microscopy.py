"""Crops of an OME-Zarr image and its labels, rotated and flipped together by DALI's operators.

The names of arrays are those of OME-Zarr: "0" is the finest level, and labels are in groups below "labels".
"""

import argparse
from collections.abc import Sequence
from typing import Any

import dali_zarr
import numpy as np
import nvidia.dali
from nvidia.dali.pipeline import pipeline_def

fn: Any = nvidia.dali.fn
types: Any = nvidia.dali.types


@pipeline_def(batch_size=2, num_threads=2)
def volumes(path: str, labels: str, crop: list[int], device: Any) -> Any:
    image, label = dali_zarr.zarr_reader(
        device=device, path=path, arrays={"image": "0", "label": f"labels/{labels}/0"}, name="reader",
        dims=["z", "y", "x"], window=crop, random_crop=["z", "y", "x"], samples_per_volume=64, random_shuffle=True, seed=0,
    )
    # The reader gives (channel, z, y, x), and labels as (z, y, x), or (1, z, y, x) if they have a channel axis. DALI's operators
    # for images take channels last.
    image = fn.transpose(image, perm=[1, 2, 3, 0], output_layout="DHWC")
    label = fn.reshape(label, shape=[*crop, 1], layout="DHWC")
    # Rotations interpolate, in float32. Labels are numbers of cells: the nearest one, and 0 outside.
    image, label = fn.cast(image, dtype=types.FLOAT), fn.cast(label, dtype=types.FLOAT)
    # Any angle around z; both get the same numbers.
    angle = fn.random.uniform(range=(-30.0, 30.0))
    rotate = {"angle": angle, "axis": (0.0, 0.0, 1.0), "keep_size": True, "fill_value": 0.0}
    image = fn.rotate(image, **rotate, interp_type=types.INTERP_LINEAR)
    label = fn.rotate(label, **rotate, interp_type=types.INTERP_NN)
    flips = {name: fn.random.coin_flip() for name in ("depthwise", "vertical", "horizontal")}
    image, label = fn.flip(image, **flips), fn.flip(label, **flips)
    # Back to (channel, z, y, x) for the network, and to whole numbers for the loss.
    image = fn.transpose(image, perm=[3, 0, 1, 2], output_layout="CDHW")
    label = fn.cast(fn.squeeze(label, axes=[3]), dtype=types.INT32)
    return image, label


def main(path: str, labels: str = "cells", crop: Sequence[int] = (16, 32, 32), device: str = "cpu") -> Any:
    where: Any = {"device_id": 0 if device == "gpu" else None, "seed": 1}
    pipe: Any = volumes(path, labels, list(crop), device, **where)
    pipe.build()
    image, label = (output.as_cpu() for output in pipe.run())
    for i in range(len(image)):
        values, cells = np.array(image.at(i)), np.array(label.at(i))
        means = ", ".join(f"{channel.mean():.2f}" for channel in values)
        print(f"image {values.shape}, means of its channels {means}")
        print(f"label {cells.shape}, {len(np.unique(cells[cells > 0]))} cells, {(cells > 0).mean():.0%} of the crop")
    return pipe


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", nargs="?", default="example-data/image.zarr", help="default: %(default)s")
    parser.add_argument("labels", nargs="?", default="cells", help="a group below labels; default: %(default)s")
    args = parser.parse_args()
    main(args.image, args.labels)

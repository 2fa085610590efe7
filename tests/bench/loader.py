"""What dali_zarr.torch.Loader costs beside the bare pipeline: seconds of an epoch of both, alternating, medians.

    python tests/bench/loader.py [--device cpu] [--fields 64] [--repeats 9]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from dali_zarr.torch import Loader
from nvidia.dali import fn
from nvidia.dali.pipeline import Pipeline
from support.stores import Layout, write_array


def bare(args: dict, batch_size: int, batches: int):
    """A function that runs an epoch of the operator, and waits for each batch."""
    device = args.pop("device")
    pipe = Pipeline(batch_size=batch_size, num_threads=2, device_id=0 if device == "gpu" else None)
    with pipe:
        pipe.set_outputs(*fn.zarr_reader(device=device, pad_last_batch=True, return_index=True, **args))
    pipe.build()

    def epoch() -> None:
        for _ in range(batches):
            pipe.run()

    return epoch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--fields", type=int, default=64)
    parser.add_argument("--shape", type=int, nargs=2, default=[721, 1440])
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=9)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fields = np.random.default_rng(0).standard_normal((given.fields, *given.shape)).astype("float32")
        write_array(folder, "a", fields, codec="none", layout=Layout((1, *given.shape)), dims=("time", "lat", "lon"))
        args = {"path": folder, "arrays": ["a"]}
        loader = Loader(device=given.device, batch_size=given.batch_size, **args)
        epochs = {
            "bare": bare(args | {"device": given.device}, given.batch_size, len(loader)),
            "loader": lambda: [None for _ in loader],
        }
        seconds: dict[str, list[float]] = {name: [] for name in epochs}
        for _ in range(given.repeats + 1):
            for name, epoch in epochs.items():
                begin = time.perf_counter()
                epoch()
                seconds[name].append(time.perf_counter() - begin)
        median = {name: statistics.median(s[1:]) / len(loader) for name, s in seconds.items()}
        share = median["loader"] / median["bare"] - 1
        print(f"{given.device}: {median['bare'] * 1e6:.1f} us a batch, {median['loader'] * 1e6:.1f} by the loader: {share:+.1%}")


if __name__ == "__main__":
    main()

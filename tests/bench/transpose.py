"""The reader's transpose beside PyTorch's: images with colours first in [0, 1], and fields with variables last.

    python tests/bench/transpose.py [--small] [--device cpu] [--store DIR] [--threads 1]

Images are uint8 (t, 96, 96, 3) in chunks of 160, as diffusion policies store them. A sample is a window of 16. The model wants
float32 (16, 3, 96, 96) in [0, 1]. ``images`` are windows side by side in batches of 4; ``episodes`` are all windows, shuffled, in
batches of 64, as such a policy is trained. Fields are float32 (time, 100 variables, 1, 40320 cells), with a date in each chunk, as
anemoi-datasets stores them; the model wants (1, 40320, 100). Both are stored without compression, so that little but the
finishing pass is measured.

Two readers give each: one with ``transpose`` (and ``mean=0, stddev=255``), and one without them, after which PyTorch does the
same: ``permute``, ``float``, ``div``, ``contiguous`` (in ``episodes`` without ``contiguous``, as such programs do). Both have as
many threads. What counts is the least time of a sample over the rounds, from first to last batch. Beside it stand the times of
what differs: the reader's finishing pass (``assemble_seconds``), and PyTorch's operations alone.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

CASES: dict[str, dict[str, Any]] = {
    "images": {
        "arrays": ["img"], "window": {"t": 16}, "step": [16],
        "turned": {"transpose": "t c y x", "mean": 0, "stddev": 255},
    },
    "episodes": {
        "arrays": ["img"], "window": {"t": 16}, "step": [1], "random_shuffle": True, "batch_size": 64,
        "turned": {"transpose": "t c y x", "mean": 0, "stddev": 255},
    },
    "fields": {"arrays": ["data"], "window": {"time": 1}, "turned": {"transpose": "time ensemble cell variable"}},
}
TORCH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "images": lambda x: x.permute(0, 1, 4, 2, 3).float().div(255).contiguous(),
    "episodes": lambda x: x.movedim(-1, 2).float().div_(255),
    "fields": lambda x: x.permute(0, 1, 3, 4, 2).contiguous(),
}


def write(path: Path, images: int, dates: int) -> None:
    import zarr

    rng = np.random.default_rng(0)
    group = zarr.create_group(path, overwrite=True)

    def array(name: str, shape: tuple[int, ...], chunk: int, dtype: str, dims: list[str]) -> Any:
        return group.create_array(
            name, shape=shape, chunks=(chunk, *shape[1:]), dtype=dtype, compressors=None, dimension_names=dims
        )

    found = array("img", (images, 96, 96, 3), 160, "uint8", ["t", "y", "x", "c"])
    for start in range(0, images, 160):
        found[start : start + 160] = rng.integers(0, 256, (min(160, images - start), 96, 96, 3), np.uint8)
    found = array("data", (dates, 100, 1, 40320), 1, "float32", ["time", "variable", "ensemble", "cell"])
    for date in range(dates):
        found[date] = rng.normal(280, 20, (100, 1, 40320)).astype("float32")


def measured(path: Path, name: str, device: str, threads: int, is_turned: bool) -> dict[str, float]:
    """Returns seconds of a sample: of a round from first to last batch, of PyTorch's operations, and of the finishing pass."""
    from dali_zarr.torch import Loader

    case = dict(CASES[name])
    turned = case.pop("turned")
    case = {"batch_size": 4, "device": device, "decode_threads": threads, **case}
    loader = Loader(path, **case, **(turned if is_turned else {}))
    change = TORCH[name]
    whole, alone = [], []
    before = 0.0
    samples = assembled = 0
    for round_ in range(4):
        begun, in_torch, count = time.perf_counter(), 0.0, 0
        for batch in loader:
            (values,) = batch.values()
            if not is_turned:
                start = time.perf_counter()
                values = change(values)
                if device == "cuda":
                    torch.cuda.synchronize()
                in_torch += time.perf_counter() - start
            count += len(values)
        if round_ == 0:
            before = loader.counters()["assemble_seconds"]
            continue
        samples += count
        whole.append((time.perf_counter() - begun) / count)
        alone.append(in_torch / count)
    assembled = loader.counters()["assemble_seconds"] - before
    return {"whole": min(whole), "torch": min(alone), "assembled": assembled / samples}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a tenth of the data")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--store", type=Path, help="where the store is, or is written; default: a temporary folder")
    parser.add_argument("--threads", type=int, default=1, help="threads of the reader that decode, and of PyTorch")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    folder = args.store or Path(tempfile.mkdtemp(prefix="transpose-"))
    try:
        if not (folder / "data").exists():
            write(folder, *((1600, 16) if args.small else (16_000, 160)))
        for name in CASES:
            turned = measured(folder, name, args.device, args.threads, True)
            plain = measured(folder, name, args.device, args.threads, False)
            millis = {key: f"{1e3 * value:.3f} ms" for key, value in (
                ("reader", turned["whole"]), ("its pass", turned["assembled"]), ("reader and torch", plain["whole"]),
                ("its pass without transpose", plain["assembled"]), ("torch alone", plain["torch"]),
            )}
            print(f"{name}: {millis}; torch takes {plain['torch'] / turned['assembled']:.1f} times as long as the pass")
    finally:
        if args.store is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()

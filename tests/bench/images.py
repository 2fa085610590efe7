"""Camera frames that are JPEG chunks, as shuffled windows of normalised float16 tensors with channels first, beside what else
gives them.

    python tests/bench/images.py [--small] [--device cuda] [--store DIR] [--threads 15] [--video DIR]
    python tests/bench/images.py --write-videos DIR

Frames look like a camera's: smooth colours, moving shapes and some noise, as JPEG of quality 90 (4:2:0), one for each chunk. A
sample is a window of 16 frames, a batch has 8 samples, and samples don't overlap, so that each frame is decoded once. The peers:

- ``dali_zarr``: the reader. A GPU's JPEG engine decodes, or the CPU; the device normalises and transposes.
- ``zarr-python``: chunks decoded by imagecodecs, in as many threads, then PyTorch on the device.
- ``DALI``: ``fn.readers.file`` and ``fn.decoders.image`` over the same images as files, shuffled one by one; on the device that is
  asked for (``mixed`` on a GPU), then ``fn.crop_mirror_normalize``.
- ``torchcodec``: the frames as videos in AV1 and H.264, decoded as LeRobot does, on the CPU and by a GPU's NVDEC (``video.py``).
  Videos are those of ``--video``, or are written for each size. What can't be imported or decoded is left out, and a line says so.

Each frame shows its number, so that the first batches are compared with NumPy's over imagecodecs' frames (videos aren't), and with
the camera's, as PSNR. There are some hundred different ones, which the store and the folder link to. Frames/s are medians of
``--rounds`` passes, in turns, each of a new loader, and without its first batches, which are prepared while it starts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import torch
import video
import zarr
from imagecodecs.numcodecs import Jpeg, register_codecs

MEAN, STDDEV = 127.5, 64.0
WINDOW, BATCH = 16, 8
SIZES = {"480 x 640": (480, 640, 38_400), "224 x 224": (224, 224, 102_400)}
# Frames that differ, and batches that aren't timed.
DIFFERENT, FIRST = 256, 4
Batches = Iterator[torch.Tensor]
Peers = dict[str, Callable[[Path, str, int], Callable[[], Batches]]]


def camera(count: int, height: int, width: int) -> Iterator[np.ndarray]:
    """Frames (height, width, 3) of shapes that move over smooth colours, with a sensor's noise."""
    random = np.random.default_rng(7)
    y, x = np.mgrid[0:height, 0:width].astype("f4")
    ground = np.stack([90 + 60 * np.sin(x / (90 + 20 * c)) + 40 * np.cos(y / (70 + 10 * c)) for c in range(3)], -1)
    noise = random.normal(0, 4, (height + 32, width + 32, 3)).astype("f4")
    for k in range(count):
        frame = ground + noise[k % 32 : k % 32 + height, (5 * k) % 32 : (5 * k) % 32 + width]
        for shape in range(4):
            centre = (height * (0.5 + 0.4 * np.sin(k / 40 + shape)), width * (0.5 + 0.4 * np.cos(k / 55 + 2 * shape)))
            inside = (y - centre[0]) ** 2 + (x - centre[1]) ** 2 < (height / (6 + shape)) ** 2
            frame[inside] = (40 * shape, 200 - 30 * shape, 90)
        for bit in range(8):
            frame[:16, 16 * bit : 16 * bit + 16] = 255 * (k >> bit & 1)
        yield frame.clip(0, 255).astype("u1")


def write(folder: Path, count: int, frames: np.ndarray) -> None:
    """Writes the store ``frames.zarr``, and the same images as files."""
    _, height, width, _ = frames.shape
    array = zarr.create_array(
        folder / "frames.zarr", name="image", shape=(count, height, width, 3), chunks=(1, height, width, 3), dtype="uint8",
        zarr_format=2, compressors=Jpeg(level=90),
    )
    (folder / "files/0").mkdir(parents=True)
    for k, frame in enumerate(frames):
        array[k] = frame
    for k in range(count):
        chunk = folder / f"frames.zarr/image/{k % DIFFERENT}.0.0.0"
        os.link(chunk, folder / f"files/0/{k:06}.jpg")
        if k >= DIFFERENT:
            os.link(chunk, folder / f"frames.zarr/image/{k}.0.0.0")


@lru_cache(DIFFERENT)
def decoded(file: Path) -> np.ndarray:
    """A frame as imagecodecs decodes it."""
    return imagecodecs.jpeg_decode(file.read_bytes())


def reader(folder: Path, device: str, threads: int) -> Callable[[], Batches]:
    from dali_zarr.torch import Loader

    loader = Loader(
        folder / "frames.zarr", arrays=["image"], window=[WINDOW], step=[WINDOW], transpose=[0, 3, 1, 2], mean=MEAN, stddev=STDDEV,
        dtype="float16", batch_size=BATCH, random_shuffle=True, device="gpu" if device == "cuda" else "cpu", num_threads=threads,
    )
    return lambda: (batch["image"].flatten(0, 1) for batch in loader)


def zarr_python(folder: Path, device: str, threads: int) -> Callable[[], Batches]:
    array: Any = zarr.open_array(folder / "frames.zarr/image")
    random = np.random.default_rng(1)

    def batches() -> Batches:
        starts = random.permutation(array.shape[0] // WINDOW) * WINDOW
        with ThreadPoolExecutor(threads) as pool:
            frames = [[start + k for start in starts[i : i + BATCH] for k in range(WINDOW)] for i in range(0, len(starts), BATCH)]
            coming = [[pool.submit(array.__getitem__, int(k)) for k in batch] for batch in frames[:2]]
            for i in range(len(frames)):
                found = torch.from_numpy(np.stack([one.result() for one in coming.pop(0)]))
                coming += [[pool.submit(array.__getitem__, int(k)) for k in batch] for batch in frames[i + 2 : i + 3]]
                found = found.to(device, non_blocking=True).permute(0, 3, 1, 2).to(torch.float32)
                yield ((found - MEAN) / STDDEV).to(torch.float16).contiguous()

    return batches


def dali(folder: Path, device: str, threads: int) -> Callable[[], Batches]:
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

    @pipeline_def(batch_size=BATCH * WINDOW, num_threads=threads, device_id=0 if device == "cuda" else None, prefetch_queue_depth=2)
    def images():  # noqa: ANN202
        encoded, _ = fn.readers.file(file_root=str(folder / "files"), random_shuffle=True, name="files")
        found = fn.decoders.image(encoded, device="mixed" if device == "cuda" else "cpu", output_type=types.RGB)
        return fn.crop_mirror_normalize(found, dtype=types.FLOAT16, output_layout="CHW", mean=[MEAN] * 3, std=[STDDEV] * 3)

    iterator = DALIGenericIterator(
        images(), ["image"], reader_name="files", auto_reset=True, last_batch_policy=LastBatchPolicy.PARTIAL,
    )
    return lambda: (batch[0]["image"] for batch in iterator)


def videos(folder: Path, count: int, height: int, width: int, device: str) -> Peers:
    """torchcodec's peers, for videos in the folder."""
    peers: Peers = {}
    for codec in video.CODECS:
        for where in ["cpu", "cuda"] if device == "cuda" else ["cpu"]:
            peer = f"torchcodec, {codec}{', NVDEC' * (where == 'cuda')}"
            path = video.place(folder, codec, height, width)
            if why := video.missing(path, where):
                print(f"{peer} is left out: {why}", file=sys.stderr, flush=True)
                continue
            peers[peer] = lambda _, device, threads, path=path, where=where: video.reader(
                path, count, WINDOW, BATCH, threads, where, device, MEAN, STDDEV
            )
    return peers


def compared(folder: Path, frames: np.ndarray, peer: str, batches: Batches) -> tuple[float, float]:
    """How far the values of the first batches are from imagecodecs' at most, in bytes' levels, and their PSNR to the camera's."""
    most, squares, numbers = 0.0, [], []
    for batch, _ in zip(batches, range(FIRST), strict=False):
        for one in batch.cpu().numpy():
            numbers.append(sum(1 << bit for bit in range(8) if one[0, 8, 16 * bit + 8] > 0))
            levels = one.transpose(1, 2, 0).astype("f4") * STDDEV + MEAN
            squares.append(np.square(levels - frames[numbers[-1]]).mean())
            if not peer.startswith("torchcodec"):
                most = max(most, float(np.abs(levels - decoded(folder / f"files/0/{numbers[-1]:06}.jpg")).max()))
    windows = np.reshape(numbers, (-1, WINDOW))
    # DALI's readers shuffle files one by one.
    if peer != "DALI" and (windows != windows[:, :1] // WINDOW * WINDOW + np.arange(WINDOW)).any():
        raise SystemExit(f"{peer}: windows of other frames than those that were asked for: {windows}")
    return most, float(10 * np.log10(255**2 / np.mean(squares)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--small", action="store_true", help="few frames, to see that it runs")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--store", help="folder for the stores")
    parser.add_argument("--threads", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--video", type=Path, help="folder with the videos")
    parser.add_argument("--write-videos", type=Path, help="writes the videos to this folder, and does no more")
    given = parser.parse_args()
    register_codecs(verbose=False)
    for size, (height, width, count) in SIZES.items():
        frames = np.stack(list(camera(DIFFERENT, height, width)))
        if given.write_videos:
            given.write_videos.mkdir(parents=True, exist_ok=True)
            for codec in video.CODECS:
                video.write(given.write_videos, codec, frames)
            continue
        with tempfile.TemporaryDirectory(dir=given.store) as name:
            folder = Path(name)
            count = 8 * DIFFERENT if given.small else count
            write(folder, count, frames)
            for codec in video.CODECS if not given.video and find_spec("av") else []:
                video.write(folder, codec, frames)
            peers: Peers = {"dali_zarr": reader, "zarr-python": zarr_python, "DALI": dali}
            peers |= videos(given.video or folder, count, height, width, given.device)
            sizes = {"JPEG": sum((folder / f"files/0/{k:06}.jpg").stat().st_size for k in range(DIFFERENT)) / DIFFERENT}
            for codec in video.CODECS:
                path = video.place(given.video or folder, codec, height, width)
                sizes |= {codec: path.stat().st_size / video.LENGTH} if path.exists() else {}
            made = {peer: make(folder, given.device, given.threads) for peer, make in peers.items()}
            likeness = {peer: compared(folder, frames, peer, one()) for peer, one in made.items()}
            del made
            times: dict[str, list[float]] = {peer: [] for peer in peers}
            for _ in range(given.rounds):
                for peer, make in peers.items():
                    # zarr-python takes much longer than the others, and videos on the CPU somewhat.
                    part = 24 if peer == "zarr-python" else 4 if peer.startswith("torchcodec") else 1
                    most = max(count // (BATCH * WINDOW) // part, FIRST + 4)
                    batches = make(folder, given.device, given.threads)()
                    start = read = 0
                    for number, batch in zip(range(most), batches, strict=False):
                        read += len(batch) if number >= FIRST else 0
                        start = time.perf_counter() if number == FIRST - 1 else start
                    if given.device == "cuda":
                        torch.cuda.synchronize()
                    times[peer].append(read / (time.perf_counter() - start))
                    del batches
            rates = {peer: round(statistics.median(one)) for peer, one in times.items()}
            result = {
                "frames": size,
                "frames/s": rates,
                "levels from libjpeg-turbo": {k: round(v[0], 2) for k, v in likeness.items() if not k.startswith("torchcodec")},
                "PSNR to the camera, dB": {k: round(v[1], 2) for k, v in likeness.items()},
                "bytes/frame": {codec: round(one) for codec, one in sizes.items()},
            }
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

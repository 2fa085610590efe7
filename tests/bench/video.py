"""The camera frames of images.py as videos, read as LeRobot's datasets read theirs: windows decoded by torchcodec.

- A video is written as LeRobot writes it: 30 frames/s, yuv420p, a key frame every 2 frames and a CRF of 30, in AV1 (SVT-AV1, its
  default) or H.264 (x264). It has 2,048 frames, in which the different ones come again and again, and longer datasets read it
  repeatedly.
- A window is read by ``get_frames_at`` of a decoder that seeks approximately and has one thread, and the frames' times are compared
  with those that were asked for. LeRobot has a decoder for each worker process of PyTorch's DataLoader; here each thread has one,
  which saves copies between processes. Windows begin with a key frame, so that no frame is decoded in vain, as it can be for
  windows that begin anywhere.
- Values are normalised on the device, as float16 with channels first.

PyAV writes the videos, ahead of time (``images.py --write-videos``) or for each run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

RATE, LENGTH = 30, 2_048
# Encoders and their options.
CODECS = {"AV1": ("libsvtav1", {"g": "2", "crf": "30"}), "H.264": ("libx264", {"g": "2", "crf": "30"})}
# By how much a frame's time may differ from what is asked for, in seconds: LeRobot's default.
TOLERANCE = 1e-4


def place(folder: Path, codec: str, height: int, width: int) -> Path:
    return folder / f"{codec.replace('.', '').lower()}-{height}x{width}.mp4"


def write(folder: Path, codec: str, frames: np.ndarray) -> None:
    """Writes a video of the frames (frame, height, width, 3), repeated until there are LENGTH."""
    import av

    av.logging.set_level(av.logging.ERROR)
    encoder, options = CODECS[codec]
    _, height, width, _ = frames.shape
    with av.open(str(place(folder, codec, height, width)), "w") as output:
        stream: Any = output.add_stream(encoder, RATE, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for k in range(LENGTH):
            output.mux(stream.encode(av.VideoFrame.from_ndarray(frames[k % len(frames)], format="rgb24")))
        output.mux(stream.encode(None))


def missing(video: Path, device: str) -> str | None:
    """Why the video can't be read, or not by the device."""
    if not video.exists():
        return "there is no video: neither --video nor PyAV, which writes one" if not find_spec("av") else f"there is no {video}"
    try:
        from torchcodec.decoders import VideoDecoder

        decoder = VideoDecoder(video, seek_mode="approximate", device=device)
        assert decoder.get_frames_at([0]).data.device.type == device
    except Exception as error:
        # torchcodec tells of each version of FFmpeg that it hasn't found, in many lines.
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    return str(decoder.cpu_fallback) if device == "cuda" and getattr(decoder, "cpu_fallback", False) else None


def reader(
    video: Path, count: int, window: int, batch: int, threads: int, decoded_on: str, device: str, mean: float, stddev: float
) -> Callable[[], Iterator[torch.Tensor]]:
    """Batches of shuffled windows, out of ``count`` frames."""
    from torchcodec.decoders import VideoDecoder

    random = np.random.default_rng(1)
    # As many batches ahead as give each thread another window while it decodes one.
    ahead = max(2, -(-2 * threads // batch))

    def batches() -> Iterator[torch.Tensor]:
        own = threading.local()

        def frames(start: int) -> torch.Tensor:
            if not hasattr(own, "decoder"):
                own.decoder = VideoDecoder(video, seek_mode="approximate", device=decoded_on)
            wanted = [(start + k) % LENGTH for k in range(window)]
            found = own.decoder.get_frames_at(wanted)
            times = torch.tensor(wanted, dtype=torch.float64) / own.decoder.metadata.average_fps
            if (found.pts_seconds.cpu() - times).abs().max() > TOLERANCE:
                raise ValueError(f"frames of other times than those that were asked for: {found.pts_seconds}, not {times}")
            return found.data.to(device)

        starts = random.permutation(count // window) * window
        with ThreadPoolExecutor(threads) as pool:
            asked = ([pool.submit(frames, int(start)) for start in starts[i : i + batch]] for i in range(0, len(starts), batch))
            coming = [one for one, _ in zip(asked, range(ahead), strict=False)]
            while coming:
                found = torch.cat([one.result() for one in coming.pop(0)])
                coming += [one for one, _ in zip(asked, range(1), strict=False)]
                yield ((found.to(torch.float32) - mean) / stddev).to(torch.float16).contiguous()

    return batches

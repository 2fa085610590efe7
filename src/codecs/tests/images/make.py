"""Writes the images of this folder, and `expected.json` with what imagecodecs decodes: shape, type and CRC-32 of its bytes.

Needs imagecodecs and Pillow: `python make.py`. Written with imagecodecs 2026.3.6 (libjpeg-turbo 3.1.3, libwebp 1.6.0,
OpenJPEG 2.5.4, libjxl 0.11.2) and Pillow 13.0.
"""

from __future__ import annotations

import io
import json
import zlib
from pathlib import Path

import imagecodecs
import numpy as np
from PIL import Image

FOLDER = Path(__file__).parent


def scene(height: int, width: int, channels: int, seed: int) -> np.ndarray:
    """Smooth colours with some noise, uint8."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [128 + 70 * np.sin(x / (5 + k) + k) + 50 * np.cos(y / (4 + k)) for k in range(channels)]
    noise = np.random.default_rng(seed).normal(0, 6, (height, width, channels))
    return (np.stack(planes, -1) + noise).clip(0, 255).astype("u1")


def letters(height: int, width: int) -> np.ndarray:
    """A page with the same signs many times."""
    rng = np.random.default_rng(9)
    page = np.full((height, width, 3), 240, "u1")
    signs = rng.random((4, 9, 6)) < 0.5
    for y in range(4, height - 10, 12):
        for x in range(3, width - 7, 8):
            page[y : y + 9, x : x + 6][signs[rng.integers(4)]] = (20, 30, 90)
    return page


def pillow(image: np.ndarray, mode: str, kind: str, **how: object) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image, mode).save(out, kind, **how)
    return out.getvalue()


def all_images() -> dict[str, bytes]:
    jpeg = imagecodecs.jpeg8_encode
    color = scene(17, 33, 3, 0)
    four = scene(11, 21, 4, 1)
    deep = scene(30, 40, 1, 2)[..., 0].astype("u2") * 257
    jpeg2k = imagecodecs.jpeg2k_encode
    jpegxl = imagecodecs.jpegxl_encode
    wide = scene(20, 300, 3, 8)
    return {
        "gray.jpg": jpeg(scene(13, 19, 1, 3)[..., 0], level=80),
        "420.jpg": jpeg(color, level=85, subsampling="420"),
        "422.jpg": jpeg(color, level=85, subsampling="422"),
        "440.jpg": jpeg(color, level=85, subsampling="440"),
        "411.jpg": jpeg(color, level=85, subsampling="411"),
        "444.jpg": jpeg(color, level=95, subsampling="444"),
        "rgb.jpg": jpeg(color, level=90, colorspace="RGB", outcolorspace="RGB"),
        "cmyk.jpg": jpeg(four, level=90, colorspace="CMYK", outcolorspace="CMYK"),
        "ycck.jpg": jpeg(four, level=90, colorspace="CMYK", outcolorspace="YCCK"),
        "progressive.jpg": pillow(scene(25, 30, 3, 4), "RGB", "JPEG", quality=85, progressive=True),
        "progressive-gray.jpg": pillow(scene(25, 30, 1, 5)[..., 0], "L", "JPEG", quality=92, progressive=True),
        "restarts.jpg": pillow(scene(50, 40, 3, 6), "RGB", "JPEG", quality=80, restart_marker_blocks=2),
        "color.png": imagecodecs.png_encode(color),
        "lossy.webp": imagecodecs.webp_encode(color, level=80, lossless=False),
        "lossless.webp": imagecodecs.webp_encode(color, lossless=True),
        "alpha.webp": imagecodecs.webp_encode(four, lossless=True),
        "lossy-alpha.webp": imagecodecs.webp_encode(four, level=70, lossless=False),
        "gray.j2k": jpeg2k(scene(13, 19, 1, 3)[..., 0], codecformat="j2k", reversible=True),
        "color.jp2": jpeg2k(color, reversible=True),
        "alpha.jp2": jpeg2k(four, reversible=True),
        "deep.j2k": jpeg2k(deep, codecformat="j2k", reversible=True),
        "twelve.jp2": jpeg2k(deep >> 4, reversible=True, bitspersample=12),
        "signed.jp2": jpeg2k(deep.astype("i2"), reversible=True),
        "bytes.j2k": jpeg2k(color.astype("i1"), codecformat="j2k", reversible=True),
        "lossy.jp2": jpeg2k(color, level=40, reversible=False),
        "lossy-deep.j2k": jpeg2k(deep, level=60, codecformat="j2k", reversible=False),
        "color.jxl": jpegxl(color),
        "gray.jxl": jpegxl(scene(13, 19, 1, 3)[..., 0], effort=1),
        "alpha.jxl": jpegxl(four, usecontainer=True),
        "deep.jxl": jpegxl(deep),
        "twelve.jxl": jpegxl(deep >> 4, bitspersample=12),
        "half.jxl": jpegxl((color / 255).astype("f2")),
        "float.jxl": jpegxl((color / 255).astype("f4"), effort=3),
        "planes.jxl": jpegxl(np.moveaxis(four, -1, 0), planar=True),
        "groups.jxl": jpegxl(wide, effort=3),
        "letters.jxl": jpegxl(letters(48, 64), effort=8),
        "lossy.jxl": jpegxl(scene(48, 64, 3, 0), level=90),
        "lossy-best.jxl": jpegxl(color, level=100),
        "lossy-alpha.jxl": jpegxl(four, level=90),
        "lossy-groups.jxl": jpegxl(wide, level=80),
        "lossy-letters.jxl": jpegxl(letters(48, 64), level=90, effort=8),
        "lossy-float.jxl": jpegxl((color / 255).astype("f4"), level=90),
        "tiles.j2k": pillow(scene(50, 40, 3, 6), "RGB", "JPEG2000", no_jp2=True, tile_size=(16, 24), num_resolutions=3, mct=1),
        "blocks.jp2": pillow(
            scene(70, 90, 1, 7)[..., 0], "L", "JPEG2000", codeblock_size=(8, 16), precinct_size=(32, 32), progression="PCRL",
            quality_mode="dB", quality_layers=[30, 40, 0], plt=True,
        ),
    }


def main() -> None:
    expected = {}
    for name, encoded in all_images().items():
        (FOLDER / name).write_bytes(encoded)
        decode = {
            "jpg": imagecodecs.jpeg8_decode, "png": imagecodecs.png_decode, "webp": imagecodecs.webp_decode,
            "j2k": imagecodecs.jpeg2k_decode, "jp2": imagecodecs.jpeg2k_decode, "jxl": imagecodecs.jpegxl_decode,
        }[name.rsplit(".")[-1]]
        values = decode(encoded)
        expected[name] = {"shape": values.shape, "dtype": values.dtype.name, "crc": zlib.crc32(values.tobytes())}
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()

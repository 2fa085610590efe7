"""A network learns one band of a GeoTIFF from the others. The tiles are read where they lie, and nothing is converted.

The script finds the tiles of the full resolution and writes references to them beside the image. It takes cloud-optimised and
other tiled GeoTIFFs, of local files; for a bucket let virtual-tiff or tifffile write references.
"""

import argparse
import base64
import json
import mmap
import struct
from pathlib import Path
from typing import Any

import dali_zarr
import torch
from dali_zarr.torch import Loader

TYPES = {1: "B", 2: "B", 3: "H", 4: "I", 7: "B", 16: "Q"}
# What TIFF's tag Compression says. JPEG (7) has fields of its own.
CODECS: dict[int, Any] = {
    1: None, 5: {"id": "imagecodecs_lzw"}, 8: {"id": "zlib", "level": 1}, 32946: {"id": "zlib", "level": 1},
    34712: {"id": "imagecodecs_jpeg2k"}, 50000: {"id": "zstd", "level": 1}, 50001: {"id": "imagecodecs_webp"},
}
# Of the tag PhotometricInterpretation.
COLOURS = {0: "GRAYSCALE", 1: "GRAYSCALE", 2: "RGB", 6: "YCBCR"}


def tags(file: Any) -> dict[int, tuple[int, ...]]:
    """The tags of the first image in a file, which is the one of full resolution."""
    order = "<" if file[:2] == b"II" else ">"

    def read(form: str, place: int) -> tuple[int, ...]:
        return struct.unpack_from(order + form, file, place)

    # BigTIFF has numbers of 8 bytes.
    number, head, entry, inline = ("Q", 8, 20, 8) if read("H", 2) == (43,) else ("I", 2, 12, 4)
    (start,) = read(number, 8 if number == "Q" else 4)
    (entries,) = read("Q" if number == "Q" else "H", start)
    found: dict[int, tuple[int, ...]] = {0: (order == "<",)}
    for place in range(start + head, start + head + entries * entry, entry):
        tag, kind = read("HH", place)
        if kind in TYPES:
            (count,) = read(number, place + 4)
            form, place = f"{count}{TYPES[kind]}", place + entry - inline
            found[tag] = read(form, place if struct.calcsize(order + form) <= inline else read(number, place)[0])
    return found


def references(image: Path) -> dict[str, Any]:
    """References to the tiles of an image as chunks of the array ``image``: (y, x), (y, x, band), or (band, y, x)."""
    with image.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as file:
        found = tags(file)
    bands, (height, width), tile = found.get(277, (1,))[0], (found[257][0], found[256][0]), (found[323][0], found[322][0])
    kind, size = "?uif"[found.get(339, (1,))[0]], found[258][0] // 8
    dtype = f"{'|' if size == 1 else '<' if found[0][0] else '>'}{kind}{size}"
    is_planar, is_interleaved = bands > 1 and found.get(284, (1,))[0] == 2, bands > 1 and found.get(284, (1,))[0] != 2
    front, back = ([bands] if is_planar else []), ([bands] if is_interleaved else [])
    chunks = [1] * len(front) + [*tile] + back
    compression, predictor, filters = found.get(259, (1,))[0], found.get(317, (1,))[0], None
    if compression == 7:
        stored = COLOURS[found[262][0]]
        wanted = "RGB" if stored == "YCBCR" else stored
        codec = {"id": "imagecodecs_jpeg", "colorspace_jpeg": stored, "colorspace_data": wanted}
        codec |= {"tables": base64.b64encode(bytes(found[347])).decode()} if 347 in found else {}
    else:
        codec = CODECS[compression]
    if predictor > 1:
        name = {2: "imagecodecs_delta", 3: "imagecodecs_floatpred"}[predictor]
        filters = [{"id": name, "axis": -2 if back else -1, "shape": chunks, "dtype": dtype}]
    told = {
        "zarr_format": 2, "shape": [*front, height, width, *back], "chunks": chunks, "dtype": dtype, "order": "C", "fill_value": 0,
        "filters": filters, "compressor": codec,
    }
    dims = {"_ARRAY_DIMENSIONS": ["band"] * len(front) + ["y", "x"] + ["band"] * len(back)}
    documents = {".zgroup": {"zarr_format": 2}, "image/.zarray": told, "image/.zattrs": dims}
    refs: dict[str, Any] = {key: json.dumps(document) for key, document in documents.items()}
    down, across = -(-height // tile[0]), -(-width // tile[1])
    for number, (offset, length) in enumerate(zip(found[324], found[325], strict=True)):
        band, y, x = number // (down * across), number // across % down, number % across
        key = ".".join(map(str, [band] * len(front) + [y, x] + [0] * len(back)))
        if length:  # a tile of nothing has no bytes
            refs[f"image/{key}"] = [str(image.resolve()), offset, length]
    return {"version": 1, "refs": refs}


def main(image: Path, epochs: int = 3) -> None:
    path = image.with_suffix(".json")
    path.write_text(json.dumps(references(image)))
    source: Any = {"storage_options": {"virtual_chunks": image.resolve().parent.as_uri() + "/"}}
    # The mean and the standard deviation of each band, over all pixels.
    numbers = str(image.with_suffix(".statistics.json"))
    dali_zarr.statistics(path, **source, arrays=["image"], channels="band", output=numbers)
    loader = Loader(
        path, **source, arrays=["image"], window={"y": 64, "x": 64}, random_crop=["y", "x"], samples_per_volume=256,
        mean=numbers, stddev=numbers, transpose={"image": ["band", "y", "x"]}, batch_size=16, random_shuffle=True,
    )
    torch.manual_seed(0)
    model: Any = None
    optimizer: Any = None
    for epoch in range(epochs):
        losses: list[float] = []
        for batch in loader:
            bands = batch["image"]  # (16, bands, 64, 64), float32
            if model is None:
                model = torch.nn.Conv2d(bands.shape[1] - 1, 1, 3, padding=1).to(bands.device)
                optimizer = torch.optim.Adam(model.parameters(), 0.01)
            loss = torch.nn.functional.mse_loss(model(bands[:, :-1]), bands[:, -1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}: {len(losses)} batches, loss {sum(losses) / len(losses):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", nargs="?", type=Path, default=Path("example-data/scene.tif"), help="default: %(default)s")
    main(parser.parse_args().image)

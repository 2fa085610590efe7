"""Tiles of JPEG 2000, as Sentinel-2's products have them, as shuffled batches on the device, beside what else gives them.

    python tests/bench/tiles.py [--small] [--device cuda] [--store DIR] [--threads 15] [--edge 1024]

A made-up product: bands of uint16 that look like reflectances, lossless, in tiles of 1024 x 1024. The same tiles are chunks of a
Zarr array and the tiles of JP2 files. A batch has 16 tiles in shuffled order, as they are stored. The peers:

- ``dali_zarr``: the reader; ``auto`` (a GPU decodes through nvJPEG2000) and ``cpu``.
- ``rasterio``: windows of the JP2 files, by GDAL and OpenJPEG, each of ``--threads`` threads with files of its own.
- ``nvImageCodec``: its decoder in Python with as many threads, over the chunks' files, which it reads itself.
- ``zarr-python``: chunks decoded by imagecodecs (OpenJPEG), in as many threads.

Tiles/s are medians of ``--rounds`` passes, in turns, each of a new loader, and without its first batches. The first batches of each
are compared with the values that were written.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr
from imagecodecs.numcodecs import Jpeg2k, register_codecs

BATCH, FIRST = 16, 6
# Each batch, with the numbers of its tiles if the peer tells them.
Batches = Iterator[tuple[torch.Tensor, list[int]]]


def band(number: int, edge: int) -> np.ndarray:
    """Reflectances of fields, rivers and clouds, with a sensor's noise."""
    random = np.random.default_rng(number)
    y, x = np.mgrid[0:edge, 0:edge].astype("f4")
    fields = 300 * np.floor(3 * np.sin(x / 61 + number) * np.cos(y / 47)) + 200 * np.sin((x + 2 * y) / 300)
    clouds = 4000 * np.clip(np.sin(x / 700 + number) + np.cos(y / 900) - 1.2, 0, 1)
    return (1500 + fields + clouds + random.normal(0, 25, (edge, edge))).clip(0, 10_000).astype("u2")


class Product:
    """Tiles (tile, row, column) as a Zarr array with one chunk each, and as a JP2 file for each band."""

    def __init__(self, folder: Path, bands: int, side: int, edge: int) -> None:
        self.folder, self.side, self.edge, self.count = folder, side, edge, bands * side * side
        # Each tile stands sixteen times in its band.
        images = [np.tile(band(number, side // 4 * edge), (4, 4)) for number in range(bands)]
        self.values = np.concatenate([one.reshape(side, edge, side, edge).swapaxes(1, 2).reshape(-1, edge, edge) for one in images])
        array = zarr.create_array(
            folder / "tiles.zarr", name="band", shape=self.values.shape, chunks=(1, edge, edge), dtype="uint16", zarr_format=2,
            compressors=Jpeg2k(level=0, reversible=True, codecformat="j2k"),
        )
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda k: array.__setitem__(k, self.values[k]), range(self.count)))
        try:
            import rasterio
        except ImportError:
            return
        how = {"driver": "JP2OpenJPEG", "dtype": "uint16", "count": 1, "width": side * edge, "height": side * edge}
        for number, one in enumerate(images):
            tiled = {"blockxsize": edge, "blockysize": edge, "REVERSIBLE": "YES", "QUALITY": "100", "NUM_THREADS": "ALL_CPUS"}
            with rasterio.open(folder / f"{number}.jp2", "w", **how, **tiled) as file:
                file.write(one, 1)

    def orders(self) -> list[list[int]]:
        order = np.random.default_rng(1).permutation(self.count)
        return [order[i : i + BATCH].tolist() for i in range(0, self.count - BATCH + 1, BATCH)]

    def in_threads(self, read: Callable[[int], np.ndarray], device: str, threads: int) -> Batches:
        """Batches of ``read``, two ahead."""
        orders = self.orders()
        with ThreadPoolExecutor(threads) as pool:
            coming = [[pool.submit(read, k) for k in order] for order in orders[:2]]
            for i, order in enumerate(orders):
                found = np.stack([one.result() for one in coming.pop(0)])
                coming += [[pool.submit(read, k) for k in order] for order in orders[i + 2 : i + 3]]
                yield torch.from_numpy(found).to(device), order


def reader(decode_device: str) -> Callable[[Product, str, int], Batches]:
    def batches(product: Product, device: str, threads: int) -> Batches:
        from dali_zarr.torch import Loader

        loader = Loader(
            product.folder / "tiles.zarr", arrays=["band"], batch_size=BATCH, random_shuffle=True, return_index=True,
            device="gpu" if device == "cuda" else "cpu", decode_device=decode_device, num_threads=threads,
        )
        for batch in loader:
            yield batch["band"], np.asarray(batch["index"].cpu()).reshape(len(batch["band"]), -1)[:, -1].tolist()

    return batches


def with_rasterio(product: Product, device: str, threads: int) -> Batches:
    import rasterio
    from rasterio.windows import Window

    own = threading.local()

    def read(number: int) -> np.ndarray:
        files = own.__dict__.setdefault("files", {})
        name, place = divmod(number, product.side**2)
        file = files.get(name) or files.setdefault(name, rasterio.open(product.folder / f"{name}.jp2"))
        row, column = divmod(place, product.side)
        return file.read(1, window=Window(column * product.edge, row * product.edge, product.edge, product.edge))

    return product.in_threads(read, device, threads)


def with_imagecodecs(product: Product, device: str, threads: int) -> Batches:
    array: Any = zarr.open_array(product.folder / "tiles.zarr/band")
    return product.in_threads(lambda number: array[number], device, threads)


def with_nvimagecodec(product: Product, device: str, threads: int) -> Batches:
    if device != "cuda":
        raise ImportError("it needs a GPU here")
    from nvidia import nvimgcodec

    backends = [nvimgcodec.Backend(nvimgcodec.BackendKind.GPU_ONLY)]
    decoder = nvimgcodec.Decoder(backends=backends, max_num_cpu_threads=threads)
    params = nvimgcodec.DecodeParams(color_spec=nvimgcodec.ColorSpec.UNCHANGED, allow_any_depth=True)
    orders = product.orders()
    # Four batches in a call: each of its threads decodes one image at a time.
    for some in (orders[i : i + 4] for i in range(0, len(orders), 4)):
        images = iter(decoder.decode([str(product.folder / f"tiles.zarr/band/{k}.0.0") for k in sum(some, [])], params=params))
        for order in some:
            yield torch.stack([torch.as_tensor(next(images), device="cuda")[..., 0] for _ in order]), order


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--small", action="store_true", help="few tiles, to see that it runs")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--store", help="folder for the product")
    parser.add_argument("--threads", type=int, default=15)
    parser.add_argument("--edge", type=int, default=1024, help="pixels of a tile's edge")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    register_codecs(verbose=False)
    peers: dict[str, Callable[[Product, str, int], Batches]] = {
        "dali_zarr": reader("auto"), "dali_zarr, cpu": reader("cpu"), "rasterio": with_rasterio, "nvImageCodec": with_nvimagecodec,
        "zarr-python": with_imagecodecs,
    }
    with tempfile.TemporaryDirectory(dir=given.store) as name:
        product = Product(Path(name), *((1, 16) if given.small else (4, 16)), given.edge)
        rates: dict[str, list[float]] = {peer: [] for peer in peers}
        for _ in range(given.rounds):
            for peer, make in peers.items():
                start, tiles = 0.0, 0
                try:
                    for number, (batch, order) in enumerate(make(product, given.device, given.threads)):
                        if number < FIRST:
                            found = batch.cpu().numpy().reshape(len(order), given.edge, given.edge)
                            assert np.array_equal(found, product.values[order]), peer
                        start = time.perf_counter() if number == FIRST - 1 else start
                        tiles += len(batch) if number >= FIRST else 0
                except ImportError as error:
                    print(f"{peer} is left out: {error}", flush=True)
                    continue
                if given.device == "cuda":
                    torch.cuda.synchronize()
                rates[peer].append(tiles / (time.perf_counter() - start))
        encoded = sum(file.stat().st_size for file in (Path(name) / "tiles.zarr/band").iterdir()) / product.count
        medians = {peer: round(statistics.median(one)) for peer, one in rates.items() if one}
        size = [round(encoded), product.values[0].nbytes]
        print(json.dumps({"edge": given.edge, "bytes of a tile": size, "tiles/s": medians}), flush=True)


if __name__ == "__main__":
    main()

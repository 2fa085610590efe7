"""What ome-zarr-py writes: pyramids of OME-NGFF 0.4 (v2, nested keys) and 0.5 (v3, shards), with labels."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from support.foreign import Foreign, compare, writer, zarr_python
from support.pipelines import batches, build, same

writer("ome_zarr")

from ome_zarr.format import FormatV04, FormatV05  # noqa: E402
from ome_zarr.io import parse_url  # noqa: E402
from ome_zarr.reader import Reader  # noqa: E402
from ome_zarr.writer import write_image, write_labels  # noqa: E402

AXES = ["t", "c", "y", "x"]


@pytest.mark.parametrize("fmt", [FormatV04(), FormatV05()], ids=["0.4", "0.5"])
@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_pyramid(tmp_path, device, fmt, shards):
    """Every level of an image and of its labels."""
    if shards and fmt.zarr_format == 2:
        # Only v3 has shards; here the chunks are as large as those.
        options = {"chunks": (1, 1, 64, 64)}
    else:
        options = {"chunks": (1, 1, 32, 32)} | ({"shards": (1, 1, 64, 64)} if shards else {})
    path = tmp_path / "image.ome.zarr"
    rng = np.random.default_rng(0)
    image = rng.integers(0, 4000, (2, 3, 70, 90)).astype("uint16")
    cells = (image // 500).astype("uint8")
    root = zarr.open_group(str(path), mode="w", zarr_format=fmt.zarr_format)
    write_image(image, root, axes="tcyx", fmt=fmt, scale_factors=[2, 4], storage_options=options)
    write_labels(cells, root, "Zellen", axes="tcyx", fmt=fmt, scale_factors=[2], storage_options=options)
    for node in Reader(parse_url(str(path), mode="r"))():
        if not node.data:
            continue
        folder = node.zarr.path if hasattr(node.zarr, "path") else str(node.zarr)
        where = str(folder).rstrip("/").removeprefix("file://").removeprefix(str(path)).strip("/")
        for level, values in enumerate(node.data):
            datasets = zarr.open_group(str(path), path=where, mode="r").attrs
            datasets = datasets.get("ome", datasets)["multiscales"][0]["datasets"]
            name = f"{where}/{datasets[level]['path']}".strip("/")
            references = {"ome-zarr-py": np.asarray(values), "zarr-python": zarr_python(path, name)}
            if level == 0:
                references["what was written"] = cells if "labels" in name else image
            compare(device, Foreign(path, name, references, AXES), level, tries=2)
    # Image and labels side by side, in the same windows; in 0.4 only the axes name dimensions.
    first = ["s0", "labels/Zellen/s0"] if (path / "s0").exists() else ["0", "labels/Zellen/0"]
    pipe = build(device, 1, path=path, arrays=first, dims=["y", "x"], window=[32, 32], step=[16, 29], return_index=True)
    found = batches(pipe)
    for _ in range(pipe.reader_meta("reader")["epoch_size"]):
        (one,), (label,), ((y, x),) = next(found)
        same(one, image[:, :, y : y + 32, x : x + 32], "image")
        same(label, cells[:, :, y : y + 32, x : x + 32], "labels")
    # A level of the labels has pixels of another size.
    second = [first[0], first[1][:-1] + "1"]
    with pytest.raises(ValueError, match="coordinateTransformations"):
        build(device, 1, path=path, arrays=second, dims=["t"])

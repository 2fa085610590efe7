"""Writes tables of results into pages, and draws their pictures: python docs/assets/results.py

The numbers come from the JSON files below this folder, and from nowhere else. A table stands after ``<!-- results: NAME -->``.
A test compares pages and pictures with what this script writes. It needs the standard library only.
"""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGES = ("README.md", "docs/index.md", "docs/project/measurements.md", "docs/project/training.md", "docs/guides/chunks.md")
PLACE = re.compile(r"(<!-- results: (\w+) -->\n\n)(?:\|.*\n)*")
# Readable on the paper of the diagrams.
OURS, OTHERS, THIRD, GRID = "#00695c", "#5b6773", "#9c4200", "#d5dae0"
NONE = "not measured"
# Of another run than the rest.
AGAIN = "*"
Bar = tuple[str, float, str]


def rows(experiment: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The results of an experiment of the study, by store and way."""
    found = json.loads((HERE / "study" / f"{experiment}.json").read_text())
    return {(row["store"], row["way"]): row for row in found["rows"]}


def measured() -> dict[str, Any]:
    return json.loads((HERE / "measured.json").read_text())


def table(*lines: Sequence[str]) -> str:
    head, *body = lines
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, *body)).replace("\n", f"\n{'|---' * len(head)}|\n", 1)


def training() -> str:
    found = rows("bars")
    stores = ("ten-hours", "one-hour", "blosc-lz4")
    names = {"DataLoader": "PyTorch's DataLoader over xarray", "external_source": "DALI's `external_source` over zarr-python"}
    head = ("loader", "chunks of ten hours, zstd", "chunks of one hour, zstd", "chunks of one hour, Blosc lz4")
    lines: list[Sequence[str]] = [head]
    for way in ("DataLoader", "external_source"):
        lines.append((names[way], *(f"{found[store, way]['real']:.1f}" if (store, way) in found else NONE for store in stores)))
    ours: list[str] = []
    for store in stores:
        speed, other = found[store, "dali_zarr"]["real"], found.get((store, "DataLoader"))
        ours.append(f"**{speed:.1f}**" + (f", {speed / other['real']:.1f} times DataLoader" if other else ""))
    lines.append(("dali-zarr", *ours))
    return table(*lines)


def loading() -> str:
    once, pairs = rows("reading"), rows("chunking")
    names = {"external_source": "DALI's `external_source`", "kvikio": "KvikIO", "dali_zarr": "dali-zarr"}
    head = ("reader", "each hour once: uncompressed", "zstd", "pairs: uncompressed", "zstd", "zstd, in shards", "zstd, ten hours")
    cells = [(once, store) for store in ("uncompressed", "one-hour")]
    cells += [(pairs, store) for store in ("uncompressed", "one-hour", "sharded", "ten-hours")]
    lines = [
        [names.get(way, way)]
        + [f"{found[store, way]['gb_per_second']:.1f}" if (store, way) in found else NONE for found, store in cells]
        for way in ("external_source", "zarr-python", "kvikio", "dali_zarr")
    ]
    return table(head, *lines)


def shares() -> str:
    stores = ("uncompressed", "blosc-lz4", "one-hour", "ten-hours")
    lines: list[Sequence[str]] = [("GPU, how steps are launched", "uncompressed", "Blosc lz4", "zstd", "zstd, ten hours a chunk")]
    for name, experiment, way in (
        ("H200, kernel by kernel", "bars", "dali_zarr"), ("H100, each step one CUDA graph", "bars-cuda-graph", "dali_zarr"),
        ("H100 of a slow host, kernel by kernel", "gpus", "1"), ("two GPUs of that host", "gpus", "2"),
    ):
        found = rows(experiment)
        lines.append((name, *(f"{found[store, way]['share']:.2f}" if (store, way) in found else NONE for store in stores)))
    return table(*lines)


def beside_copies() -> str:
    lines: list[Sequence[str]] = [("steps", "store", "`decode_device`", "copies / synthetic", "real / synthetic", "real / copies")]
    for row in json.loads((HERE / "training.json").read_text())["rows"]:
        shares = (f"{row[name]:.3f}" for name in ("copies", "real", "of_copies"))
        steps = "one CUDA graph" if row["graphs"] else "kernel by kernel"
        lines.append((steps, row["store"], f"`{row['decode_device']}`", *shares))
    return table(*lines)


def beside(row: dict[str, Any]) -> tuple[str, float, float]:
    """The fastest other reader: its name and its speed, and this reader's in the same run. Of two runs that with the smaller
    ratio."""
    again = dict(row.get("another_run", {}))
    runs = [(row["dali_zarr"], row["others"]), (again.pop("dali_zarr", None), again)]
    found = [(name, speed, ours) for ours, others in runs for name, speed in others.items() if isinstance(speed, float)]
    return min(found, key=lambda one: one[2] / one[1])


def codecs() -> str:
    lines = [("store", "codec", "dali_zarr", "in its default memory", "fastest other", "ratio")]
    for row in measured()["rows"]:
        name, other, ours = beside(row)
        speeds = (f"{row['dali_zarr']:.1f}", f"{row['default_memory']:.1f}", f"{other:.1f} {name}")
        lines.append((row["store"], row["codec"], *speeds, f"{ours / other:.1f}" + AGAIN * (ours != row["dali_zarr"])))
    return table(*lines)


def others() -> str:
    names = list(measured()["rows"][0]["others"])
    lines: list[Sequence[str]] = [("store", *names)]
    for row in measured()["rows"]:
        again = {name: f"{speed:.1f}{AGAIN}" for name, speed in row.get("another_run", {}).items()}
        cells = ((name, row["others"][name]) for name in names)
        lines.append((
            row["store"],
            *(f"{found:.1f}" if isinstance(found, float) else found or again.get(name, NONE) for name, found in cells),
        ))
    return table(*lines)


def best_codecs() -> str:
    found = sorted(measured()["rows"], key=lambda row: -row["dali_zarr"])
    return table(("codec", "GB/s"), *((row["codec"], f"{row['dali_zarr']:.1f}") for row in found))


TABLES = {
    "training": training, "loading": loading, "shares": shares, "beside_copies": beside_copies,
    "codecs": codecs, "best_codecs": best_codecs, "others": others,
}


def filled(text: str) -> str:
    """A page with the tables that it names."""
    return PLACE.sub(lambda place: place[1] + TABLES[place[2]](), text)


def bars(
    title: str, lines: Sequence[str], found: Sequence[Bar], tick: float, limit: tuple[float, str] | None = None,
    within: bool = False,
) -> str:
    """Bars of (name, value, colour) from 0 on, each below its name, or with it ``within``. They can be read on a phone, at three
    quarters of their size."""
    diagrams = runpy.run_path(str(HERE / "diagrams.py"))
    width, left, top = 480, 12, 44 + 18 * len(lines)
    row, above, high = (24, 0, 19) if within else (42, 18, 17)
    d = diagrams["Drawing"](top + row * len(found) + (56 if limit else 36), title, width)
    largest = max([value for _, value, _ in found] + [limit[0] if limit else 0])
    scale = (width - left - 20) / largest
    d.text(left, 24, title, 16, bold=True)
    for i, line in enumerate(lines):
        d.text(left, 46 + 18 * i, line, 13)
    end = top + row * len(found)
    for number in range(int(largest / tick + 1e-9) + 1):
        x = left + number * tick * scale
        d.line(x, top - 4, x, end, GRID)
        d.text(x, end + 18, f"{number * tick:g}", 13, anchor="middle" if number else "start")
    for i, (name, value, colour) in enumerate(found):
        y, stop = top + row * i, left + value * scale
        d.box(left, y + above, value * scale, high, colour, colour)
        d.text(left + 2 + 4 * within, y + 13, name, 13, diagrams["PAPER" if within else "INK"])
        text = f"{value:.3f}" if within else f"{value:.1f}"
        if value > largest / 2 or within:
            d.text(stop - 5, y + above + 14, text, 14, diagrams["PAPER"], "end", bold=True)
        else:
            d.text(stop + 5, y + above + 14, text, 14, bold=True)
    if limit:
        x = left + limit[0] * scale
        d.line(x, top - 4, x, end, diagrams["ORANGE"], "5 3")
        d.text(width - left, end + 42, limit[1], 13, diagrams["ORANGE"], "end")
    return d.svg()


def draw_training() -> str:
    found = rows("bars")
    chunks = {"ten-hours": "chunks of ten hours, zstd", "one-hour": "chunks of one hour, zstd", "blosc-lz4": "one hour, Blosc lz4"}
    shown = [
        (f"{'dali-zarr' if way == 'dali_zarr' else way}: {chunks[store]}", row["real"], OURS if way == "dali_zarr" else OTHERS)
        for (store, way), row in found.items() if store in chunks
    ]
    most = min(row["synthetic"] for row in found.values())
    about = ("samples per second: higher is better", "NVIDIA H200, 16 cores, files in the page cache")
    return bars("Training a U-Net", about, shown, 20, (most, f"{most:.0f}: data that are in GPU memory already"))


def draw_codecs() -> str:
    shown: list[Bar] = []
    for row in measured()["rows"]:
        name, other, ours = beside(row)
        shown += [(f"{row['codec']}: dali-zarr", ours, OURS), (f"{row['codec']}: {name}", other, OTHERS)]
    about = ("decoded GB/s to tensors on the GPU: higher is better", "NVIDIA H200, 16 cores, chunks of 4 MB, page cache warm")
    return bars("Reading without a model", about, shown, 20)


def draw_shares() -> str:
    """The table of the page. A range is drawn as its middle."""
    page = (ROOT / "docs" / "project" / "training.md").read_text()
    found = re.findall(r"^\| `(\w+)` \| ([\w ]+) \| ([^|]*)\|[^|]*\| ([^|]*)\| ([^|]*)\|$", page, re.MULTILINE)
    shown: list[Bar] = []
    for model, store, *cells in found:
        for name, cell, colour in zip(("auto", "gpu", "cpu"), cells, (OURS, OTHERS, THIRD), strict=True):
            if numbers := [float(number) for number in re.findall(r"\d\.\d+", cell)]:
                shown.append((f"{model}, {store}: {name}", sum(numbers) / len(numbers), colour))
    about = ("real / synthetic, by decode_device: higher is better", "NVIDIA H100, 16 cores, each step one CUDA graph")
    return bars("Training beside the reader", about, shown, 0.2, (1.0, "1: loading costs nothing"), within=True)


PICTURES = {"training-speed.svg": draw_training, "reading-speed.svg": draw_codecs, "training-share.svg": draw_shares}

if __name__ == "__main__":
    for name in PAGES:
        (ROOT / name).write_text(filled((ROOT / name).read_text()))
    for name, draw in PICTURES.items():
        (HERE / name).write_text(draw())

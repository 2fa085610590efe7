"""Draws what the experiments wrote as JSON.

    python examples/study/draw.py --out bench-data/study/results
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
from common import arguments  # noqa: E402

COLOURS = {
    "dali_zarr": "#1b7837", "external_source": "#5e81b5", "DataLoader": "#b2182b", "zarr-python": "#8c8c8c",
    "zarr-python GPU": "#c2a5cf", "kvikio": "#e08214", "numcodecs": "#8c8c8c", "nvCOMP": "#e08214",
    "dali_zarr, CPU": "#7fbf7b", "dali_zarr, GPU": "#1b7837",
}


def where(found: dict[str, Any]) -> str:
    """The machine, for a title."""
    machine = found["machine"]
    gpus = f"{len(machine['gpus'])} x {machine['gpus'][0]}, " if machine["gpus"] else "no GPU, "
    return f"{gpus}{machine['cores']} cores" + (", small store" if found["small"] else "")


def _finished(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=140)
    plt.close(figure)


def _grouped(axes: Any, rows: list[dict[str, Any]], group: str, bar: str, value: str) -> None:
    """Bars side by side, with their values above them."""
    groups, bars = list(dict.fromkeys(row[group] for row in rows)), list(dict.fromkeys(row[bar] for row in rows))
    width = 0.8 / len(bars)
    for i, name in enumerate(bars):
        found = {row[group]: row.get(value) for row in rows if row[bar] == name}
        heights = [found.get(one) or 0 for one in groups]
        at = np.arange(len(groups)) + (i - (len(bars) - 1) / 2) * width
        drawn = axes.bar(at, heights, width * 0.92, label=name, color=COLOURS.get(name))
        labels = [f"{height:.3g}" if height else "" for height in heights]
        axes.bar_label(drawn, labels, fontsize=7, padding=1)
    axes.set_xticks(range(len(groups)), groups)
    axes.margins(y=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)


def chunking(found: dict[str, Any], out: Path) -> None:
    figure, axes = plt.subplots(figsize=(9, 4))
    _grouped(axes, found["rows"], "store", "reader", "gb_per_second")
    axes.set(ylabel="delivered, GB/s", title=f"Consecutive pairs of hours, by chunks ({where(found)})")
    _finished(figure, out / "chunking.png")


def reading(found: dict[str, Any], out: Path) -> None:
    rows = [row for row in found["rows"] if "seconds" in row]
    figure, axes = plt.subplots(figsize=(9, 0.42 * len(rows) + 1.6))
    names = [f"{row['way']} ({row['store']})" for row in rows]
    colours = [COLOURS.get(row["way"].split(",")[0]) for row in rows]
    drawn = axes.barh(range(len(rows)), [row["seconds"] for row in rows], color=colours)
    axes.bar_label(drawn, [f"{row['seconds']:.2f} s, {row['gb_per_second']:.1f} GB/s" for row in rows], fontsize=8, padding=3)
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.22)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(xlabel="seconds", title=f"Reading {rows[0]['bytes'] / 1e9:.2f} GB once ({where(found)})")
    _finished(figure, out / "reading.png")


def decompression(found: dict[str, Any], out: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4))
    for way in dict.fromkeys(row["way"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["way"] == way and "gb_per_second" in row]
        places, rates = [row["chunk"] / 1024 for row in rows], [row["gb_per_second"] for row in rows]
        axes.plot(places, rates, "o-", label=way, color=COLOURS.get(way))
    axes.set_xscale("log", base=2)
    ticks = sorted({row["chunk"] // 1024 for row in found["rows"]})
    axes.set_xticks(ticks, [f"{tick} KiB" if tick < 1024 else f"{tick // 1024} MiB" for tick in ticks])
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    axes.set(xlabel="decoded size of a chunk", ylabel="decoded, GB/s", title=f"zstd ({where(found)})")
    _finished(figure, out / "decompression.png")


def bars(found: dict[str, Any], out: Path) -> None:
    rows = [row for row in found["rows"] if "real" in row]
    parts = [
        {"case": f"{row['loader']}\n{row['store']}", "bar": name, "value": row[key]} for row in rows
        for name, key in (("real data", "real"), ("loading only", "loading"), ("synthetic data", "synthetic"))
    ]
    figure, axes = plt.subplots(figsize=(9, 4))
    _grouped(axes, parts, "case", "bar", "value")
    axes.set_yscale("log")
    axes.tick_params(axis="x", labelsize=8)
    axes.set(ylabel="samples/s (logarithmic)", title=f"Training a U-Net over a residual encoder ({where(found)})")
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    _finished(figure, out / "bars.png")
    chain(found, rows, out)
    for row in rows:
        if row["timeline"]:
            timeline(row, out)


def chain(found: dict[str, Any], rows: list[dict[str, Any]], out: Path) -> None:
    """From the study's start to this reader, step by step, as shares of what the model can do."""
    steps = [("the study's start", found["study"]["real"] / found["study"]["synthetic"])]
    steps += [(f"{row['loader']},\n{row['store']}", row["share"]) for row in rows]
    figure, axes = plt.subplots(figsize=(9, 3.6))
    colours = ["#404040", *[COLOURS.get(row["loader"]) for row in rows]]
    drawn = axes.bar(range(len(steps)), [100 * share for _, share in steps], color=colours)
    axes.bar_label(drawn, [f"{100 * share:.0f} %" for _, share in steps], fontsize=8, padding=1)
    axes.set_xticks(range(len(steps)), [name for name, _ in steps], fontsize=8)
    axes.axhline(100, color="black", linewidth=0.8, linestyle=":")
    axes.margins(y=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(ylabel="real / synthetic, %", title=f"What loading leaves of training ({where(found)})")
    _finished(figure, out / "chain.png")


def timeline(row: dict[str, Any], out: Path) -> None:
    figure, axes = plt.subplots(figsize=(9, 2))
    for i, part in enumerate(row["timeline"]):
        colour = {"training": "#5e81b5", "decoding": "#1b7837", "copies": "#e08214"}[part["kind"]]
        spans = [(start / 1000, max((end - start) / 1000, 0.2)) for start, end in part["spans"]]
        axes.broken_barh(spans, (i - 0.4, 0.8), facecolors=colour)
    axes.set_yticks(range(len(row["timeline"])), [part["kind"] for part in row["timeline"]])
    axes.invert_yaxis()
    title = f"The GPU under {row['loader']}, {row['store']}: {100 * row['share']:.0f} % of synthetic data's pace"
    axes.set(xlabel="milliseconds", title=title)
    _finished(figure, out / f"timeline-{row['loader']}-{row['store']}.png")


def gpus(found: dict[str, Any], out: Path) -> None:
    rows = [row for row in found["rows"] if "real" in row]
    unit = "GPU" if found["machine"]["gpus"] else "process"
    plural = {"GPU": "GPUs", "process": "processes"}[unit]
    parts = [
        {"case": f"{row['store']}\n{row['processes']} {unit if row['processes'] == 1 else plural}", "bar": name, "value": row[key]}
        for row in rows for name, key in (("real data", "real"), ("synthetic data", "synthetic"))
    ]
    figure, axes = plt.subplots(figsize=(8, 4))
    _grouped(axes, parts, "case", "bar", "value")
    axes.tick_params(axis="x", labelsize=8)
    axes.set(ylabel="samples/s, all together", title=f"dali_zarr with torchrun ({where(found)})")
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    _finished(figure, out / "gpus.png")


if __name__ == "__main__":
    args = arguments(__doc__)
    for draw in (chunking, reading, decompression, bars, gpus):
        file = args.out / f"{draw.__name__}.json"
        if file.exists():
            draw(json.loads(file.read_text()), args.out)
            print(f"drew {draw.__name__}")

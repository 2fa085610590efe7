"""Draws what the experiments wrote as JSON.

    python examples/study/draw.py --out bench-data/study/results
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
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
    "dali_zarr, CPU": "#7fbf7b", "dali_zarr, GPU": "#1b7837", "dali_zarr, use_o_direct": "#7fbf7b", "dali_zarr, gds": "#a6dba0",
    "real data": "#1b7837", "loading only": "#a6dba0", "synthetic data": "#8c8c8c",
}
KINDS = {"training": "#5e81b5", "decoding": "#1b7837", "copies": "#e08214"}
Found = Mapping[str, Any]


def where(found: Found) -> str:
    """The machine, for a title."""
    machine = found["machine"]
    gpus = f"{len(machine['gpus'])} x {machine['gpus'][0]}, " if machine["gpus"] else "no GPU, "
    return f"{gpus}{machine['cores']} cores" + ("" if found["size_name"] == "whole" else f", {found['size_name']} store")


def _finished(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=140)
    plt.close(figure)


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def grouped(rows: Sequence[tuple[str, str, float]], path: Path, y: str, title: str, log: bool = False) -> None:
    """Bars side by side with their values above them, from (group, bar, value)."""
    if not rows:
        return
    groups, names = list(dict.fromkeys(row[0] for row in rows)), list(dict.fromkeys(row[1] for row in rows))
    figure, axes = plt.subplots(figsize=(10, 4.4), layout="constrained")
    width = 0.84 / len(names)
    for i, name in enumerate(names):
        found = {group: value for group, bar, value in rows if bar == name}
        there = [(n, found[group]) for n, group in enumerate(groups) if group in found]
        at = np.array([n for n, _ in there]) + (i - (len(names) - 1) / 2) * width
        drawn = axes.bar(at, [value for _, value in there], width * 0.92, label=name, color=COLOURS.get(name))
        axes.bar_label(drawn, [f"{value:.3g}" if value < 1000 else f"{value:,.0f}" for _, value in there], fontsize=7, padding=1)
    axes.set_xticks(range(len(groups)), groups, fontsize=8)
    if log:
        axes.set_yscale("log")
    axes.margins(y=0.12)
    _plain(axes)
    axes.set(ylabel=y, title=title)
    figure.legend(frameon=False, fontsize=8, ncols=min(len(names), 6), loc="outside lower center")
    _finished(figure, path)


def done(found: Found) -> list[Any]:
    """The rows with results."""
    return [row for row in found["rows"] if "error" not in row]


def chunking(found: Found, out: Path) -> None:
    rows = [(row["store"], row["way"], row["gb_per_second"]) for row in done(found)]
    title = f"Consecutive pairs of hours, by chunks ({where(found)})"
    grouped(rows, out / "chunking.png", "delivered, GB/s (logarithmic)", title, log=True)


def reading(found: Found, out: Path) -> None:
    rows = done(found)
    figure, axes = plt.subplots(figsize=(10, 0.36 * len(rows) + 1.4), layout="constrained")
    names = [f"{row['way']} ({row['store']}, {row['bytes'] / 1e9:.1f} GB)" for row in rows]
    drawn = axes.barh(range(len(rows)), [row["seconds"] for row in rows], color=[COLOURS.get(row["way"]) for row in rows])
    axes.bar_label(drawn, [f"{row['seconds']:.2f} s, {row['gb_per_second']:.1f} GB/s" for row in rows], fontsize=8, padding=3)
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    _plain(axes)
    axes.set(xlabel="seconds", title=f"Reading once ({where(found)})")
    _finished(figure, out / "reading.png")


def decompression(found: Found, out: Path) -> None:
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for way in dict.fromkeys(row["way"] for row in done(found)):
        rows = [row for row in done(found) if row["way"] == way]
        points = [(row["chunk"] / 1024, row["gb_per_second"]) for row in rows]
        axes.plot(*zip(*points, strict=True), "o-", label=way, color=COLOURS.get(way))
    axes.set_xscale("log", base=2)
    ticks = sorted({row["chunk"] // 1024 for row in done(found)})
    axes.set_xticks(ticks, [f"{tick} KiB" if tick < 1024 else f"{tick // 1024} MiB" for tick in ticks])
    axes.set_ylim(bottom=0)
    _plain(axes)
    axes.legend(frameon=False)
    axes.set(xlabel="decoded size of a chunk", ylabel="decoded, GB/s", title=f"zstd ({where(found)})")
    _finished(figure, out / "decompression.png")


def _bars(rows: Iterable[Found], group: Any) -> list[tuple[str, str, float]]:
    keys = (("real data", "real"), ("loading only", "loading"), ("synthetic data", "synthetic"))
    return [(group(row), name, row[key]) for row in rows for name, key in keys]


def bars(found: Found, out: Path) -> None:
    rows = _bars(done(found), lambda row: f"{row['way']}\n{row['store']}")
    title = f"Training a U-Net over a residual encoder ({where(found)})"
    grouped(rows, out / "bars.png", "samples/s (logarithmic)", title, log=True)
    chain(found, out)


def chain(found: Found, out: Path) -> None:
    """From the study's start to this reader, step by step, as shares of what the model can do."""
    rows = done(found)
    steps = [("the study's start:\nDataLoader,\nten-hours", found["study"]["real"] / found["study"]["synthetic"], "#404040")]
    steps += [(f"{row['way']},\n{row['store']}", row["share"], COLOURS[row["way"]]) for row in rows]
    figure, axes = plt.subplots(figsize=(10, 4), layout="constrained")
    drawn = axes.bar(range(len(steps)), [100 * share for _, share, _ in steps], color=[colour for *_, colour in steps])
    axes.bar_label(drawn, [f"{100 * share:.3g} %" for _, share, _ in steps], fontsize=9, padding=2)
    axes.set_xticks(range(len(steps)), [name for name, *_ in steps], fontsize=8)
    axes.axhline(100, color="black", linewidth=0.8, linestyle=":")
    axes.margins(y=0.12)
    _plain(axes)
    axes.set(ylabel="real / synthetic, %", title=f"Training on real data, as a share of synthetic data ({where(found)})")
    _finished(figure, out / "chain.png")


def timelines(found: Found, out: Path) -> None:
    rows = found["rows"]
    if not rows:
        return
    figsize = (10, 1.35 * len(rows) + 0.9)
    figure, all_axes = plt.subplots(len(rows), 1, figsize=figsize, sharex=True, layout="constrained", squeeze=False)
    for row, axes in zip(rows, all_axes[:, 0], strict=True):
        for i, (kind, spans) in enumerate(row["timeline"].items()):
            drawn = [(start / 1000, max((end - start) / 1000, 0.2)) for start, end in spans]
            axes.broken_barh(drawn, (i - 0.4, 0.8), facecolors=KINDS[kind])
        axes.set_yticks(range(len(KINDS)), list(KINDS), fontsize=8)
        axes.set_ylim(len(KINDS) - 0.5, -0.5)
        axes.set_xlim(0, 2000)
        axes.set_title(f"{row['way']}, {row['store']}", fontsize=9, loc="left")
        _plain(axes)
    all_axes[-1, 0].set_xlabel("milliseconds")
    figure.suptitle(f"What the GPU does over two seconds of training ({where(found)})", fontsize=11)
    _finished(figure, out / "timelines.png")


def gpus(found: Found, out: Path) -> None:
    unit, units = ("GPU", "GPUs") if found["machine"]["gpus"] else ("process", "processes")
    rows = _bars(done(found), lambda row: f"{row['store']}\n{row['way']} {unit if row['way'] == '1' else units}")
    rows = [row for row in rows if row[1] != "loading only"]
    grouped(rows, out / "gpus.png", "samples/s, all together", f"dali_zarr with torchrun ({where(found)})")


def skill(found: Found, out: Path) -> None:
    rows = done(found)
    if len(rows) < 2:
        return
    last, lead = rows[-1], found["lead"]
    figure, axes = plt.subplots(2, 2, figsize=(11, 6.2), layout="constrained")
    fields = np.load(out / "skill.npz")["example"]
    shown = {"extent": (0, 360, -90, 90), "cmap": "turbo", "vmin": fields[1].min(), "vmax": fields[1].max(), "aspect": "auto"}
    titles = ("now", f"{lead} hours later", f"forecast for {lead} hours later")
    for panel, values, title in zip(axes.flat, fields, titles, strict=False):
        image = panel.imshow(values, **shown)
        panel.set(title=title, xticks=range(0, 361, 90), yticks=range(-90, 91, 45), xlabel="longitude, degrees")
        panel.set_ylabel("latitude, degrees")
        figure.colorbar(image, ax=panel, label="K")
    curve = axes[1, 1]
    curve.plot(*zip(*last["losses"], strict=True), color="#5e81b5", linewidth=1, label="training")
    curve.axvline(rows[0]["seconds"], color="black", linewidth=0.8, linestyle=":", label="checkpoint, new process")
    curve.axhline(last["persistence"], color="#8c8c8c", linestyle="--", label=f"persistence, {last['persistence']:.3f}")
    curve.axhline(last["rmse"], color="#e08214", label=f"U-Net, test, {last['rmse']:.3f}")
    curve.set(xlabel="seconds of training", ylabel="RMSE, standard deviations", yscale="log", title="error")
    curve.legend(fontsize=8, frameon=False)
    _plain(curve)
    figure.suptitle(f"Made-up weather, {lead} hours ahead: {100 * last['better']:.0f} % better than persistence ({where(found)})")
    _finished(figure, out / "skill.png")


if __name__ == "__main__":
    args = arguments(__doc__)
    for draw in (chunking, reading, decompression, bars, timelines, gpus, skill):
        file = args.out / f"{draw.__name__}.json"
        if file.exists():
            draw(json.loads(file.read_text()), args.out)
            print(f"drew {draw.__name__}")

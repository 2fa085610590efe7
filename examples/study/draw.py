"""Draws what the experiments wrote as JSON.

    python examples/study/draw.py --out bench-data/study/results
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments
from plots import COLOURS, Found, finished, grouped, plain, plt, where

KINDS = {"training": "#5e81b5", "decoding": "#1b7837", "copies": "#e08214"}


def done(found: Found) -> list[Any]:
    """The rows with results."""
    return [row for row in found["rows"] if "error" not in row]


def chunking(found: Found, out: Path) -> None:
    rows = [(row["store"], row["way"], row["gb_per_second"]) for row in done(found)]
    title = f"Consecutive pairs of hours, by chunks ({where(found)})"
    grouped(rows, out / "chunking.png", "delivered, GB/s", title)


def reading(found: Found, out: Path) -> None:
    rows = done(found)
    figure, axes = plt.subplots(figsize=(7.6, 0.36 * len(rows) + 1.4), layout="constrained")
    names = [f"{row['way']} ({row['store']}, {_size(row['bytes'])})" for row in rows]
    drawn = axes.barh(range(len(rows)), [row["gb_per_second"] for row in rows], color=[COLOURS.get(row["way"]) for row in rows])
    axes.bar_label(drawn, [f"{row['gb_per_second']:.1f}, {row['seconds']:.2f} s" for row in rows], fontsize=9, padding=3)
    axes.set_yticks(range(len(rows)), names, fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.3)
    plain(axes)
    axes.set(xlabel="GB/s: higher is better", title=f"Reading once ({where(found)})")
    finished(figure, out / "reading.png")


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"


def decompression(found: Found, out: Path) -> None:
    figure, axes = plt.subplots(figsize=(7.6, 4.2), layout="constrained")
    for way in dict.fromkeys(row["way"] for row in done(found)):
        rows = [row for row in done(found) if row["way"] == way]
        points = [(row["chunk"] / 1024, row["gb_per_second"]) for row in rows]
        axes.plot(*zip(*points, strict=True), "o-", label=way, color=COLOURS.get(way))
    axes.set_xscale("log", base=2)
    ticks = sorted({row["chunk"] // 1024 for row in done(found)})
    axes.set_xticks(ticks, [f"{tick} KiB" if tick < 1024 else f"{tick // 1024} MiB" for tick in ticks])
    axes.set_ylim(bottom=0)
    plain(axes)
    axes.legend(frameon=False)
    axes.set(xlabel="decoded size of a chunk", ylabel="decoded, GB/s: higher is better", title=f"zstd ({where(found)})")
    finished(figure, out / "decompression.png")


def bars(found: Found, out: Path) -> None:
    """From the study's start to this reader, step by step, as shares of what the model can do."""
    rows = done(found)
    steps = [("the study's start: DataLoader, ten-hours", found["study"]["real"] / found["study"]["synthetic"], "#404040")]
    steps += [(f"{row['way']}, {row['store']}", row["share"], COLOURS[row["way"]]) for row in rows]
    figure, axes = plt.subplots(figsize=(7.6, 0.4 * len(steps) + 1.2), layout="constrained")
    drawn = axes.barh(range(len(steps)), [100 * share for _, share, _ in steps], color=[colour for *_, colour in steps])
    # Over the line at 100 %.
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    axes.bar_label(drawn, [f"{100 * share:.3g} %" for _, share, _ in steps], fontsize=9, padding=4, bbox=box)
    axes.set_yticks(range(len(steps)), [name for name, *_ in steps], fontsize=9)
    axes.invert_yaxis()
    axes.axvline(100, color="black", linewidth=0.8, linestyle=":")
    axes.margins(x=0.15)
    plain(axes)
    title = f"Training a U-Net ({where(found)})"
    axes.set(xlabel="real / synthetic, %: higher is better, 100 % is all that the model can do", title=title)
    finished(figure, out / "bars.png")


def timelines(found: Found, out: Path) -> None:
    rows = done(found)
    if not rows:
        return
    # Of one store.
    rows = [row for row in rows if row["store"] == rows[0]["store"]]
    kinds = list(KINDS)
    figsize = (8.4, 1.5 * len(rows) + 0.9)
    figure, all_axes = plt.subplots(len(rows), 1, figsize=figsize, sharex=True, layout="constrained", squeeze=False)
    for row, axes in zip(rows, all_axes[:, 0], strict=True):
        for i, kind in enumerate(kinds):
            values = np.array(row["timeline"][kind])
            at = np.arange(len(values) + 1) * found["point"] * 1000
            # Full height is 100 %.
            axes.stairs(len(kinds) - 1 - i + 0.9 * values / 100, at, baseline=len(kinds) - 1 - i, fill=True, color=KINDS[kind])
            axes.axhline(len(kinds) - 1 - i, color="#bbbbbb", linewidth=0.5)
        axes.set_yticks([len(kinds) - 0.55 - i for i in range(len(kinds))], [_told(kind, row) for kind in kinds], fontsize=8)
        axes.tick_params(axis="y", length=0)
        axes.set(ylim=(0, len(kinds)), xlim=(0, at[-1]))
        axes.set_title(f"{row['way']}, {row['store']}", fontsize=9, loc="left")
        plain(axes)
    all_axes[-1, 0].set_xlabel("milliseconds")
    figure.suptitle(f"What the GPU does over two seconds of training ({where(found)})", fontsize=11)
    finished(figure, out / "timelines.png")


def _told(kind: str, row: Found) -> str:
    return f"{kind}, {100 * row['busy'][kind]:.0f} % of the time"


def gpus(found: Found, out: Path) -> None:
    unit, units = ("GPU", "GPUs") if found["machine"]["gpus"] else ("process", "processes")
    rows = [
        (f"{row['store']}\n{row['way']} {unit if row['way'] == '1' else units}", name, row[key])
        for row in done(found) for name, key in (("real data", "real"), ("synthetic data", "synthetic"))
    ]
    grouped(rows, out / "gpus.png", "samples/s, all together", f"dali_zarr with torchrun ({where(found)})")


def skill(found: Found, out: Path) -> None:
    rows = done(found)
    if len(rows) < 2:
        return
    last, lead = rows[-1], found["lead"]
    figure, axes = plt.subplots(2, 2, figsize=(11, 6.4), layout="constrained")
    fields = np.load(out / "skill.npz")["example"]
    # Few colours and points: pages carry the picture.
    fields = fields[:, ::2, ::2]
    shown = {"extent": (0, 360, -90, 90), "cmap": plt.get_cmap("turbo", 24), "interpolation": "nearest", "aspect": "auto"}
    shown |= {"vmin": fields[1].min(), "vmax": fields[1].max()}
    titles = ("now", f"{lead} hours later", f"forecast for {lead} hours later")
    for panel, values, title in zip(axes.flat, fields, titles, strict=False):
        image = panel.imshow(values, **shown)
        panel.set(title=title, xticks=range(0, 361, 90), yticks=range(-90, 91, 45), xlabel="longitude, degrees")
        panel.set_ylabel("latitude, degrees")
        figure.colorbar(image, ax=panel, label="K")
    curve = axes[1, 1]
    curve.plot(*zip(*last["losses"], strict=True), color="#5e81b5", linewidth=1, label="training")
    curve.axvline(rows[0]["seconds"], color="black", linewidth=0.8, linestyle=":", label="checkpoint, new process")
    for error, colour, name in ((last["persistence"], "#8c8c8c", "persistence"), (last["rmse"], "#e08214", "U-Net, test")):
        curve.axhline(error, color=colour, linestyle="--", label=f"{name}, {error:.3f}")
    curve.set(xlabel="seconds of training", ylabel="RMSE, standard deviations", title="error")
    curve.set_ylim(0, 1.45 * last["persistence"])
    curve.legend(fontsize=8, ncols=2, loc="upper center", framealpha=1, edgecolor="white")
    plain(curve)
    figure.suptitle(f"Made-up weather, {lead} hours ahead: {100 * last['better']:.1f} % better than persistence ({where(found)})")
    finished(figure, out / "skill.png")


def main() -> None:
    args = arguments(__doc__)
    for draw in (chunking, reading, decompression, bars, timelines, gpus, skill):
        file = args.out / f"{draw.__name__}.json"
        found = json.loads(file.read_text()) if file.exists() else None
        if found is not None and done(found):
            draw(found, args.out)
            print(f"drew {draw.__name__}")
        elif found is not None:
            print(f"{draw.__name__}: nothing was measured: {found['rows'][0]['error'] if found['rows'] else 'no rows'}")


if __name__ == "__main__":
    main()

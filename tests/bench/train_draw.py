"""Draws the benchmark of training: three bars for each row, and throughput over the memory limit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_COLORS = {"real data": "tab:blue", "loading only": "tab:orange", "synthetic data": "tab:gray"}


def memory_text(limit: int | None) -> str:
    """A memory limit in words."""
    if limit is None:
        return "default"
    return f"{limit / 2**30:.3g} GiB" if limit >= 1 << 27 else f"{limit / 2**20:.3g} MiB"


def draw(results: Path) -> list[Path]:
    """Writes bars.png, and curve.png where limits were varied, beside ``results``. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found = json.loads(results.read_text())
    rows = [row for row in found["rows"] if "failed" not in row]
    drawn = []
    trained = [row for row in rows if "ratio" in row]
    if trained:
        figure = _bars(plt, trained, found["machine"])
        drawn.append(results.with_name("bars.png"))
        figure.savefig(drawn[-1], dpi=120, bbox_inches="tight")
        plt.close(figure)
    if len({row["memory_limit"] for row in rows if row["memory_limit"] is not None}) > 1:
        figure = _curve(plt, rows, found["machine"])
        drawn.append(results.with_name("curve.png"))
        figure.savefig(drawn[-1], dpi=120, bbox_inches="tight")
        plt.close(figure)
    return drawn


def _bars(plt: Any, rows: list[dict[str, Any]], machine: str) -> Any:
    demands = list(dict.fromkeys(row["demand"] for row in rows))
    widest = max(sum(row["demand"] == demand for row in rows) for demand in demands)
    figure, axes = plt.subplots(len(demands), 1, figsize=(max(7, 1.3 * widest), 3.6 * len(demands)), squeeze=False)
    for axis, demand in zip(axes[:, 0], demands):
        mine = [row for row in rows if row["demand"] == demand]
        keys = {"real data": "delivered_gbps", "loading only": "loading_gbps", "synthetic data": "asked_gbps"}
        for i, (label, key) in enumerate(keys.items()):
            at = [x + (i - 1) * 0.27 for x in range(len(mine))]
            axis.bar(at, [row.get(key, 0.0) for row in mine], 0.25, label=label, color=_COLORS[label])
        for x, row in enumerate(mine):
            axis.text(x - 0.27, row["delivered_gbps"], f"{row['ratio']:.3f}", ha="center", va="bottom", fontsize=8)
        asked = max(row["asked_gbps"] for row in mine)
        # Loading alone may be many times as fast, but the interesting part is near what training asks for. So bars are
        # cut; a cut bar shows its number.
        axis.set_ylim(0, 2.2 * asked)
        for x, row in enumerate(mine):
            if (alone := row.get(keys["loading only"], 0.0)) > 2.2 * asked:
                axis.text(x, 2.15 * asked, f"{alone:.0f}", ha="center", va="top", fontsize=8, color="white")
        axis.set_xticks(range(len(mine)), [_label(row) for row in mine], fontsize=8)
        axis.set_ylabel("GB/s delivered")
        axis.set_title(f"{demand}: the model asks for {mine[0]['asked_gbps']:.1f} GB/s", fontsize=10)
    figure.suptitle(f"Training; the number is real / synthetic\n{machine}", fontsize=10)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=3, fontsize=8, loc="lower center")
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    return figure


def _label(row: dict[str, Any]) -> str:
    text = f"{row['store']}\n{row['decode_device']}"
    return text if row["memory_limit"] is None else f"{text}\n{memory_text(row['memory_limit'])}"


def _curve(plt: Any, rows: list[dict[str, Any]], machine: str) -> Any:
    figure, axis = plt.subplots(figsize=(8, 5))
    default = max((row["memory_limit"] for row in rows if row["memory_limit"] is not None), default=1) * 2
    groups = dict.fromkeys((row["store"], row["decode_device"], row["demand"]) for row in rows)
    for group in groups:
        mine = sorted(
            (row for row in rows if (row["store"], row["decode_device"], row["demand"]) == group),
            key=lambda row: row["memory_limit"] or default,
        )
        limits = [(row["memory_limit"] or default) / 2**30 for row in mine]
        if len(mine) < 2:
            continue
        (line,) = axis.plot(limits, [row.get("loading_gbps") for row in mine], "o-", label=f"{', '.join(group)}: loading only")
        if all("ratio" in row for row in mine):
            axis.plot(limits, [row["delivered_gbps"] for row in mine], "s--", color=line.get_color(), label="the same, training")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlabel("memory limit, GiB (the default at the right, at twice the largest)")
    axis.set_ylabel("GB/s delivered")
    axis.grid(alpha=0.3, which="both")
    axis.legend(fontsize=7)
    axis.set_title(machine, fontsize=9)
    return figure

"""The picture at the end of the demo: what came in, what should come out, what did, and how the training went."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import numpy.typing as npt

matplotlib.use("Agg")  # writes files; needs no display
import matplotlib.pyplot as plt
from synthetic_weather import VARIABLES, Statistics

Fields = npt.NDArray[np.float32]
Example = tuple[Fields, Fields, Fields]


def draw(
    file: Path, example: Example, statistics: Statistics, losses: list[float], epoch_steps: int, rmse: float,
    persistence: float, variable: str = "Z500",
) -> None:
    """Writes a PNG. ``example`` is (now, later, prediction), each (channel, latitude, longitude) and normalised."""
    channel = list(VARIABLES).index(variable)
    long_name, units = VARIABLES[variable]
    mean, stddev = statistics.mean[channel], statistics.stddev[channel]
    now, later, predicted = (fields[channel] * stddev + mean for fields in example)

    figure, axes = plt.subplots(2, 3, figsize=(15, 6.6), layout="constrained")
    figure.suptitle(f"{long_name} one hour ahead: a U-Net fed by fn.zarr_reader (synthetic weather)", fontsize=15)
    extent = (0, 360, -90, 90)
    low, high = np.percentile(now, [0.5, 99.5])
    for ax, values, title in zip(axes[0], (now, later, predicted), ("Input, hour t", "Target, hour t + 1", "Prediction for t + 1")):
        ax.imshow(values, extent=extent, cmap="turbo", vmin=low, vmax=high, aspect="auto")
        ax.set_title(title)
    figure.colorbar(axes[0, 0].images[0], ax=axes[0], label=units, shrink=0.9)

    largest = np.percentile(np.abs(later - now), 99.5)
    for ax, values, title in zip(axes[1], (later - now, predicted - now), ("Change in the target", "Change in the prediction")):
        ax.imshow(values, extent=extent, cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto")
        ax.set_title(title)
    figure.colorbar(axes[1, 0].images[0], ax=axes[1, 1], label=f"change in one hour, {units}", shrink=0.9)
    for ax in (*axes[0], *axes[1, :2]):
        ax.set_xticks(range(0, 361, 90), [f"{x}°" for x in range(0, 361, 90)])
        ax.set_yticks(range(-60, 61, 60), ["60° S", "0°", "60° N"])

    curve = axes[1, 2]
    curve.plot(np.arange(1, len(losses) + 1) / epoch_steps, losses, color="tab:blue", linewidth=1.2, label="training")
    curve.axhline(persistence, color="tab:gray", linestyle="--", label=f"persistence {persistence:.3f}")
    curve.axhline(rmse, color="tab:orange", label=f"U-Net, test {rmse:.3f}")
    curve.set(title="Error", xlabel="epoch", ylabel="RMSE, standard deviations", yscale="log")
    curve.grid(alpha=0.3, which="both")
    curve.legend()
    figure.savefig(file, dpi=110)
    plt.close(figure)

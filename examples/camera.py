"""A policy learns a robot's actions from its camera, whose frames are JPEG chunks.

In the made-up demonstrations an arm (red) moves to a block (green), which lies elsewhere in each episode. The policy gets two
frames and says the next eight actions: how far the arm moves in x and y. Where a GPU has a JPEG engine, that decodes the frames.

The store is written if it isn't there. That needs imagecodecs; reading needs no more than dali-zarr.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr
from dali_zarr.torch import Loader

SIZE, STEPS = 64, 24
TRAINING, VALIDATION = slice(0, 40), slice(40, None)


def write(path: Path, episodes: int = 48) -> None:
    """Frames (step, y, x, colour), one a chunk, the action at each, and where each episode ends."""
    from imagecodecs.numcodecs import Jpeg, register_codecs

    register_codecs()
    rng, (y, x) = np.random.default_rng(0), np.mgrid[0:SIZE, 0:SIZE]
    group = zarr.open_group(path, mode="w", zarr_format=2)
    shape = (episodes * STEPS, SIZE, SIZE, 3)
    frames = group.create_array("data/camera", shape=shape, chunks=(1, *shape[1:]), dtype="uint8", compressors=Jpeg(level=90))
    actions = np.zeros((episodes * STEPS, 2), "float32")
    for episode in range(episodes):
        arm, block = rng.uniform(8, SIZE - 8, (2, 2))
        for step in range(episode * STEPS, (episode + 1) * STEPS):
            frame = np.full((SIZE, SIZE, 3), 90.0) + rng.normal(0, 4, (SIZE, SIZE, 3))
            frame[(abs(x - block[0]) < 5) & (abs(y - block[1]) < 5)] = (40, 200, 60)
            frame[(x - arm[0]) ** 2 + (y - arm[1]) ** 2 < 25] = (220, 50, 40)
            frames[step] = frame.clip(0, 255).astype("uint8")
            # Up to three pixels towards the block.
            actions[step] = (block - arm) * min(1, 3 / max(float(np.hypot(*(block - arm))), 1e-6))
            arm += actions[step]
    for name, values in {"data/action": actions, "meta/episode_ends": np.arange(1, episodes + 1) * STEPS}.items():
        group.create_array(name, shape=values.shape, chunks=values.shape, dtype=values.dtype)[...] = values


def demonstrations(path: Path, episodes: slice, **how: Any) -> Loader:
    """Batches of two frames as floats, colours first, and of eight actions."""
    return Loader(
        path, arrays={"frames": "data/camera", "actions": "data/action"}, window={"frames": {"dim_0": 2}, "actions": {"dim_0": 8}},
        step={"dim_0": 1}, breaks="meta/episode_ends", segments=episodes, out_of_bounds_policy="edge", pad_after={"dim_0": 6},
        transpose={"frames": [0, 3, 1, 2]}, mean={"frames": 100.0}, stddev={"frames": 50.0}, batch_size=32, **how,
    )


def policy() -> Any:
    """Frames (sample, frame, colour, y, x) to actions (sample, step, axis)."""
    layers: list[Any] = [torch.nn.Flatten(1, 2)]
    for before, after in ((6, 16), (16, 32), (32, 32)):
        layers += [torch.nn.Conv2d(before, after, 5, stride=2, padding=2), torch.nn.ReLU()]
    return torch.nn.Sequential(
        *layers, torch.nn.Flatten(), torch.nn.Linear(32 * (SIZE // 8) ** 2, 128), torch.nn.ReLU(), torch.nn.Linear(128, 16),
        torch.nn.Unflatten(1, (8, 2)),
    )


def main(path: Path, epochs: int) -> None:
    if not path.exists():
        write(path)
    torch.manual_seed(0)
    training = demonstrations(path, TRAINING, random_shuffle=True, seed=1)
    validation = demonstrations(path, VALIDATION)
    model: Any = None
    optimizer: Any = None
    for epoch in range(epochs):
        losses: list[float] = []
        for batch in training:
            if model is None:
                model = policy().to(batch["frames"].device)
                optimizer = torch.optim.Adam(model.parameters(), 1e-3)
            loss = torch.nn.functional.mse_loss(model(batch["frames"]), batch["actions"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            errors = [torch.nn.functional.mse_loss(model(batch["frames"]), batch["actions"]).item() for batch in validation]
        told = f"loss {np.mean(losses):.2f}, of episodes that it hasn't seen {np.mean(errors):.2f}"
        print(f"epoch {epoch + 1}: {len(losses)} batches, {told} pixels squared")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", nargs="?", type=Path, default=Path("example-data/camera.zarr"), help="default: %(default)s")
    parser.add_argument("--epochs", type=int, default=6)
    main(**{"path" if name == "store" else name: value for name, value in vars(parser.parse_args()).items()})

"""Windows of images and actions within episodes, as diffusion policies take them."""

import argparse

from dali_zarr.torch import Loader

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("store", nargs="?", default="example-data/pusht.zarr", help="default: %(default)s")
args = parser.parse_args()

# Two images and 16 actions begin at each step. Windows may begin one step before an episode and end 7 steps after it.
loader = Loader(
    args.store,
    arrays={"image": "data/img", "action": "data/action"},
    window={"image": {"dim_0": 2}, "action": {"dim_0": 16}},
    step={"dim_0": 1},
    breaks="meta/episode_ends",
    out_of_bounds_policy="edge",
    pad_before={"dim_0": 1},
    pad_after={"dim_0": 7},
    segments=slice(0, 180),  # the first 180 episodes: the others are for validation
    return_mask=True,
    batch_size=64,
    random_shuffle=True,
)

for batch in loader:
    # (64, 2, height, width, 3), (64, 16, 2), and False where an action is a repeated one.
    images, actions, mask = batch["image"], batch["action"], batch["mask"]
    print(tuple(images.shape), tuple(actions.shape), f"{mask.float().mean():.2f} of the steps are real")
    break  # your training step goes here

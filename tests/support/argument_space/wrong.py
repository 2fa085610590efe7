"""Arguments that are wrong whatever the others are. The message must name the argument."""

from __future__ import annotations

from typing import Any

import numpy as np

from support.argument_space.oracle import Epoch

# What is given in addition to the arguments of a valid case, by the argument that is wrong.
ALWAYS: list[tuple[str, Any]] = [
    ("windw", [3]),
    ("shuffle", True),
    ("dims", ["nowhere"]),
    ("dims", [17]),
    ("window", {"nowhere": 2}),
    ("window", [1] * 9),
    ("window", -2),
    ("window", [1.5]),
    ("stride", 0),
    ("stride", [1] * 9),
    ("step", {"nowhere": 1}),
    ("step", -1),
    ("overlap", -1),
    ("overlap", 10_000),
    ("offsets", "a"),
    ("offsets", [1.5]),
    ("offsets", []),
    ("offsets", [1, 1]),
    ("offsets", {}),
    ("roi_start", 10_000),
    ("roi_end", -10_000),
    ("roi_end", 10_000),
    ("sel", {"nowhere": 0}),
    ("isel", {"nowhere": 0}),
    ("isel", [0]),
    ("pick", {"nowhere": [0]}),
    ("random_crop", ["nowhere"]),
    ("samples_per_volume", 0),
    ("samples_per_volume", 2.5),
    ("breaks", [0]),
    ("breaks", [10_000]),
    ("breaks", "nothing"),
    ("breaks", [1.5]),
    ("segments", [999]),
    ("segments", []),
    ("starts", [[0.5]]),
    ("starts", np.zeros((2, 9), np.int64)),
    ("starts", "nothing.npy"),
    ("weights", [1.0] * 9999),
    ("weights", "nothing.npy"),
    ("weights", -1.0),
    ("num_samples", 0),
    ("replacement", "no"),
    ("out_of_bounds_policy", "wrap"),
    ("pad_before", {"nowhere": 1}),
    ("pad_after", [1] * 9),
    ("fill_value", "much"),
    ("fill_value", {"nothing": 1.0}),
    ("mean", [1.0] * 71),
    ("mean", "nothing.json"),
    ("stddev", {"nothing": 1.0}),
    ("stddev", "nothing"),
    ("channels", {"nothing": 0}),
    ("dtype", "float7"),
    ("dtype", {"nothing": "int32"}),
    ("fillna", "much"),
    ("fillna", {"nothing": 0.0}),
    ("mask_and_scale", "yes"),
    ("mask_and_scale", {"nothing": True}),
    ("stack_arrays", "yes"),
    ("transpose", ["nowhere"]),
    ("transpose", {"nothing": "..."}),
    ("transpose", [1.5]),
    ("transpose", "... ..."),
    ("return_mask", 1),
    ("return_index", "no"),
    ("random_shuffle", 1),
    ("initial_fill", 0),
    ("initial_fill", "all"),
    ("shuffle_after_epoch", "no"),
    ("seed", "a"),
    ("seed", 1.5),
    ("num_shards", 0),
    ("shard_id", -1),
    ("stick_to_shard", 1),
    ("drop_last", "no"),
    ("pad_last_batch", 1),
    ("batch_size", 0),
    ("batch_size", "4"),
    ("collate", "sparse"),
    ("collate", "padded"),
    ("columns", 3),
    ("ragged", "nothing"),
    ("max_length", 4),
    ("concat", "stack"),
    ("cross_stores", "no"),
    ("io_threads", 0),
    ("decode_threads", -1),
    ("host_memory_limit", "10 bananas"),
    ("host_memory_limit", 1000),
    ("cache_size", -1),
    ("prefetch_queue_depth", 0),
    ("arrays", ["nothing"]),
    ("path", "/nothing/there.zarr"),
    ("tolerance", 0.5),
    ("method", "nearest"),
    ("device", "mps"),
    ("decode_device", "tpu"),
]

# Values that hardly any argument can have. Whatever comes of them is right, but exceptions of other types aren't.
ODD: list[Any] = [
    True,
    -1,
    0,
    1.5,
    float("nan"),
    1 << 70,
    "",
    "x",
    b"x",
    [],
    [[]],
    [None],
    [True],
    ["x", 1],
    {},
    {"x": 1},
    {"x": None},
    {None: 1},
    {"x": {}},
    np.array([]),
    np.array([[1, 2]]),
    np.array(["x"]),
    np.float32(2),
    np.int8(1),
    slice(None),
    slice("a", 3),
    object(),
    (1, 2),
    range(3),
    {1},
]
# Arguments that take them. Paths, devices and what writes files aren't among them.
NAMES = [
    "sel",
    "isel",
    "method",
    "tolerance",
    "pick",
    "dims",
    "roi_start",
    "roi_end",
    "breaks",
    "concat",
    "cross_stores",
    "mask_and_scale",
    "fillna",
    "arrays",
    "window",
    "step",
    "overlap",
    "random_crop",
    "segments",
    "samples_per_volume",
    "starts",
    "stride",
    "out_of_bounds_policy",
    "pad_before",
    "pad_after",
    "fill_value",
    "ragged",
    "ragged_ends",
    "max_length",
    "stack_arrays",
    "transpose",
    "return_mask",
    "mean",
    "stddev",
    "channels",
    "dtype",
    "random_shuffle",
    "weights",
    "num_samples",
    "replacement",
    "initial_fill",
    "shuffle_after_epoch",
    "seed",
    "stick_to_shard",
    "prefetch_queue_depth",
    "cache_size",
    "io_threads",
    "decode_threads",
    "batch_size",
    "offsets",
    "drop_last",
    "pad_last_batch",
    "return_index",
    "collate",
    "columns",
    "num_threads",
    "io_concurrency",
]


def _fits(name: str, given: dict[str, Any]) -> bool:
    """Whether the argument is wrong beside these: it may need others, or be right beside others."""
    match name:
        case "tolerance":
            return "method" not in given
        case "method":
            return "sel" not in given
        case "overlap":
            return "step" not in given and "starts" not in given
    return True


def mistake(rng: np.random.Generator, epoch: Epoch) -> tuple[str, dict[str, Any]]:
    """Returns a wrong argument and all arguments with it."""
    given = dict(epoch.given)
    while True:
        name, value = ALWAYS[int(rng.integers(len(ALWAYS)))]
        if _fits(name, given):
            break
    others: dict[str, Any] = {"num_shards": {"shard_id": 0}, "shard_id": {"num_shards": 2}}.get(name, {})
    if name == "channels":
        others = {"mean": 1.0}
    if name == "num_samples":
        others = {"weights": [1.0] * len(epoch.rows)}
    return name, given | others | {name: value}


def oddity(rng: np.random.Generator, epoch: Epoch) -> tuple[str, dict[str, Any]]:
    """Returns an argument with an odd value and all arguments with it."""
    name, value = NAMES[int(rng.integers(len(NAMES)))], ODD[int(rng.integers(len(ODD)))]
    return name, {**epoch.given, name: value}

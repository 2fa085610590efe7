"""diffusion_policy's ``SequenceSampler`` over a replay buffer in Zarr, and the statistics of its normaliser.

diffusion_policy and its relatives (UMI) aren't packages, so nothing here imports them: a replay buffer is known by what it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, Unpack, cast

import numpy as np
import numpy.typing as npt

from .._arguments.types import ResourceArguments
from .._statistics.compute import statistics
from ..torch import Dataset, Loader

Array: TypeAlias = npt.NDArray[Any]


class SequenceSampler:
    """In the place of ``diffusion_policy.common.sampler.SequenceSampler``: the same sequences by the same numbers.

    ::

        sampler = SequenceSampler("pusht.zarr", sequence_length=16, pad_before=1, pad_after=7, episode_mask=train_mask)
        sampler.sample_sequence(0)["action"]  # (16, 2)
        for batch in sampler.loader(batch_size=64, random_shuffle=True):
            batch["action"]  # (64, 16, 2)

    ``sample_sequence`` reads one sequence, also in worker processes of a DataLoader. ``loader`` reads batches ahead.
    """

    def __init__(
        self,
        replay_buffer: Any,
        sequence_length: int,
        pad_before: int = 0,
        pad_after: int = 0,
        keys: Sequence[str] | None = None,
        key_first_k: Mapping[str, int] | None = None,
        episode_mask: npt.ArrayLike | None = None,
        **resources: Unpack[ResourceArguments],
    ):
        """Looks at the store; sequences are read later.

        Args:
            replay_buffer: A ``ReplayBuffer`` made by ``create_from_path``, or its store: a path, or a group of zarr-python.
            sequence_length: Steps in each sequence.
            pad_before, pad_after: How many steps sequences may reach beyond an episode. The first or last step is repeated there.
            keys: Names of arrays in the group ``data``. Default: all.
            key_first_k: By key how many steps are read, from the first one. The key's arrays have this length, without the rest
                that diffusion_policy fills with NaN.
            episode_mask: Which episodes there are: bools. Default: all.
            resources: The reader's arguments of memory, threads and caches.

        Raises:
            ValueError: The replay buffer is in memory; a key or a length is wrong; no episode has a sequence.
        """
        if sequence_length < 1:
            raise ValueError(f"dali_zarr: diffusion_policy: sequence_length: expected 1 or more, but found {sequence_length}")
        store = _store(replay_buffer)
        self.keys, self.sequence_length = list(_keys(store) if keys is None else keys), sequence_length
        self.key_first_k = dict(key_first_k or {})
        for key, length in self.key_first_k.items():
            if key not in self.keys or not 1 <= length <= sequence_length:
                raise ValueError(
                    f"dali_zarr: diffusion_policy: key_first_k: expected one of {', '.join(self.keys)} with 1 to {sequence_length} "
                    f"steps, but found {key!r} with {length}"
                )
        if all(self.key_first_k.get(key, sequence_length) < sequence_length for key in self.keys):
            raise ValueError("dali_zarr: diffusion_policy: key_first_k: expected a key that is read whole, but found none")
        mask = None if episode_mask is None else np.asarray(episode_mask, bool)
        most = sequence_length - 1
        self._arguments: dict[str, Any] = {
            "path": store, "arrays": {key: f"data/{key}" for key in self.keys}, "breaks": "meta/episode_ends", "step": [1],
            "window": {key: [self.key_first_k.get(key, sequence_length)] for key in self.keys}, "out_of_bounds_policy": "edge",
            "pad_before": [min(max(pad_before, 0), most)], "pad_after": [min(max(pad_after, 0), most)],
            **({} if mask is None else {"segments": mask}), **resources,
        }
        self._dataset = None if mask is not None and not mask.any() else Dataset(**self._arguments, device="cpu")

    def __len__(self) -> int:
        """The number of sequences."""
        return 0 if self._dataset is None else len(self._dataset)

    def sample_sequence(self, idx: int) -> dict[str, Array]:
        """Returns a sequence: by key an array (steps, dimensions of a step).

        Raises:
            IndexError: There is no such sequence.
        """
        if self._dataset is None:
            raise IndexError("dali_zarr: diffusion_policy: expected the number of a sequence, but episode_mask has no episode")
        return {key: values.numpy() for key, values in self._dataset[int(idx)].items()}

    def loader(self, batch_size: int, **arguments: Any) -> Loader:
        """Returns a loader of the sequences: batches are mappings by key of tensors (sequences, steps, dimensions of a step).

        Args:
            batch_size: Sequences in each batch.
            arguments: As of :class:`dali_zarr.torch.Loader`, such as ``random_shuffle``, ``sampler``, ``device``, ``dtype``.
        """
        return Loader(**self._arguments | arguments, batch_size=batch_size)


def input_stats(replay_buffer: Any, key: str) -> dict[str, npt.NDArray[np.float32]]:
    """Returns ``min``, ``max``, ``mean`` and ``std`` of an array of the replay buffer for each element of its last dimension, as
    diffusion_policy's functions such as ``get_range_normalizer_from_stat`` take them. The array isn't held in memory."""
    name = f"data/{key}"
    found = cast("Any", statistics(_store(replay_buffer), arrays=[name], channels=-1))["arrays"][name]["by_channel"]
    names = {"min": "min", "max": "max", "mean": "mean", "std": "stddev"}
    return {own: np.asarray(found[its], np.float32) for own, its in names.items()}


def _store(replay_buffer: Any) -> Any:
    """Returns what the reader takes as path."""
    root: Any = replay_buffer.root if hasattr(replay_buffer, "episode_ends") else replay_buffer
    if isinstance(root, dict):
        raise ValueError(
            "dali_zarr: diffusion_policy: replay_buffer: expected a store, but found arrays in memory; make the ReplayBuffer by "
            "create_from_path instead of copy_from_path, or give the path"
        )
    return root


def _keys(store: Any) -> list[str]:
    """Returns the names of the arrays in the group ``data``."""
    import zarr

    group: Any = store if hasattr(store, "store") else zarr.open_group(str(store), mode="r")
    return sorted(group["data"].array_keys())

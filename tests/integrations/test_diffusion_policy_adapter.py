"""The adapter's sequences are those of diffusion_policy's sampler.

diffusion_policy isn't on PyPI. If DALI_ZARR_DIFFUSION_POLICY is its folder, sequences are compared with its own classes too.
"""

from __future__ import annotations

import os
import pickle
import sys

import numpy as np
import pytest
import zarr
from support.stores import Layout, write_array

torch = pytest.importorskip("torch", reason="the adapter needs it")

from dali_zarr.integrations.diffusion_policy import SequenceSampler, input_stats  # noqa: E402

LENGTHS = [5, 30, 3, 17, 16, 1, 40]
SMALL = {"host_memory_limit": "64MiB"}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A replay buffer: arrays of all episodes, one after the other, and the ends."""
    base = tmp_path_factory.mktemp("dp") / "pusht.zarr"
    rng, steps = np.random.default_rng(0), sum(LENGTHS)
    zarr.open_group(str(base), mode="w", zarr_format=2)
    write_array(base, "data/img", rng.integers(0, 255, (steps, 6, 6, 3)).astype("u1"), layout=Layout((10, 6, 6, 3)), zarr_format=2)
    write_array(base, "data/state", rng.normal(size=(steps, 5)).astype("f4"), layout=Layout((16, 5)), zarr_format=2)
    write_array(base, "data/action", rng.normal(size=(steps, 2)).astype("f4"), layout=Layout((16, 2)), zarr_format=2)
    write_array(base, "meta/episode_ends", np.cumsum(LENGTHS), zarr_format=2)
    return base


def sequences(path, length, before, after, mask=None):
    """The rule: where sequences begin, relative to each episode. Steps beyond an episode repeat its first or last one."""
    group = zarr.open_group(str(path), mode="r")
    before, after = (min(max(pad, 0), length - 1) for pad in (before, after))
    ends = np.cumsum(LENGTHS)
    for first, last, is_chosen in zip(ends - LENGTHS, ends, [True] * len(ends) if mask is None else mask, strict=True):
        for start in range(-before, last - first - length + after + 1) if is_chosen else []:
            steps = np.clip(np.arange(start, start + length), 0, last - first - 1) + first
            yield {key: group["data"][key][:][steps] for key in ("action", "img", "state")}


MASK = np.array([True, False, True, True, False, True, False])
CASES = {
    "without pads": (16, 0, 0, None), "as for PushT": (16, 1, 7, None), "masked": (16, 1, 7, MASK), "the rest": (16, 1, 7, ~MASK),
    "pads that are too long": (8, 20, 9, None), "negative pads": (8, -1, -3, None), "single steps": (1, 0, 0, None),
    "all pads": (8, 7, 7, MASK),
}


@pytest.mark.parametrize("case", CASES)
def test_sequences_are_those_of_the_rule(path, case):
    length, before, after, mask = CASES[case]
    expected = list(sequences(path, length, before, after, mask))
    sampler = SequenceSampler(path, length, before, after, episode_mask=mask, **SMALL)
    assert len(sampler) == len(expected) and sampler.keys == ["action", "img", "state"]
    for number in {0, len(expected) // 2, len(expected) - 1}:
        same(sampler.sample_sequence(number), expected[number])
    batches = list(sampler.loader(batch_size=16, device="cpu"))
    found = [{key: batch[key][i].numpy() for key in batch} for batch in batches for i in range(len(batch["action"]))]
    for own, other in zip(found, expected, strict=True):
        same(own, other)


def same(own, other):
    assert own.keys() == other.keys()
    for key in own:
        assert own[key].dtype == other[key].dtype
        np.testing.assert_array_equal(own[key], other[key])


def test_first_steps(path):
    """Only the first steps of some keys are read."""
    expected = list(sequences(path, 16, 1, 7))
    for first in ({"img": 2}, {"img": 2, "state": 3}):
        sampler = SequenceSampler(path, 16, 1, 7, key_first_k=first, **SMALL)
        assert len(sampler) == len(expected)
        for number in (0, 1, 20, len(expected) - 1):
            same(sampler.sample_sequence(number), {key: values[: first.get(key, 16)] for key, values in expected[number].items()})


@pytest.mark.parametrize("workers", [0, 2])
def test_in_a_data_loader(path, workers):
    """As diffusion_policy's data sets use the sampler."""

    class Sequences(torch.utils.data.Dataset):
        def __init__(self):
            self.sampler = SequenceSampler(path, 8, 1, 2, keys=["action"], **SMALL)

        def __len__(self):
            return len(self.sampler)

        def __getitem__(self, number):
            return torch.from_numpy(self.sampler.sample_sequence(number)["action"])

    loader = torch.utils.data.DataLoader(Sequences(), batch_size=7, num_workers=workers)
    expected = np.stack([one["action"] for one in sequences(path, 8, 1, 2)])
    np.testing.assert_array_equal(torch.cat(list(loader)).numpy(), expected)


def test_copies(path):
    """As a spawned worker process gets a sampler."""
    sampler = SequenceSampler(path, 8, 1, 2, **SMALL)
    same(pickle.loads(pickle.dumps(sampler)).sample_sequence(5), sampler.sample_sequence(5))


def test_statistics_of_the_normaliser(path):
    values = zarr.open_group(str(path), mode="r")["data"]["action"][:]
    found = input_stats(path, "action")
    np.testing.assert_array_equal(found["min"], values.min(0))
    np.testing.assert_array_equal(found["max"], values.max(0))
    np.testing.assert_allclose(found["mean"], values.mean(0), atol=1e-6)
    np.testing.assert_allclose(found["std"], values.std(0), rtol=1e-2)


def test_no_episodes(path):
    sampler = SequenceSampler(path, 4, episode_mask=[False] * len(LENGTHS))
    assert len(sampler) == 0
    with pytest.raises(IndexError, match="episode_mask has no episode"):
        sampler.sample_sequence(0)


def test_what_is_refused(path):
    class Memory:
        root = {"data": {}, "meta": {}}
        episode_ends = np.array([3])

    with pytest.raises(ValueError, match="replay_buffer: expected a store, but found arrays in memory; .* create_from_path"):
        SequenceSampler(Memory(), 4)
    with pytest.raises(ValueError, match="sequence_length: expected 1 or more, but found 0"):
        SequenceSampler(path, 0)
    for first in ({"img": 20}, {"image": 2}):
        with pytest.raises(ValueError, match="key_first_k: expected one of action, img, state with 1 to 16 steps, but found"):
            SequenceSampler(path, 16, key_first_k=first)
    with pytest.raises(ValueError, match="key_first_k: expected a key that is read whole"):
        SequenceSampler(path, 16, keys=["img"], key_first_k={"img": 2})


THEIRS = os.environ.get("DALI_ZARR_DIFFUSION_POLICY")


@pytest.mark.skipif(not THEIRS, reason="diffusion_policy isn't on PyPI: give its folder in DALI_ZARR_DIFFUSION_POLICY")
@pytest.mark.parametrize("case", CASES)
def test_sequences_are_those_of_diffusion_policy(path, case, monkeypatch):
    """Of its own SequenceSampler."""
    monkeypatch.setattr(sys, "path", [str(THEIRS), *sys.path])
    theirs = pytest.importorskip("diffusion_policy.common.sampler").SequenceSampler
    length, before, after, mask = CASES[case]

    class Buffer(dict):
        """What the sampler asks of a ReplayBuffer, which itself needs zarr-python 2."""

        episode_ends = np.cumsum(LENGTHS)

    group = zarr.open_group(str(path), mode="r")["data"]
    buffer = Buffer({key: group[key][:] for key in sorted(group.array_keys())})
    expected = theirs(buffer, length, before, after, episode_mask=mask)
    own = SequenceSampler(path, length, before, after, episode_mask=mask, **SMALL)
    assert len(own) == len(expected)
    for number in range(len(own)):
        same(own.sample_sequence(number), expected.sample_sequence(number))

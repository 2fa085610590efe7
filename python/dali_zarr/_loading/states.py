"""The state of a loader, as users save it: numbers and text, from which any rank goes on.

It has the reader's own state, which serves all ranks, and DALI's checkpoint of the whole pipeline, which serves only the
rank that wrote it: the random operators of a transform have other numbers on other ranks.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, cast

from . import checkpoint as checkpoints
from .reading import NAME, Plan, Reading

_VERSION = 1


def of(reading: Reading, next_epoch: int | None) -> dict[str, Any]:
    """Returns the state after the batch that was handed out last. ``next_epoch``: the epoch that was set for the next iteration."""
    reader, pipeline, parts = reading.state(), reading.checkpoint(), reading.plan.parts
    if parts is not None:
        reader = parts.state_of_whole(reader)
        pipeline = checkpoints.with_states(pipeline, {NAME: reader.encode()})
    return {
        "version": _VERSION, "reader": reader, "next_epoch": next_epoch,
        "rank": reading.plan.shard_id, "world_size": reading.plan.num_shards,
        "pipeline": base64.b64encode(pipeline).decode(),
    }


def check(state: Any) -> None:
    """Raises TypeError or ValueError for what isn't the state of a loader."""
    if not isinstance(state, Mapping):
        raise TypeError(f"dali_zarr: load_state_dict: expected the state of a loader, but found {type(state).__name__}")
    given = cast(Mapping[str, Any], state)
    if given.get("version") != _VERSION or not isinstance(given.get("reader"), str):
        raise ValueError(f"dali_zarr: load_state_dict: expected the state of a loader, but found the keys {sorted(given)}")


def of_operators(state: Mapping[str, Any], plan: Plan, template: bytes) -> dict[str, bytes]:
    """Returns the operators' states by name, from a loader's state. ``template``: a checkpoint of a pipeline with this plan. On
    another rank, or with another transform, only the reader's is there."""
    reader = state["reader"]
    if plan.parts is not None:
        reader = plan.parts.state_of_part(reader, checkpoints.states(template)[NAME].decode())
    states = {NAME: reader.encode()}
    if (state["rank"], state["world_size"]) == (plan.shard_id, plan.num_shards):
        whole = checkpoints.states(base64.b64decode(state["pipeline"]))
        if whole.keys() == checkpoints.states(template).keys():
            states = whole | states
    return states

"""Read groups: ranks of PyTorch that read the same samples, each a part of them, and gather the parts.

Ranks exchange a header before each batch. It says whether all have the batch, and the same one. So an error of one rank is an
error of all, and no rank waits for parts that don't come. After the header the parts are gathered, in one collective for all
outputs. On a GPU both run on a stream of their own, beside the work that is queued on the current one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NoReturn, Protocol, TypeAlias, cast

import torch
import torch.distributed

from .._batch import Batch
from .._loading.epochs import check_flags
from .._loading.outputs import Place
from .._loading.parts import Parts, Rank
from .._loading.ranks import rank_and_world
from .exchange import Exchange, tensors

# Numbers at the beginning of a header, then text of an error; bytes in all.
_STATUS, _EPOCH, _NUMBER, _SAMPLES, _BYTES, _CHECKSUM, _NUMBERS = range(7)
_HEADER = 1024
# What a rank has: a batch, no batch any more, or an error.
_BATCH, _END, _FAILED = 1, 2, 3
# An odd number without a pattern.
_FACTOR = 0x5851F42D4C957F2D


# Tells the parts of a batch, and the axis of the divided dimension in the tensors that have it.
Told: TypeAlias = Callable[[], tuple[Parts, Mapping[Place, int]]]


class _Place(Protocol):
    """Where a loader is."""

    @property
    def epoch(self) -> int: ...

    @property
    def number(self) -> int: ...


def asked(group: Any, read_dim: Any, gather: Any, transform: Any, is_of_dataset: bool) -> ReadGroup | None:
    """Returns the read group that a loader is asked for; None: there is none.

    Raises:
        TypeError, ValueError: The arguments don't fit together.
    """
    for name, value in {"read_dim": read_dim, "gather": gather}.items():
        if value is not None and group is None:
            raise ValueError(f"dali_zarr: {name}: expected read_group with it, the process group whose ranks divide the reads")
    if group is None:
        return None
    if read_dim is not None and not isinstance(read_dim, str):
        raise TypeError(f"dali_zarr: read_dim: expected the name of a dimension, but found {read_dim!r}")
    if gather is not None:
        check_flags(gather=gather)
    gathers = not is_of_dataset if gather is None else bool(gather)
    if gathers and transform is not None:
        raise ValueError(
            "dali_zarr: gather: expected gather=False with a transform, which changes the part of each rank: what becomes of the "
            "dimension isn't known"
        )
    return ReadGroup(group, read_dim, gathers)


class ReadGroup:
    """A process group whose ranks read the same samples, and this process's place in it.

    Args:
        group: The process group.
        read_dim: The dimension that is divided; None: the last one that samples have whole.
        gathers: Whether each rank gets the whole.
    """

    def __init__(self, group: Any, read_dim: str | None, gathers: bool):
        rank = torch.distributed.get_rank(group)
        if rank < 0:
            raise ValueError("dali_zarr: read_group: expected a process group that has this process, but it isn't in the group")
        self.rank = Rank(read_dim, rank, torch.distributed.get_world_size(group), gathers)
        self.ranks = torch.distributed.get_process_group_ranks(group)
        self._group = group
        self._stream: Any = None

    def __getstate__(self) -> dict[str, Any]:
        if self.gathers:
            raise TypeError(
                "dali_zarr: read_group: a loader that gathers can't be pickled, since its process group belongs to this process: "
                "make it in the process that iterates, or give gather=False"
            )
        return self.__dict__ | {"_group": None}

    def __copy__(self) -> ReadGroup:
        return self

    def __deepcopy__(self, _memo: Any) -> ReadGroup:
        return self

    @property
    def gathers(self) -> bool:
        """Whether each rank gets the whole, of several parts."""
        return self.rank.gathers and self.rank.size > 1

    def shard(self, process_group: Any, shard_id: int | None, num_shards: int | None, is_pushed: bool) -> tuple[int, int]:
        """Returns which part of the samples the group reads, and how many parts there are. ``is_pushed``: the caller divides
        them. Then it only tells the groups apart.

        Raises:
            ValueError: It isn't given, and the ranks of the group don't tell it.
        """
        if process_group is not None:
            others = set(torch.distributed.get_process_group_ranks(process_group))
            if len(others & set(self.ranks)) != 1:
                raise ValueError(
                    "dali_zarr: process_group: expected one rank of each read group in it, but found the ranks "
                    f"{sorted(others)}, and {self.ranks} in read_group"
                )
        if process_group is not None or shard_id is not None or num_shards is not None:
            return rank_and_world(process_group, shard_id, num_shards)
        # Groups of a mesh: along one of its dimensions neighbours have equal distances.
        world, size, ranks = torch.distributed.get_world_size(), self.rank.size, sorted(self.ranks)
        step = ranks[1] - ranks[0] if size > 1 else 1
        first, within = divmod(ranks[0], size * step)
        is_even = ranks == list(range(ranks[0], ranks[0] + size * step, step)) and within < step
        if not is_even or world % (size * step):
            if is_pushed:
                return ranks[0], world
            raise ValueError(
                f"dali_zarr: read_group: expected groups of neighbours, or of ranks at equal distances, that divide all {world} "
                f"ranks, but found the ranks {ranks}; give process_group, with one rank of each read group, or shard_id and "
                "num_shards"
            )
        return first * step + within, world // size

    def check_device(self, device: str) -> None:
        """Raises ValueError if the group can't gather on a device, ``"cpu"`` or ``"cuda"``."""
        told: str = torch.distributed.get_backend_config(self._group)
        if self.gathers and not any(one.partition(":")[0] == device for one in told.split(",")):
            raise ValueError(
                f"dali_zarr: read_group: expected a process group with a backend for the device {device!r}, on which batches are "
                f"gathered, but found {told!r}; make it with the backend {'nccl' if device == 'cuda' else 'gloo'!r}, or give "
                "another device"
            )

    def gathered(self, batches: Iterator[Batch], place: _Place, device: torch.device, parts: Told) -> Iterator[Batch]:
        """Yields the batches of all parts. All ranks of the group must take equally many.

        Args:
            batches: Those of this part.
            place: The loader, after the batch that came last.
            device: Where batches are.
            parts: Tells the parts of a batch.

        Raises:
            RuntimeError: Another rank has failed, or has another batch, or is gone.
        """
        try:
            while True:
                with self._beside(device):
                    whole = self._next(batches, place, device, parts)
                if whole is None:
                    return
                yield self._handed_out(whole, device)
        finally:
            if close := getattr(batches, "close", None):
                close()

    def _next(self, batches: Iterator[Batch], place: _Place, device: torch.device, parts: Told) -> Batch | None:
        header = torch.zeros(_HEADER, dtype=torch.uint8)
        numbers = header[: 8 * _NUMBERS].view(torch.int64)
        try:
            batch = next(batches, None)
            if batch is None:
                exchange = None
                numbers[_STATUS] = _END
            else:
                index = batch.index
                assert index is not None
                exchange = Exchange.of(batch, *parts(), device)
                told = [_BATCH, place.epoch, place.number, len(index), exchange.bytes, _checksum(index)]
                numbers[: len(told)] = torch.tensor(told, dtype=torch.int64)
        except Exception as error:
            numbers[_STATUS] = _FAILED
            text = f"{type(error).__name__}: {error}".encode()[: _HEADER - 8 * _NUMBERS]
            header[8 * _NUMBERS : 8 * _NUMBERS + len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
            # Whatever becomes of the others, this rank has an error of its own to tell.
            with contextlib.suppress(RuntimeError):
                self._all(header, device)
            raise
        self._check(self._all(header, device).cpu())
        if exchange is None:
            return None
        if exchange.bytes:
            self._all(exchange.sent, device, exchange.received)
        return exchange.gathered()

    def _all(self, own: torch.Tensor, device: torch.device, found: torch.Tensor | None = None) -> torch.Tensor:
        """Returns what all ranks have: uint8 (rank, byte). ``found``: where it comes to."""
        own = own.to(device)
        if found is None:
            found = torch.empty(self.rank.size * len(own), dtype=torch.uint8, device=device)
        try:
            torch.distributed.all_gather_into_tensor(found, own, group=self._group)
        except RuntimeError as error:
            raise RuntimeError(
                "dali_zarr: read_group: the ranks couldn't gather a batch. All ranks of a group must take the same batches: has "
                f"one ended, or stopped iterating? ({str(error).strip().splitlines()[0]})"
            ) from error
        return found.view(self.rank.size, -1)

    def _check(self, headers: torch.Tensor) -> None:
        """Raises RuntimeError unless all ranks have the same batch, or none."""
        rows = cast("list[list[int]]", headers[:, : 8 * _NUMBERS].contiguous().view(torch.int64).tolist())
        for rank in range(len(headers)):
            if rows[rank][_STATUS] == _FAILED:
                text = bytes(cast("list[int]", headers[rank, 8 * _NUMBERS :].tolist())).rstrip(b"\0").decode(errors="replace")
                raise RuntimeError(f"dali_zarr: read_group: rank {rank} of the group failed at this batch: {text}")
        for rank in range(1, len(headers)):
            if rows[rank] != rows[0]:
                _differ(rows[0], rows[rank], rank)

    def _beside(self, device: torch.device) -> AbstractContextManager[Any]:
        """Returns the context in which batches are taken and gathered."""
        if device.type != "cuda":
            return contextlib.nullcontext()
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
        return torch.cuda.stream(self._stream)

    def _handed_out(self, batch: Batch, device: torch.device) -> Batch:
        """Returns a batch that the current stream may use: it waits for the gather."""
        if device.type == "cuda":
            current = torch.cuda.current_stream(device)
            current.wait_stream(self._stream)
            # The memory belongs to the other stream, which must not use it again before the current one is done with it.
            for tensor in [*tensors(batch), batch.index]:
                if tensor is not None and tensor.is_cuda:
                    tensor.record_stream(current)
        return batch


def _checksum(index: torch.Tensor) -> int:
    """Returns a number that tells other samples, or another order of them."""
    found = 0
    for value in cast("list[int]", index.to(torch.int64).flatten().tolist()):
        found = (found * _FACTOR + value + 1) & (1 << 64) - 1
    return found - (1 << 64) if found >> 63 else found


def _differ(one: list[int], other: list[int], rank: int) -> NoReturn:
    def shown(numbers: list[int]) -> str:
        if numbers[_STATUS] == _END:
            return "no batch any more"
        return f"batch {numbers[_NUMBER]} of epoch {numbers[_EPOCH]}, with {numbers[_SAMPLES]} samples,"

    if one[:_BYTES] == other[:_BYTES]:
        what = "outputs" if one[_BYTES] != other[_BYTES] else "samples"
        found = f"other {what} on rank {rank} than on rank 0"
        hint = "give all ranks the same arguments, seed and sampler"
    else:
        found = f"{shown(one)} on rank 0 and {shown(other)} on rank {rank}"
        hint = "all ranks must begin, stop and go on with iterations at the same batches"
    raise RuntimeError(f"dali_zarr: read_group: expected the same batch on all ranks of the group, but found {found}; {hint}")

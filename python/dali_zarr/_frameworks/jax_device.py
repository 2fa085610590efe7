"""The loader for JAX on one of its devices: arrays, and the part of a batch that they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from .. import _collate_jax, _dali
from .._loading import outputs, ranks
from .._loading.agreement import Agreement
from .._loading.collate import Collate, CollatePlan, needs
from .._loading.drawn import AnySource
from .._loading.epochs import Ending
from .._loading.loader import BaseLoader
from .._loading.ragged import Ragged
from .._loading.reading import Plan, Reading

# JAX without types, where its own type hints are incomplete.
_UNTYPED: Any = jax


@dataclass(frozen=True)
class Part:
    """The index of a batch's samples on one device: DALI's output or, in a copy of the batch, an array. The samples from
    ``own`` on repeat others."""

    output: Any
    valid: int
    own: int

    def index(self) -> npt.NDArray[np.int64]:
        output = self.output.as_cpu() if hasattr(self.output, "as_cpu") else self.output
        return np.asarray(output.as_tensor() if hasattr(output, "as_tensor") else output)[: self.valid]

    def __reduce__(self) -> Any:
        return Part, (self.index(), self.valid, self.own)


class OnDevice(BaseLoader[tuple[list[Any], Part]]):
    """Iterates over batches on one device: their arrays and the part that they are of the batch of all devices.

    The device is number ``number`` of ``devices`` of this process."""

    def __init__(
        self, plan: Plan, device: Any, number: int, devices: int, ending: Ending, agreement: Agreement | None, moves: bool,
        collate: Collate | None, columns: int | None, source: AnySource | None = None,
    ):
        self._device, self._columns = device, columns
        self._number_of_device, self._devices = number, devices
        self._collate: Collate | None = collate
        self._choice: CollatePlan | None = None
        super().__init__(plan, ending, agreement, moves, source=source)

    def _placed(self, plan: Plan) -> Plan:
        # PyTorch or torchrun may tell a rank. JAX's own ranks don't change.
        told = ranks.told()
        if told is None:
            return plan
        return replace(plan, shard_id=told[0] * self._devices + self._number_of_device, num_shards=told[1] * self._devices)

    def _check_reading(self, reading: Reading) -> None:
        super()._check_reading(reading)
        ragged, is_by_store = reading.ragged(), reading.plan.is_by_store
        if ragged is None and not needs(self._collate, self._columns, is_by_store):
            return
        if self._collate is not None:
            places = reading.plan.places()
            shaped = frozenset(places if is_by_store else ())
            self._choice = CollatePlan(
                self._collate, self._columns, ragged or Ragged.none(), places, _collate_jax.indptr, shaped,
            )

    def _taken(self, found: list[Any], valid: int, own: int) -> tuple[list[Any], Part]:
        if self._choice is not None and self._choice.matrices:
            arrays = _collate_jax.rows(
                self._choice, self._reading.places, found[:-1], valid, lambda output: self._array(output, valid), self._on_device,
            )
        elif self._collate == "list":
            arrays = [self._listed(output, valid) for output in found[:-1]]
        else:
            arrays = [self._array(output, valid) for output in found[:-1]]
        for i in self._reading.bfloats(pads=self._collate == "padded"):
            arrays[i] = [_as_bfloat(one) for one in arrays[i]] if isinstance(arrays[i], list) else _as_bfloat(arrays[i])
        return arrays, Part(found[-1], valid, own)

    def _array(self, output: Any, valid: int) -> Any:
        check_type(output.dtype)
        if not output.is_dense_tensor():
            raise ValueError(_collate_jax.RAGGED)
        array = self._on_device(output.as_tensor())
        return array if valid == self._plan.batch_size else array[:valid]

    def _listed(self, output: Any, valid: int) -> list[Any]:
        check_type(output.dtype)
        return _collate_jax.listed(output, valid, self._on_device)

    def _on_device(self, tensor: Any) -> Any:
        array = _UNTYPED.dlpack.from_dlpack(tensor)
        device = self._device
        if device is None and self._collate == "padded" and self._plan.device == "gpu":
            # DALI delivers the lengths on the CPU.
            device = _UNTYPED.local_devices()[0]
        return array if device is None or array.devices() == {device} else _UNTYPED.device_put(array, device)

    def as_pushed(self) -> OnDevice:
        """Returns a loader of the same samples whose caller pushes them."""
        return self._as_pushed()

    def reading(self) -> Reading:
        """Returns the running pipeline, which is opened if it wasn't."""
        return self._reading

    def taken(self, found: list[Any], count: int) -> tuple[list[Any], Part]:
        """Returns the arrays of the first ``count`` samples of DALI's outputs, and the part that they are."""
        return self._taken(found, count, count)

    def places(self) -> list[outputs.Place]:
        """Returns the places of a batch's arrays, in their order."""
        matrices = self._choice.matrices if self._choice is not None else {}
        return [*self._reading.places, *dict.fromkeys(matrix for matrix, _, _ in matrices.values())]

    @property
    def num_shards(self) -> int:
        return self._plan.num_shards

    @property
    def plan(self) -> Plan:
        return self._plan

    def renew(self, found: dict[str, Any]) -> None:
        """Opens the store anew, with what was looked up in it."""
        self._renew(lambda plan: padded(replace(plan, **found), self._collate))

    def change(self, found: dict[str, Any]) -> None:
        """Opens the store anew with other offsets or another window, and the samples that the loader began with."""
        self._changed(found, lambda plan: padded(plan, self._collate))

    def is_within_epoch(self) -> bool:
        """Whether batches of an epoch were handed out, and others are left."""
        return self._course.is_within()

    def goes_on(self) -> bool:
        """Whether the next iteration goes on within an epoch, since a state was loaded."""
        return self._course.goes_on()

    def is_ragged(self) -> bool:
        return self._reading.ragged() is not None

    def dtypes(self) -> list[str]:
        return self._reading.dtypes()


def padded(plan: Plan, collate: str | None) -> Plan:
    """Returns the plan with the transform that pads ragged outputs, if that is what becomes of them."""
    return replace(plan, transform=_collate_jax.padding(plan.padded())) if collate == "padded" else plan


def _as_bfloat(bits: Any) -> Any:
    return bits.view(_UNTYPED.numpy.bfloat16)


def hardware_id(device: Any) -> int:
    found = device or _UNTYPED.local_devices()[0]
    return int(found.local_hardware_id or 0)


def check_type(dtype: Any, name: str = "") -> None:
    types = _dali.module("types")
    if dtype in (types.INT64, types.UINT64) and not _UNTYPED.config.jax_enable_x64:
        what = f"output {name!r}" if name else "an output of the transform"
        raise TypeError(
            f"dali_zarr: {what} has {str(dtype).rpartition('.')[2].lower()}, which JAX would cut to 32 bits: call "
            'jax.config.update("jax_enable_x64", True) first, or give dtype=, such as "int32"'
        )

"""What PyTorch's batches have for ragged outputs: nested tensors, padded ones, or matrices in CSR."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import torch

from ._loading.outputs import Place
from ._loading.ragged import Lengths, Ragged

Collate: TypeAlias = Literal["nested", "padded", "csr"]

LENGTHS = "lengths"

_UNTYPED: Any = torch


class Collation:
    """Turns a batch's outputs, some of which are ragged, into tensors."""

    def __init__(self, how: Collate | None, columns: int | None, ragged: Ragged, places: Sequence[Place]):
        """Checks what is asked for.

        Raises:
            ValueError: It doesn't fit the outputs.
        """
        if how is not None and how not in get_args(Collate):
            raise ValueError(f"dali_zarr: collate: expected 'nested', 'padded' or 'csr', but found {how!r}")
        self._how, self._ragged = how or "nested", ragged
        wide = columns if columns is not None else ragged.columns
        if columns is not None and how != "csr":
            raise ValueError("dali_zarr: columns: expected collate='csr' with it; leave it out")
        if self._how == "padded" and (LENGTHS,) in places:
            raise ValueError("dali_zarr: collate: expected no output called 'lengths', since padded batches add it")
        self._matrices = _matrices(ragged, places, wide) if self._how == "csr" else {}
        # Where there are matrices, they have columns.
        self._columns = wide or 0

    @classmethod
    def of(cls, how: Collate | None, columns: int | None, ragged: Ragged | None, places: Sequence[Place]) -> Collation | None:
        """None where no output is ragged.

        Raises:
            ValueError: What is asked for doesn't fit the outputs.
        """
        if ragged is not None:
            return cls(how, columns, ragged, places)
        for name, value in {"collate": how, "columns": columns}.items():
            if value is not None:
                raise ValueError(f"dali_zarr: {name}: expected ragged or ragged_ends with it, but found neither; leave it out")
        return None

    def __call__(
        self, places: Sequence[Place], found: Sequence[Any], valid: int, dense: Callable[[Any], torch.Tensor],
        flat: Callable[[Any, tuple[int, ...]], torch.Tensor],
    ) -> tuple[list[Place], list[torch.Tensor]]:
        """The batch's places and tensors, of the first ``valid`` samples. ``dense`` and ``flat`` make tensors of DALI's outputs."""
        values: dict[Place, torch.Tensor] = {}
        parts: dict[Place, tuple[torch.Tensor, Lengths]] = {}
        # Those of outputs with equal lengths are one tensor, by which PyTorch knows that their shapes agree.
        offsets: list[tuple[Lengths, torch.Tensor]] = []
        for place, output in zip(places, found, strict=True):
            if not self._ragged.has(place, output):
                values[place] = dense(output)
                continue
            lengths = Lengths(output, valid, place)
            tensor = flat(output, lengths.shape)[: lengths.total]
            at = _offsets(offsets, lengths, tensor.device)
            if self._how == "nested":
                values[place] = _nested(tensor, at, lengths)
            elif self._how == "padded":
                values[place] = _padded(tensor, at, lengths)
                values.setdefault((LENGTHS,), at.diff())
            elif place not in self._matrices:
                name = "/".join(place)
                raise ValueError(f"dali_zarr: collate='csr': output {name!r} of the transform is ragged, but no part of a matrix")
            else:
                parts[place] = (tensor, lengths)
                matrix, data, indices = self._matrices[place]
                values.setdefault(matrix, tensor)
                if data in parts and indices in parts:
                    size = (len(lengths.lengths), self._columns)
                    values[matrix] = _csr(at, parts[indices][0], parts[data][0], size)
        return list(values), list(values.values())


# What changes the values of outputs.
_OF_VALUES = ("dtype", "mean", "stddev", "channels", "mask_and_scale", "fillna")


def of_values(arguments: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The arguments of a reader of matrices, where what changes values applies to all outputs but the matrices' indices.

    Raises:
        ValueError: An argument names indices.
    """
    found = dict(arguments)
    indices = {name for name in names if name.rpartition("/")[2] == "indices"}
    for argument in _OF_VALUES & found.keys():
        value = found[argument]
        if value is None or not indices:
            continue
        if isinstance(value, Mapping):
            for name in indices & value.keys():
                raise ValueError(
                    f"dali_zarr: {argument}: expected none for {name!r}, which holds the columns of a matrix (collate='csr'); "
                    "leave it out"
                )
        elif not _is_list(value):
            found[argument] = {name: value for name in names if name not in indices}
        elif len(value) == len(names):
            found[argument] = {name: one for name, one in zip(names, value, strict=True) if name not in indices}
    return found


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _matrices(ragged: Ragged, places: Sequence[Place], columns: int | None) -> dict[Place, tuple[Place, Place, Place]]:
    """For each part of a matrix: the matrix, its data and its indices."""
    found: dict[Place, tuple[Place, Place, Place]] = {}
    for place in ragged.places:
        group, _, name = place[-1].rpartition("/")
        parts = {part: (f"{group}/{part}" if group else part,) for part in ("data", "indices")}
        if name not in parts or not all(part in ragged.places for part in parts.values()):
            raise ValueError(
                "dali_zarr: collate='csr': expected the arrays 'data' and 'indices' of a matrix, and no other ragged ones, but "
                f"found {', '.join(repr('/'.join(p)) for p in sorted(ragged.places))}"
            )
        matrix = (group or "matrix",)
        if matrix in places:
            raise ValueError(f"dali_zarr: collate='csr': expected no output called {matrix[0]!r}, as the matrix is")
        found[place] = (matrix, parts["data"], parts["indices"])
    if columns is None:
        raise ValueError(
            "dali_zarr: columns: expected the number of the matrix's columns, since the group of its offsets has no 'shape'"
        )
    return found


def _offsets(known: list[tuple[Lengths, torch.Tensor]], lengths: Lengths, device: torch.device) -> torch.Tensor:
    for other, tensor in known:
        if (other.offsets == lengths.offsets).all():
            return tensor
    tensor = torch.from_numpy(lengths.offsets).to(device)
    known.append((lengths, tensor))
    return tensor


def _nested(values: torch.Tensor, offsets: torch.Tensor, lengths: Lengths) -> torch.Tensor:
    longest, shortest = (int(f(lengths.lengths)) if len(lengths.lengths) else 0 for f in (max, min))
    return _UNTYPED.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=shortest, max_seqlen=longest)


def _padded(values: torch.Tensor, offsets: torch.Tensor, lengths: Lengths) -> torch.Tensor:
    longest = int(lengths.lengths.max()) if len(lengths.lengths) else 0
    out = values.new_zeros((len(lengths.lengths), longest, *values.shape[1:]))
    if lengths.total == 0:
        return out
    along = torch.arange(longest, device=values.device)
    is_inside = along < offsets.diff()[:, None]
    at = (offsets[:-1, None] + along).clamp_(max=lengths.total - 1)
    is_inside = is_inside.reshape(*is_inside.shape, *[1] * (values.ndim - 1))
    return torch.where(is_inside, values[at], out)


def _check_columns(indices: torch.Tensor, columns: int) -> None:
    """Raises ValueError if an index isn't a column: kernels of PyTorch would read beyond their operands."""
    if indices.numel() == 0:
        return
    # On the CPU one pass is enough: without their sign negative ones are the largest.
    if indices.device.type == "cpu" and indices.numpy().view(f"uint{8 * indices.element_size()}").max() < columns:
        return
    bounds: list[int] = _UNTYPED.stack(_UNTYPED.aminmax(indices)).tolist()
    lowest, highest = bounds
    if lowest < 0 or highest >= columns:
        raise ValueError(
            f"dali_zarr: collate='csr': expected indices from 0 to {columns - 1}, the columns of the matrix, but found "
            f"{lowest if lowest < 0 else highest}; the store is damaged, or `columns` is too small"
        )


def _csr(offsets: torch.Tensor, indices: torch.Tensor, data: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    if indices.dtype not in (torch.int32, torch.int64):
        indices = indices.to(torch.int64)
    _check_columns(indices, size[1])
    # Both have one type. A batch has fewer than 2^31 values where its indices have 32 bits, or memory would be short.
    return torch.sparse_csr_tensor(offsets.to(indices.dtype), indices, data, size=size, check_invariants=False)

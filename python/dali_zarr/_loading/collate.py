"""The form (``collate``) that a loader gives outputs, above all ragged ones: the checks that PyTorch's and JAX's loaders share.

``"list"`` and ``"padded"`` have the same entries whether the samples of a store happen to differ in their shapes or not."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal, SupportsIndex, TypeAlias, get_args

import numpy.typing as npt

from .outputs import Place
from .ragged import ROWS, Ragged

Collate: TypeAlias = Literal["nested", "list", "padded", "csr"]

LENGTHS = "lengths"


class CollatePlan:
    """The form that is asked for. It fits the outputs."""

    def __init__(
        self, how: Collate | None, columns: int | None, ragged: Ragged, places: Sequence[Place], added: Callable[[str], str],
        shaped: AbstractSet[Place] = frozenset(),
    ):
        """Checks the form; None is nested tensors, and lists where samples differ in other dimensions than the first.
        ``added`` returns the name of the entry that a batch gets for a matrix, given the matrix's group. ``shaped``: the
        outputs beside which padded batches tell the shapes of samples, ragged or not.

        Raises:
            ValueError: The form doesn't fit the outputs.
        """
        self.how, self.ragged, self.shaped = how, ragged, shaped
        wide = columns if columns is not None else ragged.columns
        if columns is not None and how != "csr":
            raise ValueError("dali_zarr: columns: expected collate='csr' with it; leave it out")
        given: Any = columns
        if given is not None and (isinstance(given, bool) or not isinstance(given, SupportsIndex) or operator.index(given) < 0):
            raise ValueError(f"dali_zarr: columns: expected a whole number of at least 0, but found {given!r}")
        if how == "padded":
            for place in {(LENGTHS,)} if ragged.are_rows else map(shape_of, {*shaped, *ragged.dims}):
                if place in places:
                    raise ValueError(f"dali_zarr: collate: expected no output called {place[-1]!r}, since padded batches add it")
        far = next(((place, dims) for place, dims in ragged.dims.items() if dims != ROWS), None)
        if how == "nested" and far is not None:
            raise ValueError(
                f"dali_zarr: collate='nested': expected samples that differ in their first dimension alone, but those of output "
                f"{'/'.join(far[0])!r} differ in the dimensions {', '.join(map(str, far[1]))}; give 'list' or 'padded'"
            )
        if how == "csr" and not ragged.are_rows:
            raise ValueError(
                "dali_zarr: collate='csr': expected ragged or ragged_ends, whose samples are the rows of a matrix; give 'list' or "
                "'padded'"
            )
        # For each part of a matrix, the places of the entry for the matrix, of its data and of its indices.
        self.matrices = _matrices(ragged, places, wide, added) if how == "csr" else {}
        # Columns of the matrices. ``_matrices`` has made sure that the number is known.
        self.columns = wide or 0


def shape_of(place: Place) -> Place:
    """Returns the place of the entry with the shapes of a padded output's samples."""
    return *place[:-1], f"{place[-1]}/shape"


def check_name(how: Any) -> None:
    """Raises ValueError unless ``how`` names a form."""
    if how is not None and (not isinstance(how, str) or how not in get_args(Collate)):
        raise ValueError(f"dali_zarr: collate: expected 'nested', 'list', 'padded' or 'csr', but found {how!r}")


def needs(how: Collate | None, columns: int | None, is_by_store: bool) -> bool:
    """Whether the form changes batches though no output is ragged.

    Raises:
        ValueError: It needs ragged outputs.
    """
    if columns is None and (how == "list" or (how == "padded" and is_by_store)):
        return True
    for name, value in {"columns": columns, f"collate={how!r}": how}.items():
        if value is not None:
            raise ValueError(
                f"dali_zarr: {name}: expected ragged or ragged_ends with it, or stores or groups with samples of other shapes, but "
                "found neither; leave it out"
            )
    return False


def is_in_columns(indices: npt.NDArray[Any], columns: int) -> bool:
    """Returns whether all indices are columns. One pass is enough: read as unsigned numbers, negative indices are the
    largest."""
    return indices.size == 0 or bool(indices.view(f"u{indices.itemsize}").max() < columns)


def beyond_columns(lowest: int, highest: int, columns: int) -> ValueError:
    """Makes the exception for indices that aren't columns."""
    return ValueError(
        f"dali_zarr: collate='csr': expected indices from 0 to {columns - 1}, the columns of the matrix, but found "
        f"{lowest if lowest < 0 else highest}; the store is damaged, or `columns` is too small"
    )


def indices_of(names: Sequence[str]) -> list[str]:
    """Returns the arrays that hold the column indices of a matrix."""
    return [name for name in names if name.rpartition("/")[2] == "indices"]


# Arguments that change the values of outputs.
_OF_VALUES = ("dtype", "mean", "stddev", "channels", "mask_and_scale", "fillna")


def of_values(arguments: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Returns the arguments of a reader of matrices, such that those that change values leave the matrices' indices
    alone.

    Raises:
        ValueError: An argument names indices.
    """
    found = dict(arguments)
    indices = set(indices_of(names))
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


def _matrices(
    ragged: Ragged, places: Sequence[Place], columns: int | None, added: Callable[[str], str],
) -> dict[Place, tuple[Place, Place, Place]]:
    found: dict[Place, tuple[Place, Place, Place]] = {}
    for place in [place for place in places if place in ragged.places]:
        group, _, name = place[-1].rpartition("/")
        parts = {part: (f"{group}/{part}" if group else part,) for part in ("data", "indices")}
        if name not in parts or not all(part in ragged.places for part in parts.values()):
            raise ValueError(
                "dali_zarr: collate='csr': expected the arrays 'data' and 'indices' of a matrix, and no other ragged ones, but "
                f"found {', '.join(repr('/'.join(p)) for p in sorted(ragged.places))}"
            )
        matrix = (added(group),)
        if matrix in places:
            raise ValueError(f"dali_zarr: collate='csr': expected no output called {matrix[0]!r}, as what comes for the matrix is")
        found[place] = (matrix, parts["data"], parts["indices"])
    if columns is None:
        raise ValueError(
            "dali_zarr: columns: expected the number of the matrix's columns, since the group of its offsets lacks the attributes "
            "'encoding-type' and 'shape', as AnnData writes them"
        )
    return found

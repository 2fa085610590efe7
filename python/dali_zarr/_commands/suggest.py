"""Calls of the loader that read what is in a store, by what its arrays look like: rows of sparse matrices, episodes, images and
their labels, or anything else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .. import _arguments, _native
from .._arguments import names
from .arrays import ReadableArray

# Of a suggested batch: about how many bytes it has, and the most samples and arrays.
_BATCH_BYTES, _BATCH, _ARRAYS = 64 << 20, 64, 8
# Steps of a suggested window of episodes, and elements along each side of a crop.
_STEPS, _CROP = 16, 64
# The axes of images.
_AXES = frozenset("tczyx")


@dataclass(frozen=True)
class Call:
    """A call, and what it reads in words."""

    arguments: Mapping[str, Any]
    about: str | None = None
    # The loader's own arguments, which explain doesn't know.
    of_loader: Mapping[str, Any] | None = None


def suggested(
    path: str | None, options: Mapping[str, Any], found: list[ReadableArray], outputs: Mapping[str, str] | None,
) -> dict[str, Any]:
    """Returns the call that fits (``suggested``), what it reads in words (``about``), and what explain says of it on a
    GPU (``explained``). All are None where one reader can't take the arrays. ``outputs``: the names of outputs that
    were given, by array; None where no arrays were named."""
    if not found:
        return {"suggested": None, "about": None, "explained": None}
    for call in _calls(path, options, found, outputs):
        try:
            told = _explained(call)
            sample = sum(output["sample_bytes"] for output in told["outputs"])
            batch = min(_BATCH, told["samples"], max(1, _BATCH_BYTES // max(sample, 1)))
            how = {"batch_size": 1 << (batch.bit_length() - 1), "random_shuffle": True}
            told = _explained(call, **how)
        except (ValueError, TypeError, IndexError):
            if len(found) == 1 and options:
                raise
            continue
        arguments = {**call.arguments, **(call.of_loader or {}), **how}
        place = [repr(path)] if "path" in arguments else []
        shown = [*place, *(f"{name}={value!r}" for name, value in arguments.items() if name != "path")]
        return {
            "suggested": f"dali_zarr.torch.Loader({', '.join(shown)})", "about": call.about,
            "explained": {name: told[name] for name in ("samples", "outputs", "advice")},
        }
    return {"suggested": None, "about": None, "explained": None}


def _explained(call: Call, batch_size: int = 1, **how: Any) -> dict[str, Any]:
    return _native.explain(_arguments.to_spec({**call.arguments, **how}) | {"batch_size": batch_size, "device": "gpu"})


def _calls(
    path: str | None, options: Mapping[str, Any], found: list[ReadableArray], outputs: Mapping[str, str] | None,
) -> Iterator[Call]:
    """Yields the calls that may fit, the best first."""
    if path is not None and outputs is None and not options.keys() - {"storage_options"}:
        for call in (*_sparse(found), *_episodes(found), *_images(found)):
            yield Call({"path": path, **call.arguments, **options}, call.about, call.of_loader)
    largest = max(found, key=lambda array: (len(array.dims), array.decoded_bytes))
    # Arrays that all have stores of their own were named by the user: they belong together, even if dimensions have no
    # names.
    like = found if path is None else [
        one for one in found if one.dims[:1] == largest.dims[:1] and len(one.dims) >= max(2, len(largest.dims) - 1)
    ]
    together = like[:_ARRAYS]
    for chosen in ([together] if largest in together and len(together) > 1 else []) + [[largest]]:
        listed = [array.name for array in chosen]
        arguments: dict[str, Any] = {} if all(map(names.is_location, listed)) else {"path": path}
        if not chosen[0].is_only:
            arguments["arrays"] = {outputs[name]: name for name in listed} if outputs else listed
        yield Call({**arguments, **options})


def _sparse(found: list[ReadableArray]) -> Iterator[Call]:
    """Yields calls for rows of matrices as AnnData and SciPy store them, ``X`` first. Explain refuses a matrix that is
    stored by columns."""
    by_name = {array.name: array for array in found}
    groups = [name.removesuffix("indptr") for name in by_name if name.rpartition("/")[2] == "indptr"]
    groups = [group for group in groups if {group + "data", group + "indices"} <= by_name.keys()]
    for group in sorted(groups, key=lambda group: (group != "X/", -by_name[group + "data"].decoded_bytes)):
        yield Call(
            {"arrays": [group + "data", group + "indices"], "ragged": group + "indptr"},
            f"rows of the sparse matrix {group.rstrip('/') or '/'}", {"collate": "csr"},
        )


def _episodes(found: list[ReadableArray]) -> Iterator[Call]:
    """Yields calls for windows within episodes. An array whose name ends with ``_ends`` says where episodes end."""
    for ends in found:
        if len(ends.shape) != 1 or not ends.name.endswith(("episode_ends", "_ends")) or ends.dtype[:1] not in "iu":
            continue
        others = [array for array in found if array is not ends and array.shape and array.shape[0] > ends.shape[0]]
        if not others:
            continue
        steps = max(others, key=lambda array: array.decoded_bytes).shape[0]
        chosen = [array.name for array in others if array.shape[0] == steps][:_ARRAYS]
        for window in (_STEPS, 1):
            yield Call(
                {"arrays": chosen, "breaks": ends.name, "window": [window], "step": [1]},
                f"windows of {window} steps within the episodes that {ends.name} ends",
            )


def _images(found: list[ReadableArray]) -> Iterator[Call]:
    """Yields calls for crops of the finest level of an image, and of labels that have its shape."""
    images = [array for array in found if _is_image(array) and "labels" not in array.name.split("/")]
    if not images:
        return
    image = max(images, key=lambda array: math.prod(array.shape))
    group = image.name.rpartition("/")[0]
    levels = [array for array in images if array.name.rpartition("/")[0] == group and array.dims == image.dims]
    about = f"random crops of {image.name or 'the image'}"
    about += f", the finest of {len(levels)} levels" if len(levels) > 1 else ""
    sizes = dict(zip(image.dims, image.shape, strict=True))
    dims = [dim for dim in image.dims if dim != "c"]
    window = [0 if dim == "t" else min(_CROP, -(-sizes[dim] // 2)) for dim in dims]
    crop: dict[str, Any] = {
        "dims": dims, "window": window, "random_crop": [dim for dim in dims if dim != "t"],
        "samples_per_volume": max(1, math.prod(-(-sizes[dim] // n) for dim, n in zip(dims, window, strict=True) if n)),
    }
    inside = f"{group}/labels/" if group else "labels/"
    for label in found:
        of_label = dict(zip(label.dims, label.shape, strict=True))
        if label.name.startswith(inside) and _is_image(label) and all(of_label.get(dim) == sizes[dim] for dim in dims):
            yield Call({"arrays": {"image": image.name, "label": label.name}, **crop}, f"{about}, with labels")
    only: dict[str, Any] = {} if image.is_only else {"arrays": {"image": image.name}}
    yield Call({**only, **crop}, about)


def _is_image(array: ReadableArray) -> bool:
    """Returns whether the array's axes are those of images."""
    return array.dims[-2:] == ("y", "x") and set(array.dims) <= _AXES and len(set(array.dims)) == len(array.dims)

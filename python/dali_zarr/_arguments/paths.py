"""Paths and URLs: made absolute when a reader is made, and shown without secrets."""

import os
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, cast

from . import names

# The scheme of Hugging Face's hub, and its kinds of repositories. Models have none.
_HUB = "hf://"
_KINDS = ("datasets", "spaces", "buckets")


def _of_hub(location: str) -> str:
    """Returns the URL of the files of ``hf://datasets/ORG/NAME[@REVISION]/PATH`` and the like, by which anyone can read what
    is public.

    Raises:
        ValueError: It names no repository, or a revision that such a URL can't have.
    """
    kind, *rest = location[len(_HUB) :].split("/")
    if kind not in _KINDS:
        kind, rest = "", [kind, *rest]
    if len(rest) < 2 or not all(rest[:2]):
        raise ValueError(
            f"zarr_reader: path: expected hf://datasets/ORG/NAME/PATH or hf://buckets/ORG/NAME/PATH, but found {shown(location)}"
        )
    owner, (name, at, revision), path = rest[0], rest[1].partition("@"), rest[2:]
    if at and (kind == "buckets" or revision in ("", "refs") or "%2f" in revision.lower()):
        instead = "buckets have no revisions" if kind == "buckets" else "give the name of a branch or a tag, or a commit's hash"
        raise ValueError(f"zarr_reader: path: {shown(location)}: expected another revision than {revision!r}; {instead}")
    server = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    place = [*([kind] if kind else []), owner, name, "resolve", *([] if kind == "buckets" else [revision or "main"]), *path]
    return "/".join([server, *place]).rstrip("/")


def absolute(location: str) -> str:
    """Returns the absolute path that a location means now: the current directory may be another one when stores are
    opened again. URLs, also those with a link of fsspec's before them, stay. So does all text if there is no current
    directory: opening it says so. The engine does the same for arguments that don't pass through here."""
    for prefix in ("reference://", "reference::"):
        if location.lower().startswith(prefix):
            return location[: len(prefix)] + absolute(location[len(prefix) :])
    if location.lower().startswith(_HUB):
        return _of_hub(location)
    is_link = re.match("[A-Za-z0-9]*::", location) and not os.path.exists(location)
    if not location or location.startswith("/") or "://" in location or is_link:
        return location
    try:
        # ".." stays: it isn't the folder above if it follows a symbolic link.
        return str(PurePosixPath(os.getcwd(), location))
    except OSError:
        return location


def shown(location: str) -> str:
    """Returns a path or a URL as messages show it: without a user and a password, a query and a fragment. Text that
    looks like a user and a password stays if it is the name of a file."""
    scheme, is_url, rest = location.rpartition("://")
    if not is_url:
        secret = re.match(r"(.*/)?[^/:]*:.*@", location)
        return location if secret is None or os.path.lexists(location) else f"{secret[1] or ''}...@{location[secret.end() :]}"
    if not scheme.lower().endswith("file"):
        rest = re.sub("[?#].*", "?...", rest, flags=re.DOTALL)
    authority, slash, below = rest.partition("/")
    # In Azure's URLs a user without a password is the container.
    if "@" in authority and (":" in authority or not scheme.lower().endswith(("az", "abfs", "abfss"))):
        authority = "...@" + authority.rpartition("@")[2]
    elif ":" in authority and "@" in below:
        # The password has a slash in it.
        return f"{scheme}://...@{rest.rpartition('@')[2]}"
    return f"{scheme}://{authority}{slash}{below}"


def location(array: str) -> str:
    """Returns the absolute location of an array with a store of its own. Other names stay."""
    return absolute(array) if names.is_location(array) else array


def of_stores(arguments: Mapping[str, Any]) -> list[str]:
    """Returns the locations of the stores that are read."""
    arrays: Any = arguments.get("arrays") or []
    named = list(cast("Mapping[str, Any]", arrays).values()) if isinstance(arrays, Mapping) else _items(arrays)
    return [*map(str, _items(arguments.get("path") or [])), *(str(array) for array in named if names.is_location(str(array)))]


def of_arrays(arrays: Any) -> Any:
    """Returns the argument ``arrays`` with absolute locations of arrays that have stores of their own. Outputs keep their
    names."""
    if isinstance(arrays, Mapping):
        return {output: location(array) for output, array in cast("Mapping[str, str]", arrays).items()}
    listed = _items(arrays)
    if not all(isinstance(array, str) for array in listed):
        return arrays
    found = [location(array) for array in listed]
    if found == listed:
        return arrays
    return dict(zip(listed, found, strict=True)) if len(set(listed)) == len(listed) else found


def _items(value: Any) -> list[Any]:
    return list(cast("list[Any] | tuple[Any, ...]", value)) if isinstance(value, list | tuple) else [value]

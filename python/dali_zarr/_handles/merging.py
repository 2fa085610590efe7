"""Arguments of a reader, from the places of the stores that were given."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any, cast

from .. import _native
from .._arguments import options as options_of
from .._arguments import tables, values
from .._arguments.names import is_location
from .place import Place, refused

_VERSIONS = ("branch", "tag", "snapshot_id")
# Arguments that name arrays in the store of ``path``.
_NAMES = ("breaks", "ragged", "ragged_ends", "starts", "weights")


def merge(
    found: dict[str, Any], paths: list[Place | Any], named: dict[str, Place | Any] | None, is_list: bool,
) -> None:
    """Sets ``path``, ``arrays`` and ``storage_options``.

    Args:
        found: The arguments, which are changed.
        paths: The entries of ``path``, in which handles are places.
        named: The entries of ``arrays`` in the same way; None: there are no handles.
        is_list: Whether ``path`` was a list.

    Raises:
        ValueError: They can't be expressed.
    """
    given = list(paths)
    if named is not None:
        _set_arrays(found, paths, named)
    if any(isinstance(one, Place) for one in paths):
        _set_paths(found, paths, is_list)
    stores = [one for one in [*given, *(named or {}).values()] if isinstance(one, Place)]
    versions = [one if isinstance(one, Place) else None for one in given or paths]
    _set_options(found, stores, versions)


def _set_arrays(found: dict[str, Any], paths: list[Place | Any], named: dict[str, Place | Any]) -> None:
    """Sets ``arrays`` where some are handles, and ``path`` where no path leads to them."""
    held = [one for one in named.values() if isinstance(one, Place)]
    closed = next((one for one in held if not one.is_folder), None)
    if closed is None:
        found["arrays"] = {name: _own(one) if isinstance(one, Place) else one for name, one in named.items()}
        return
    root = paths[0] if len(paths) == 1 else closed if not paths else None
    if not isinstance(root, Place) or any(not _is_same_store(one, root) for one in held):
        refused(
            "arrays", "arrays of Icechunk repositories and of references",
            "no path leads to an array in them, so all must be of one store, which path has too or no path is given",
        )
    names = {name: one.inside if isinstance(one, Place) else str(one) for name, one in named.items()}
    if not paths:
        paths.append(Place(root.path, is_folder=False, snapshot=root.snapshot))
        found["arrays"] = names
        return
    # The names of arrays that are text are relative to the group that path is.
    inside = root.inside
    outside = [name for name in names.values() if inside and not name.startswith(f"{inside}/")]
    if any(isinstance(named[name], Place) for name in names) and outside:
        refused("arrays", outside[0], f"it isn't in the group {inside!r} that path is; give path its store")
    found["arrays"] = {name: one.removeprefix(f"{inside}/") for name, one in names.items()}


def _own(place: Place) -> str:
    """Returns the location of an array with a store of its own."""
    location = place.location(place.inside)
    return location if "://" in location else str(values.path(location))


def _is_same_store(one: Place, other: Place) -> bool:
    return (one.path, one.snapshot, dict(one.options)) == (other.path, other.snapshot, dict(other.options))


def _set_paths(found: dict[str, Any], paths: list[Place | Any], is_list: bool) -> None:
    """Sets ``path``, and ``arrays`` where it is told by them."""
    held = [one for one in paths if isinstance(one, Place)]
    is_array = {one.is_array for one in held}
    if is_array == {True} and len(held) == len(paths):
        names = list(dict.fromkeys(one.name for one in held))
        if found.get("arrays"):
            refused("arrays", "an array in path", "expected none beside an array as path, which says which array is read")
        if len(names) > 1:
            refused("path", "arrays", f"expected arrays of one name, but found {', '.join(names)}; give arrays={{NAME: array}}")
        if names[0]:
            found["arrays"] = names
        groups = [one.parent for one in held]
    elif True in is_array:
        refused("path", "an array", "expected only arrays beside it; give the groups that they are in, and arrays=[NAME]")
    else:
        groups = [one.inside for one in held]
    closed = {group for group, one in zip(groups, held, strict=True) if not one.is_folder}
    if any(closed):
        if len(closed) > 1 or len(held) < len(paths) or any(one.is_folder for one in held):
            refused("path", "groups", "expected the same group in all Icechunk repositories and references")
        _prefix(found, next(iter(closed)), held[0].names)
    at = iter(zip(groups, held, strict=True))
    located: list[Any] = []
    for one in paths:
        if isinstance(one, Place):
            group, place = next(at)
            located.append(place.location(group) if place.is_folder else place.path)
        else:
            located.append(one)
    found["path"] = located if is_list else located[0]


def _prefix(found: dict[str, Any], group: str, names: tuple[str, ...] | None) -> None:
    """Puts the group before all names of arrays. Outputs keep their names."""
    given = found.get("arrays")
    if not given:
        if names is None or len(names) != 1:
            listed = f": {', '.join(names)}" if names else ""
            refused("path", f"the group {group!r}", f"expected arrays too, since it doesn't have a single one{listed}")
        given = list(names)
    by_output = cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {str(one): one for one in values.items(given)}
    found["arrays"] = {output: _within(group, one) for output, one in by_output.items()}
    for name in _NAMES:
        if found.get(name) is not None:
            is_list = isinstance(found[name], list | tuple)
            within = [_within(group, one) for one in values.items(found[name])]
            found[name] = within if is_list else within[0]


def _within(group: str, name: Any) -> Any:
    is_name = isinstance(name, str) and not isinstance(name, tables.Kept) and name != "auto" and not name.endswith(".npy")
    return f"{group}/{name}" if is_name and not is_location(name) else name


def _set_options(found: dict[str, Any], stores: list[Place], paths: list[Place | None]) -> None:
    """Sets ``storage_options``: those of the stores, replaced by those that were given."""
    given = found.get("storage_options")
    listed = values.items(given) if given is not None and not isinstance(given, Mapping) else []
    user = {str(name): value for name, value in cast("Mapping[Any, Any]", given).items()} if isinstance(given, Mapping) else {}
    named = {name.lower() for name in user} | {str(one).partition("=")[0].strip().lower() for one in listed}
    own = {name: value for name, value in _of_all(stores).items() if name not in named}
    snapshots = [None if one is None else one.snapshot for one in paths]
    if any(snapshots):
        if named & set(_VERSIONS):
            refused("storage_options", "a session", "expected no branch, tag or snapshot_id beside a session, which has a snapshot")
        chosen = set(snapshots)
        own["snapshot_id"] = str(snapshots[0]) if len(chosen) == 1 else ",".join(one or "" for one in snapshots)
    secrets: dict[str, str] = {}
    for one in stores:
        if any(secrets.get(name, value) != value for name, value in one.secrets.items()):
            refused("path", "stores", "they have different credentials, and a reader has one set of them; make a reader for each")
        secrets |= one.secrets
    entries = [f"{name}={value}" for name, value in own.items()]
    if not entries and not secrets:
        return
    if user:
        entries += options_of.to_strings(user, [one.path for one in stores])
    entries += [one if isinstance(one, str) else str(one) for one in listed]
    if secrets:
        entries.append(_kept(secrets))
    found["storage_options"] = entries


def _of_all(stores: Iterable[Place]) -> dict[str, str]:
    """Returns the options of all stores.

    Raises:
        ValueError: Two of a kind have different ones.
    """
    by_scheme: dict[str, Place] = {}
    found: dict[str, str] = {}
    for one in stores:
        other = by_scheme.setdefault(one.scheme, one)
        differing = sorted(name for name, _ in set(one.options.items()) ^ set(other.options.items()))
        if differing or one.secrets.keys() != other.secrets.keys():
            what = differing[0] if differing else "credentials"
            refused(
                "path", f"stores with {one.scheme}",
                f"they have different options ({what}), and a reader has one set for each kind of store; make a reader for each",
            )
        found |= one.options
    return found


def _kept(secrets: dict[str, str]) -> tables.Kept:
    """Returns the option that names credentials, which the library keeps as long as this text is alive."""
    name = _native.keep_credentials(secrets)
    entry = tables.Kept(f"{options_of.CREDENTIALS}={name}")
    weakref.finalize(entry, _native.release_credentials, name).atexit = False
    return entry

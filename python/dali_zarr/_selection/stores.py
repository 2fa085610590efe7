"""Zarr stores opened by zarr-python, for their coordinates: the reader itself hands out values but no attributes."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Options that aren't the object store's.
_OWN = ("max_retries", "retry_timeout", "hedge", "timeout", "branch", "tag", "snapshot_id", "virtual_chunks")


def needed(module: str, why: str) -> Any:
    """A package that only some uses need.

    Raises:
        ImportError: It isn't installed; the message says what it is needed for.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ImportError(f"dali_zarr: {why} needs {package}, which isn't installed: pip install {package}") from error


def open_store(path: str, options: Mapping[str, str]) -> Any:
    """The group or array at a path or URL, for reading.

    Raises:
        ValueError: Nothing is there, or it is of a kind whose coordinates can't be read.
        ImportError: A package that is needed for it isn't installed.
    """
    zarr = needed("zarr", "reading coordinates")
    try:
        return zarr.open(_store(zarr, path, options), mode="r")
    except (FileNotFoundError, KeyError) as error:
        raise ValueError(
            f"zarr_reader: store {path}: its coordinates can't be read: {error}; select by position, with isel"
        ) from error


def _store(zarr: Any, path: str, options: Mapping[str, str]) -> Any:
    if "://" in path and not path.startswith("file://"):
        obstore = needed("obstore.store", "reading coordinates of remote stores")
        config = {name: value for name, value in options.items() if name not in _OWN}
        return zarr.storage.ObjectStore(obstore.from_url(path, config=config or None), read_only=True)
    local = Path(path.removeprefix("file://"))
    if local.is_file():
        if local.name.endswith(".json"):
            return _references(zarr, str(local))
        return zarr.storage.ZipStore(local, mode="r")
    if not any((local / name).exists() for name in ("zarr.json", ".zgroup", ".zarray", ".zmetadata")) and (local / "refs").is_dir():
        return _icechunk(local, options)
    if (local / ".zmetadata").exists() and "record_size" in (local / ".zmetadata").read_text()[:4096]:
        return _references(zarr, str(local))
    return str(local)


def _icechunk(path: Path, options: Mapping[str, str]) -> Any:
    icechunk = needed("icechunk", "reading coordinates of Icechunk repositories")
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))
    chosen = {name: options[name] for name in ("branch", "tag", "snapshot_id") if options.get(name)}
    return repository.readonly_session(**(chosen or {"branch": "main"})).store


def _references(zarr: Any, path: str) -> Any:
    fsspec = needed("fsspec", "reading coordinates of references")
    files = fsspec.filesystem("reference", fo=path, remote_protocol="file", asynchronous=True)
    return zarr.storage.FsspecStore(files, read_only=True)

"""Packages that only some uses need; and Zarr stores opened by zarr-python, which rechunk copies and files of statistics are."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Schemes of URLs that obstore opens.
_OBSTORE = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl", "http", "https")
# Options of the reader that obstore doesn't take.
_OWN = ("max_retries", "retry_timeout", "hedge", "branch", "tag", "snapshot_id", "virtual_chunks")


def needed(module: str, why: str) -> Any:
    """Imports a package that only some uses need.

    Raises:
        ImportError: The package isn't installed; the message says what it is needed for.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ImportError(f"dali_zarr: {why} needs {package}, which isn't installed: pip install {package}") from error


def is_of_fsspec(path: str) -> bool:
    """Returns whether fsspec opens a URL: it is neither a file nor has a scheme that obstore knows."""
    return "::" in path or ("://" in path and path.split("://")[0] not in (*_OBSTORE, "file", "reference"))


def for_fsspec(options: Mapping[str, str]) -> dict[str, Any] | None:
    """Returns options, which are text, as fsspec wants them: to it the text "false" would be true."""
    return {name: {"true": True, "false": False}.get(value.lower(), value) for name, value in options.items()} or None


def opened(zarr: Any, path: str, options: Mapping[str, str]) -> Any:
    """Opens the store at a path or URL for reading; returns what zarr-python takes as a store.

    Raises:
        ImportError: A package that is needed for it isn't installed.
    """
    if is_of_fsspec(path):
        needed("fsspec", f"opening {path}")
        return zarr.storage.FsspecStore.from_url(path, storage_options=for_fsspec(options), read_only=True)
    if "://" in path and not path.startswith(("file://", "reference://")):
        return zarr.storage.ObjectStore(remote(path, options), read_only=True)
    is_references = path.startswith("reference://")
    local = Path(path.removeprefix("file://").removeprefix("reference://"))
    if is_references or local.name.endswith(".json"):
        return _references(zarr, str(local))
    if local.is_file():
        return zarr.storage.ZipStore(local, mode="r")
    if not any((local / name).exists() for name in ("zarr.json", ".zgroup", ".zarray", ".zmetadata")) and is_icechunk(local):
        return _icechunk(local, options)
    if _is_table_of_references(path):
        return _references(zarr, str(local))
    return str(local)


def is_icechunk(folder: Path) -> bool:
    """Whether a folder is an Icechunk repository, of version 1 or 2 of its format."""
    return (folder / "refs").is_dir() or ((folder / "repo").is_file() and (folder / "snapshots").is_dir())


def remote(path: str, options: Mapping[str, str]) -> Any:
    """obstore's store at a URL.

    Raises:
        ImportError: obstore isn't installed.
    """
    obstore = needed("obstore.store", "opening remote stores")
    config, client = _of_obstore(options)
    if path.startswith("http://"):
        client["allow_http"] = True
    return obstore.from_url(path, config=config or None, client_options=client)


def _is_table_of_references(path: str) -> bool:
    metadata = Path(path.removeprefix("file://").removeprefix("reference://")) / ".zmetadata"
    return "://" not in str(metadata) and metadata.is_file() and '"record_size"' in metadata.read_text()


def _of_obstore(options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits options into those of the store and those of its client, under obstore's names."""
    config: dict[str, Any] = {}
    client: dict[str, Any] = {}
    for name, value in options.items():
        own = name.removeprefix("aws_").removeprefix("azure_").removeprefix("google_")
        if own in ("allow_http", "allow_invalid_certificates"):
            client[own] = value.lower() in ("1", "true", "on", "yes", "y")  # what object_store takes for true
        elif own in ("timeout", "connect_timeout", "proxy_url", "user_agent"):
            client[own] = value
        elif name not in _OWN:
            config[name] = value
    return config, client


def _icechunk(path: Path, options: Mapping[str, str]) -> Any:
    icechunk = needed("icechunk", "opening Icechunk repositories")
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))
    chosen = {name: options[name] for name in ("branch", "tag", "snapshot_id") if options.get(name)}
    return repository.readonly_session(**(chosen or {"branch": "main"})).store


def _references(zarr: Any, path: str) -> Any:
    fsspec = needed("fsspec", "opening references")
    files = fsspec.filesystem("reference", fo=path, remote_protocol="file", asynchronous=True)
    return zarr.storage.FsspecStore(files, read_only=True)

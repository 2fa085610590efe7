"""Zarr stores opened by zarr-python, for their coordinates: the reader itself hands out values but no attributes."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Schemes of URLs that obstore opens.
_OBSTORE = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl", "http", "https")
# Options that aren't the object store's.
_OWN = ("max_retries", "retry_timeout", "hedge", "branch", "tag", "snapshot_id", "virtual_chunks")


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


class Store:
    """A store at a path or URL, for reading."""

    def __init__(self, path: str, options: Mapping[str, str]):
        """Opens it.

        Raises:
            ImportError: A package that is needed for it isn't installed.
            RuntimeError: It can't be opened.
        """
        self._path = path
        self._zarr = needed("zarr", "reading coordinates")
        # fsspec's tables of references know no names of Zarr v3.
        self._format = 2 if _is_table_of_references(path) else None
        try:
            self._store = opened(self._zarr, path, options)
        except ImportError:
            raise
        except Exception as error:
            raise self.unreadable(error) from error

    def array(self, name: str) -> Any:
        """zarr-python's array of that name, or None where there is none.

        Raises:
            RuntimeError: It can't be read.
        """
        try:
            return self._zarr.open_array(self._store, path=name, mode="r", zarr_format=self._format)
        except (FileNotFoundError, KeyError, self._zarr.errors.BaseZarrError):
            return None
        except Exception as error:
            raise self.unreadable(error) from error

    def attributes(self, group: str) -> dict[str, Any]:
        """Those of a group; none where there is no such group.

        Raises:
            RuntimeError: They can't be read.
        """
        try:
            return dict(self._zarr.open_group(self._store, path=group, mode="r", zarr_format=self._format).attrs)
        except (FileNotFoundError, KeyError, self._zarr.errors.BaseZarrError):
            return {}
        except Exception as error:
            raise self.unreadable(error) from error

    def check(self, name: str) -> None:
        """Raises RuntimeError unless the reader's own array is there, under its name or as the store itself: else the store is
        of a kind that only the reader knows, and coordinates would seem to be missing."""
        if self.array(name) is None and self.array("") is None:
            raise self.unreadable("zarr-python doesn't find the array")

    def unreadable(self, why: object) -> RuntimeError:
        """The error that this store's coordinates can't be read, for the first line of a reason."""
        text = str(why).strip().split("\n")[0]
        return RuntimeError(
            f"zarr_reader: store {self._path}: its coordinates can't be read: {text}; select by position, with isel"
        )


def is_of_fsspec(path: str) -> bool:
    """Whether a URL is neither a file nor of a scheme that obstore knows: then fsspec opens it."""
    return "::" in path or ("://" in path and path.split("://")[0] not in (*_OBSTORE, "file", "reference"))


def opened(zarr: Any, path: str, options: Mapping[str, str]) -> Any:
    """The store at a path or URL for reading, as zarr-python takes it.

    Raises:
        ImportError: A package that is needed for it isn't installed.
    """
    if is_of_fsspec(path):
        needed("fsspec", f"opening {path}")
        return zarr.storage.FsspecStore.from_url(path, storage_options=dict(options) or None, read_only=True)
    if "://" in path and not path.startswith(("file://", "reference://")):
        return zarr.storage.ObjectStore(remote(path, options), read_only=True)
    is_references = path.startswith("reference://")
    local = Path(path.removeprefix("file://").removeprefix("reference://"))
    if is_references or local.name.endswith(".json"):
        return _references(zarr, str(local))
    if local.is_file():
        return zarr.storage.ZipStore(local, mode="r")
    if not any((local / name).exists() for name in ("zarr.json", ".zgroup", ".zarray", ".zmetadata")) and (local / "refs").is_dir():
        return _icechunk(local, options)
    if _is_table_of_references(path):
        return _references(zarr, str(local))
    return str(local)


def remote(path: str, options: Mapping[str, str]) -> Any:
    """obstore's store at a URL.

    Raises:
        ImportError: obstore isn't installed.
    """
    obstore = needed("obstore.store", "reading coordinates of remote stores")
    config, client = _of_obstore(options)
    if path.startswith("http://"):
        client["allow_http"] = True
    return obstore.from_url(path, config=config or None, client_options=client)


def _is_table_of_references(path: str) -> bool:
    metadata = Path(path.removeprefix("file://").removeprefix("reference://")) / ".zmetadata"
    return "://" not in str(metadata) and metadata.is_file() and '"record_size"' in metadata.read_text()


def _of_obstore(options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the store, and those of its client."""
    config: dict[str, Any] = {}
    client: dict[str, Any] = {}
    for name, value in options.items():
        own = name.removeprefix("aws_").removeprefix("azure_").removeprefix("google_")
        if own in ("allow_http", "allow_invalid_certificates"):
            client[own] = value == "true"
        elif own in ("timeout", "connect_timeout", "proxy_url", "user_agent"):
            client[own] = value
        elif name not in _OWN:
            config[name] = value
    return config, client


def _icechunk(path: Path, options: Mapping[str, str]) -> Any:
    icechunk = needed("icechunk", "reading coordinates of Icechunk repositories")
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))
    chosen = {name: options[name] for name in ("branch", "tag", "snapshot_id") if options.get(name)}
    return repository.readonly_session(**(chosen or {"branch": "main"})).store


def _references(zarr: Any, path: str) -> Any:
    fsspec = needed("fsspec", "reading coordinates of references")
    files = fsspec.filesystem("reference", fo=path, remote_protocol="file", asynchronous=True)
    return zarr.storage.FsspecStore(files, read_only=True)

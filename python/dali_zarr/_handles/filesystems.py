"""fsspec's file systems and mappers, and the paths of universal_pathlib."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from . import objects
from .place import Place, divided, kinds, mapping, refused, shown, url

# Settings that don't say which bytes there are, nor who asks for them.
_NEUTRAL = frozenset({
    "asynchronous", "loop", "batch_size", "skip_instance_cache", "use_listings_cache", "listings_expiry_time", "max_paths",
    "default_block_size", "default_fill_cache", "default_cache_type", "block_size", "cache_type", "cache_regions", "version_aware",
    "use_ssl", "max_concurrency", "fixed_upload_size", "local_expiry_check", "project", "access", "consistency", "cache_timeout",
    "secure_serialize", "check_connection", "requests_timeout", "default_location", "auto_mkdir", "simple_links", "same_scheme",
    "encoded",
})
_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_INSTEAD = "give its URL with credentials in the environment, a profile or a role"


def place(argument: str, value: Any) -> Place | None:
    """Returns the place of a mapper or a path; None if the value is neither.

    Raises:
        ValueError: The reader can't read it.
    """
    found = kinds(value)
    if ("fsspec", "FSMap") in found:
        return of_path(argument, value.fs, value.root)
    if any(package == "upath" for package, _ in found):
        return of_path(argument, value.fs, value.path)
    if ("fsspec", "AbstractFileSystem") in found:
        refused(argument, shown(value), "a file system has no path; give filesystem.get_mapper(PATH)")
    return None


def of_path(argument: str, filesystem: Any, root: str) -> Place:
    """Returns the place of a path of a file system.

    Raises:
        ValueError: The reader can't read it.
    """
    names = {name for package, name in kinds(filesystem) if package == "fsspec"}
    if "AsyncFileSystemWrapper" in names:
        return of_path(argument, filesystem.sync_fs, root)
    if "DirFileSystem" in names:
        return of_path(argument, filesystem.fs, f"{filesystem.path.rstrip('/')}/{root.lstrip('/')}".rstrip("/"))
    if "CachingFileSystem" in names:
        # A cache holds what its file system has.
        return of_path(argument, filesystem.fs, root)
    if "ZipFileSystem" in names:
        return _of_zip(argument, filesystem, root)
    if "ReferenceFileSystem" in names:
        return _of_references(argument, filesystem, root)
    if ("obstore", "FsspecStore") in kinds(filesystem):
        bucket, _, path = root.partition("/")
        return objects.of_store(argument, filesystem._construct_store(bucket)).within(path)
    protocol = filesystem.protocol if isinstance(filesystem.protocol, str) else filesystem.protocol[0]
    if protocol in ("file", "local"):
        return Place(os.fspath(root))
    if protocol not in _KNOWN:
        is_memory = protocol == "memory"
        instead = "write it to a folder, and give its path" if is_memory else "mount it, or copy it to a folder or a bucket"
        refused(argument, shown(filesystem), f"the reader can't read {protocol}; {instead}")
    return _KNOWN[protocol](argument, filesystem, root)


def _settings(argument: str, filesystem: Any, known: set[str]) -> dict[str, Any]:
    """Returns the settings that a file system was made with.

    Raises:
        ValueError: The reader lacks one. Its value isn't shown.
    """
    if getattr(filesystem, "storage_args", ()):
        refused(argument, shown(filesystem), "it was made with arguments without names, which can't be told apart; name them")
    given = mapping(filesystem.storage_options)
    found = {name: value for name, value in given.items() if name not in _NEUTRAL and value is not None and value is not False}
    unknown = sorted(found.keys() - known)
    if unknown:
        refused(argument, shown(filesystem), f"the reader can't use its setting {unknown[0]!r}; {_INSTEAD}")
    return found


def _inner(argument: str, filesystem: Any, name: str, value: Any, known: Mapping[str, str]) -> dict[str, Any]:
    """Returns settings within a setting, under the names of options; an empty name: it doesn't matter."""
    found = mapping(value)
    unknown = sorted(found.keys() - known.keys())
    if unknown:
        refused(argument, shown(filesystem), f"the reader can't use {unknown[0]!r} of its setting {name!r}; {_INSTEAD}")
    return {known[key]: value for key, value in found.items() if known[key] and value is not None}


def _of_s3(argument: str, filesystem: Any, root: str) -> Place:
    found = _settings(argument, filesystem, {
        "anon", "key", "secret", "token", "username", "password", "endpoint_url", "client_kwargs", "config_kwargs",
        "requester_pays", "profile", "s3_additional_kwargs",
    })
    if found.get("profile", os.environ.get("AWS_PROFILE")) != os.environ.get("AWS_PROFILE"):
        refused(argument, shown(filesystem), "it names a profile; set AWS_PROFILE to it in the environment")
    if found.get("s3_additional_kwargs"):
        refused(argument, shown(filesystem), f"the reader can't use its setting 's3_additional_kwargs'; {_INSTEAD}")
    client = _inner(argument, filesystem, "client_kwargs", found.get("client_kwargs"), {
        "endpoint_url": "aws_endpoint", "region_name": "aws_region", "aws_access_key_id": "aws_access_key_id",
        "aws_secret_access_key": "aws_secret_access_key", "aws_session_token": "aws_session_token", "verify": "verify",
        "use_ssl": "", "api_version": "",
    })
    config = _inner(argument, filesystem, "config_kwargs", found.get("config_kwargs"), {
        "region_name": "aws_region", "s3": "s3", "signature_version": "signature", "connect_timeout": "", "read_timeout": "",
        "retries": "", "max_pool_connections": "", "tcp_keepalive": "", "request_checksum_calculation": "",
        "response_checksum_validation": "",
    })
    options = client | config | {
        "aws_endpoint": found.get("endpoint_url", client.get("aws_endpoint")),
    }
    for name, given in zip(_KEYS, (("key", "username"), ("secret", "password"), ("token",)), strict=True):
        options[name] = next((found[one] for one in given if one in found), client.get(name))
    # botocore's sentinel for requests without a signature.
    is_unsigned = type(options.pop("signature", None)).__name__ == "UNSIGNED"
    if found.get("anon") or is_unsigned:
        options |= dict.fromkeys(_KEYS) | {"aws_skip_signature": True}
    if options.pop("verify", True) is False:
        options["allow_invalid_certificates"] = True
    style = mapping(options.pop("s3", None)).get("addressing_style")
    if style == "virtual" and options["aws_endpoint"]:
        options["aws_virtual_hosted_style_request"] = True
    if found.get("requester_pays"):
        options["aws_request_payer"] = True
    if str(options["aws_endpoint"] or "").startswith("http://"):
        options["aws_allow_http"] = True
    told, secrets = divided(options)
    return Place(url("s3", root), options=told, secrets=secrets)


def _of_google(argument: str, filesystem: Any, root: str) -> Place:
    found = _settings(argument, filesystem, {"token", "endpoint_url"})
    token: Any = found.get("token")
    options: dict[str, Any] = {"google_base_url": found.get("endpoint_url")}
    if token == "anon":
        options["google_skip_signature"] = True
    elif isinstance(token, Mapping) and mapping(token).get("type") == "service_account":
        options["google_service_account_key"] = json.dumps(mapping(token))
    elif isinstance(token, str) and os.path.isfile(token):
        options["google_application_credentials"] = os.path.abspath(token)
    elif token not in (None, "google_default", "cloud"):
        refused(argument, shown(filesystem), "its token is no file and no service account; set GOOGLE_APPLICATION_CREDENTIALS")
    told, secrets = divided(options)
    return Place(url("gs", root), options=told, secrets=secrets)


def _of_azure(argument: str, filesystem: Any, root: str) -> Place:
    known = {
        "account_name": "azure_storage_account_name", "account_key": "azure_storage_account_key",
        "sas_token": "azure_storage_sas_key", "tenant_id": "azure_storage_tenant_id", "client_id": "azure_storage_client_id",
        "client_secret": "azure_storage_client_secret", "anon": "azure_skip_signature",
    }
    found = _settings(argument, filesystem, set(known))
    options = {known[name]: value for name, value in found.items()}
    if "azure_storage_sas_key" in options:
        options["azure_storage_sas_key"] = str(options["azure_storage_sas_key"]).removeprefix("?")
    told, secrets = divided(options)
    return Place(url("az", root), options=told, secrets=secrets)


def _of_http(argument: str, filesystem: Any, root: str) -> Place:
    _settings(argument, filesystem, set())
    return Place(root)


def _of_hub(argument: str, filesystem: Any, root: str) -> Place:
    _settings(argument, filesystem, set())
    return Place(f"hf://{root}")


def _of_zip(argument: str, filesystem: Any, root: str) -> Place:
    file: Any = getattr(filesystem, "of", None)
    if not hasattr(file, "fs") or not hasattr(file, "path"):
        refused(argument, shown(filesystem), "it reads an open file; give the path or the URL of the archive")
    return of_path(argument, file.fs, file.path).within(root)


def _of_references(argument: str, filesystem: Any, root: str) -> Place:
    document = mapping(filesystem.storage_options).get("fo", getattr(filesystem, "fo", None))
    if not isinstance(document, str | os.PathLike):
        instead = "write them to a .json file, and give its path"
        refused(argument, shown(filesystem), f"its references are in this process's memory; {instead}")
    return Place(f"reference://{os.fspath(document)}", is_folder=False).within(root)


_KNOWN: dict[str, Callable[[str, Any, str], Place]] = {
    "s3": _of_s3, "s3a": _of_s3, "gs": _of_google, "gcs": _of_google, "abfs": _of_azure, "az": _of_azure, "abfss": _of_azure,
    "http": _of_http, "https": _of_http, "hf": _of_hub,
}

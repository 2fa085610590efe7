"""``storage_options`` as the operator takes them, and what to write instead of fsspec's names."""

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

# Options that may be lists. None in a list becomes an empty entry.
_LISTS = ("snapshot_id", "virtual_chunks", "missing_status")
# A hidden option of the engine's.
_DIRECTORY = "_directory"
# Another one: the name of credentials that the library keeps.
CREDENTIALS = "_credentials"
_SECRETS = "secrets aren't arguments: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE) in the environment"
# fsspec's names, and those that s3fs, gcsfs and adlfs add.
_FSSPEC = {
    "anon": "write {'skip_signature': True} for public buckets",
    "key": _SECRETS,
    "secret": _SECRETS,
    "token": "secrets aren't arguments: set AWS_SESSION_TOKEN or GOOGLE_APPLICATION_CREDENTIALS in the environment",
    "profile": "set AWS_PROFILE in the environment",
    "endpoint_url": "write {'aws_endpoint': URL}",
    "client_kwargs": "write {'aws_endpoint': URL, 'aws_region': REGION} for its endpoint_url and region_name",
    "config_kwargs": "write {'timeout': '30s', 'max_retries': 10, 'proxy_url': URL} for its settings",
    "requester_pays": "write {'aws_request_payer': True} for buckets of S3",
    "account_name": "write {'azure_storage_account_name': NAME}",
    "account_key": "secrets aren't arguments: set AZURE_STORAGE_ACCOUNT_KEY in the environment",
    "project": "leave it out: a bucket's name is enough",
    "remote_options": "write the options of the files' store themselves, beside 'virtual_chunks'",
    "remote_protocol": "leave it out: the references' URLs tell it",
}


# The same for stores of one kind, by scheme.
_FSSPEC_OF = {
    "gs": {
        "requester_pays":
            "the project that pays can't be named here: copy what is needed to a bucket of your own, or mount the bucket",
    },
}


def to_strings(options: Mapping[Any, Any], stores: Sequence[str] = ()) -> list[str]:
    """Converts a dictionary to the operator's form, ``["NAME=VALUE", ...]``. ``stores``: where the stores are.

    Raises:
        TypeError, ValueError: A name is fsspec's, or a value is none that an option can have; the message says what to write.
    """
    for name, instead in _FSSPEC.items():
        if name in options:
            if name == "token" and options[name] == "anon":
                instead = _FSSPEC["anon"]
            schemes = [store.partition("://")[0] for store in stores if "://" in store]
            if schemes and all(scheme == schemes[0] for scheme in schemes):
                instead = _FSSPEC_OF.get(schemes[0], {}).get(name, instead)
            if stores and not any("://" in store for store in stores) and "virtual_chunks" not in options:
                instead += ". These stores are local and take none: leave it out, or give the URL of a remote store"
            raise ValueError(f"zarr_reader: storage_options: {name!r} is fsspec's name of an option; {instead}")
    endpoint = options.get("aws_endpoint", options.get("endpoint", ""))
    allowed = any(name in options for name in ("aws_allow_http", "allow_http")) or "AWS_ALLOW_HTTP" in os.environ
    if isinstance(endpoint, str) and endpoint.startswith("http://") and not allowed:
        raise ValueError(
            f"zarr_reader: storage_options: {endpoint} isn't encrypted; add {{'aws_allow_http': True}} to allow that, or write https://"
        )
    return [f"{name}={_option(name, value)}" for name, value in options.items()]


def with_directory(options: Any) -> list[str]:
    """Adds the current directory, if there is a place for virtual chunks: relative paths in references are relative to
    the directory that was current when the reader was made."""
    listed = cast("list[Any] | tuple[Any, ...]", options) if isinstance(options, list | tuple) else [options]
    # The name of kept credentials keeps them alive, so it isn't copied.
    found = [option if isinstance(option, str) else str(option) for option in listed]
    given = {option.partition("=")[0].strip() for option in found}
    if "virtual_chunks" in given and _DIRECTORY not in given:
        with contextlib.suppress(OSError, UnicodeEncodeError):
            directory = os.getcwd()
            directory.encode()
            found.append(f"{_DIRECTORY}={directory}")
    return found


def by_name(options: Iterable[str]) -> dict[str, str]:
    """Converts the operator's form to a dictionary, for other libraries that open stores. Entries without "=" are left
    out, since the operator itself refuses them, and so are options that only the engine has."""
    entries = (option.partition("=") for option in options)
    found = {name.strip(): value for name, equals, value in entries if equals}
    return {name: value for name, value in found.items() if name not in (_DIRECTORY, CREDENTIALS, "missing_status")}


def _option(name: Any, value: Any) -> str:
    if name in _LISTS and isinstance(value, list | tuple):
        return ",".join("" if item is None else _option(name, item) for item in cast(list[Any], value))
    if not isinstance(name, str) or not isinstance(value, str | int | float):
        # The value isn't repeated: it may be a secret.
        raise TypeError(
            f"zarr_reader: storage_options: {name!r}: expected a string, a number or a bool, found {type(value).__name__}"
        )
    return str(value).lower() if isinstance(value, bool) else str(value)

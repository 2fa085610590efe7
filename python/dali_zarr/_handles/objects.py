"""obstore's stores."""

from __future__ import annotations

import os
from typing import Any

from .place import Place, divided, kinds, mapping, refused, shown, text_of, url

# By class: the scheme, the name of the bucket among the settings, and how the crate object_store begins names of options.
_CLOUDS = {
    "S3Store": ("s3", "bucket", "aws_"), "GCSStore": ("gs", "bucket", "google_"), "AzureStore": ("az", "container_name", "azure_"),
}
# Settings of the client that are options of the reader.
_CLIENT = frozenset({
    "allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only", "http2_only", "pool_idle_timeout",
    "pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes", "proxy_url", "randomize_addresses", "timeout", "user_agent",
})


def is_store(value: Any) -> bool:
    """Whether a value is a store of obstore's."""
    return any(package == "obstore" and name.endswith("Store") for package, name in kinds(value))


def of_store(argument: str, store: Any) -> Place:
    """Returns the place of a store.

    Raises:
        ValueError: The reader can't read it.
    """
    name = next((name for package, name in kinds(store) if package == "obstore"), "")
    if name == "LocalStore":
        return Place(os.fspath(store.prefix or "/"))
    if name == "HTTPStore":
        options, _ = divided(_client(argument, store) | _retries(store))
        return Place(str(store.url), options=options)
    if name == "MemoryStore":
        refused(argument, shown(store), "it is in this process's memory; write it to a folder, and give its path")
    if name not in _CLOUDS:
        refused(argument, shown(store), "it isn't a store whose place the reader knows; give its URL")
    if store.credential_provider is not None:
        refused(
            argument, shown(store),
            "it has a credential_provider, which is a program of Python's, and the reader asks for credentials itself; make the "
            "store with keys, or give its URL with credentials in the environment, a profile or a role",
        )
    scheme, bucket, prefix = _CLOUDS[name]
    config = mapping(store.config)
    place = url(scheme, str(config.pop(bucket)), None if store.prefix is None else str(store.prefix))
    named = {_named(prefix, key): value for key, value in config.items()}
    options, secrets = divided(named | _client(argument, store) | _retries(store))
    return Place(place, options=options, secrets=secrets)


def _named(prefix: str, key: str) -> str:
    """Returns the name of an option of the crate object_store. Azure's accounts are ``azure_storage_account_name``."""
    if key.startswith(prefix):
        return key
    storage = prefix == "azure_" and key.startswith(("account_", "sas_", "client_", "tenant_", "endpoint", "use_emulator"))
    return f"{prefix}storage_{key}" if storage else f"{prefix}{key}"


def _client(argument: str, store: Any) -> dict[str, Any]:
    found = mapping(store.client_options)
    unknown = sorted(name for name in found if name not in _CLIENT)
    if unknown:
        refused(
            argument, shown(store),
            f"the reader doesn't have the setting {unknown[0]} of its client_options; give its URL, and storage_options without it",
        )
    return found


def _retries(store: Any) -> dict[str, str]:
    """Returns the limits of retries. How long the reader waits between tries is its own."""
    found = mapping(store.retry_config)
    return {name: text_of(found[name]) for name in ("max_retries", "retry_timeout") if name in found}

"""Icechunk's repositories, sessions and stores.

A session tells its storage only in the bytes that stand for it in another process. They are MessagePack, in which the
storage is a dictionary with a ``type``.
"""

from __future__ import annotations

import struct
from typing import Any, cast

from .place import Place, divided, kinds, mapping, refused, shown, url

_INSTEAD = "give the repository's path or URL, with storage_options={'snapshot_id': ...}"
# The deepest nesting that is followed.
_DEPTH = 64


def place(argument: str, value: Any) -> Place | None:
    """Returns the place of a repository, a session or a store; None if it is none of Icechunk's.

    Raises:
        ValueError: The reader can't read it, or there are changes that aren't committed.
    """
    names = {name for package, name in kinds(value) if package == "icechunk"}
    if "Repository" in names:
        found = _of_bytes(argument, value, value._repository)
        prefixes = sorted(getattr(value, "authorized_virtual_container_prefixes", ()))
        allowed = {"virtual_chunks": ",".join(prefixes)} if prefixes else {}
        return Place(found.path, is_folder=False, options={**found.options, **allowed}, secrets=found.secrets)
    if "IcechunkStore" in names:
        return place(argument, value.session)
    if not names & {"Session", "ForkSession"}:
        return None
    if value.has_uncommitted_changes:
        refused(argument, shown(value), "it has changes that aren't committed, which the reader can't see; commit them")
    found = _of_bytes(argument, value, value._session)
    return Place(found.path, is_folder=False, options=found.options, secrets=found.secrets, snapshot=str(value.snapshot_id))


def _of_bytes(argument: str, value: Any, inner: Any) -> Place:
    """Returns the place of the storage that stands in an object's bytes."""
    try:
        storage = _storage(_unpacked(memoryview(bytes(inner.as_bytes()))))
    except (AttributeError, IndexError, KeyError, ValueError, struct.error):
        storage = None
    if storage is None:
        refused(argument, shown(value), f"this version of Icechunk doesn't tell where it is; {_INSTEAD}")
    if storage["type"] == "S3Storage":
        return _of_s3(argument, value, storage)
    backend = mapping(storage.get("backend"))
    kind = str(backend.get("object_store_provider_type", storage["type"]))
    if "local" in kind and "path" in backend:
        return Place(str(backend["path"]))
    if "memory" in kind:
        refused(argument, shown(value), "it is in this process's memory; make it in a folder or a bucket")
    if "http" in kind and "url" in backend:
        return Place(str(backend["url"]))
    if not _is_of_environment(backend.get("credentials")):
        refused(argument, shown(value), "it was made with credentials; set them in the environment, and make it with from_env=True")
    if "gcs" in kind and "bucket" in backend:
        return Place(url("gs", backend["bucket"], backend.get("prefix")))
    if "azure" in kind and "container" in backend:
        return Place(
            url("az", backend["container"], backend.get("prefix")), options={"azure_storage_account_name": str(backend["account"])},
        )
    refused(argument, shown(value), f"the reader doesn't know its storage; {_INSTEAD}")


def _is_of_environment(credentials: Any) -> bool:
    """Whether credentials are none, or those of the environment. What they are is named first, or as a type."""
    if isinstance(credentials, dict):
        return any("env" in str(one) for one in cast("dict[str, Any]", credentials).values())
    return credentials in (None, "from_env", ["from_env"])


def _of_s3(argument: str, value: Any, storage: dict[str, Any]) -> Place:
    region, endpoint, is_anonymous, allows_http, _path_style, _timeout, pays, *_ = [*storage["config"], *[None] * 7][:8]
    who, *keys = cast("list[Any]", storage["credentials"])
    if who not in ("static", "anonymous", "from_env"):
        instead = "give its URL with credentials in the environment"
        refused(argument, shown(value), f"it asks a program of Python's for credentials; {instead}")
    if storage.get("extra_read_headers") or storage.get("key_layout", "Standard") != "Standard":
        refused(argument, shown(value), "the reader doesn't have its headers or its layout of keys")
    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    options, secrets = divided({
        "aws_region": region, "aws_endpoint": endpoint, "aws_allow_http": allows_http or None,
        "aws_skip_signature": True if is_anonymous or who == "anonymous" else None, "aws_request_payer": pays or None,
        **(dict(zip(names, keys, strict=False)) if who == "static" else {}),
    })
    return Place(url("s3", storage["bucket"], storage.get("prefix")), options=options, secrets=secrets)


def _storage(value: Any) -> dict[str, Any] | None:
    """Returns the first dictionary that describes a storage."""
    if isinstance(value, dict):
        found = cast("dict[Any, Any]", value)
        if isinstance(found.get("type"), str) and str(found["type"]).endswith("Storage"):
            return found
        value = list(found.values())
    if isinstance(value, list):
        for item in cast("list[Any]", value):
            found = _storage(item)
            if found is not None:
                return found
    return None


def _unpacked(data: memoryview) -> Any:
    value, _ = _value(data, 0, 0)
    return value


def _value(data: memoryview, at: int, depth: int) -> tuple[Any, int]:
    """Returns the value of MessagePack at a place, and where the next one begins."""
    if depth > _DEPTH:
        raise ValueError("too deep")
    code, at = data[at], at + 1
    if code < 0x80 or code >= 0xE0:
        return (code if code < 0x80 else code - 256), at
    if code < 0xA0:
        return _many(data, at, depth, code & 15, code < 0x90)
    if code < 0xC0:
        return _text(data, at, code & 31)
    if code in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[code], at
    number = _NUMBERS.get(code)
    if number is not None:
        return struct.unpack_from(f">{number}", data, at)[0], at + struct.calcsize(number)
    length, at = struct.unpack_from(f">{_LENGTHS[code]}", data, at)[0], at + struct.calcsize(_LENGTHS[code])
    if code in (0xC4, 0xC5, 0xC6):
        return bytes(data[at : at + length]), at + length
    return _text(data, at, length) if code in (0xD9, 0xDA, 0xDB) else _many(data, at, depth, length, code in (0xDE, 0xDF))


def _text(data: memoryview, at: int, length: int) -> tuple[str, int]:
    return bytes(data[at : at + length]).decode(), at + length


def _many(data: memoryview, at: int, depth: int, length: int, is_dictionary: bool) -> tuple[Any, int]:
    """Returns a list or a dictionary. A length beyond the data ends with IndexError."""
    found: list[Any] = []
    for _ in range(length * (1 + is_dictionary)):
        one, at = _value(data, at, depth + 1)
        found.append(one)
    if not is_dictionary:
        return found, at
    keys = [one if isinstance(one, str | int | float | bool | bytes) or one is None else repr(one) for one in found[::2]]
    return dict(zip(keys, found[1::2], strict=True)), at


# The formats of numbers, and of the lengths of bytes, text, lists and dictionaries.
_NUMBERS = {
    0xCA: "f", 0xCB: "d", 0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q", 0xD0: "b", 0xD1: "h", 0xD2: "i", 0xD3: "q",
}
_LENGTHS = {
    0xC4: "B", 0xC5: "H", 0xC6: "I", 0xD9: "B", 0xDA: "H", 0xDB: "I", 0xDC: "H", 0xDD: "I", 0xDE: "H", 0xDF: "I",
}

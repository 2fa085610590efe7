"""Where a store that a user holds lies, and what it takes to open it there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, NoReturn, cast
from urllib.parse import quote

# Parts of names of options whose values are secret, as the engine knows them.
_SECRET = re.compile("key|secret|token|sas|password")
_HARMLESS = re.compile("_(file|path|url)$|kms_key_id|bucket_key")


@dataclass(frozen=True)
class Place:
    """A store, or a group or an array in it."""

    # A path or a URL, as the reader takes it.
    path: str
    # The group or the array in the store; empty: the root.
    inside: str = ""
    is_array: bool = False
    # Whether a path can lead into the store. Otherwise names of arrays do.
    is_folder: bool = True
    # Options of the store.
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    # Options that are secret: never a part of arguments, logs or messages.
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    # The snapshot of an Icechunk repository; None: the latest of its branch main, or it is no repository.
    snapshot: str | None = None
    # The names of the arrays in the group, for stores into which no path leads.
    names: tuple[str, ...] | None = None

    def within(self, inside: str, is_array: bool = False) -> Place:
        """Returns a group or an array in this one."""
        joined = "/".join(part for part in (self.inside, inside.strip("/")) if part)
        return replace(self, inside=joined, is_array=is_array)

    @property
    def scheme(self) -> str:
        """The scheme of the URL; ``file`` for paths."""
        return self.path.partition("://")[0].lower() if "://" in self.path else "file"

    @property
    def parent(self) -> str:
        """The group around an array."""
        return self.inside.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The array's own name."""
        return self.inside.rpartition("/")[2]

    def location(self, inside: str) -> str:
        """Returns the path of a group or an array in the store."""
        if not inside:
            return self.path
        return f"{self.path.rstrip('/')}/{inside if self.scheme == 'file' else quoted(inside)}"


def refused(argument: str, kind: str, why: str) -> NoReturn:
    """Raises ValueError for something that can't be translated. ``why`` says what can't be, and what to do."""
    raise ValueError(f"zarr_reader: {argument}: {kind}: {why}")


def quoted(path: str) -> str:
    """Returns a path as a part of a URL."""
    return quote(path, safe="/!$&'()*+,;=:@~")


def url(scheme: str, *parts: str | None) -> str:
    """Returns the URL of a bucket or container and a path in it."""
    return f"{scheme}://" + quoted("/".join(part.strip("/") for part in parts if part and part.strip("/")))


def text_of(value: Any) -> str:
    """Returns the value of an option as text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        return f"{round(value.total_seconds() * 1000)}ms"
    return str(value)


def divided(options: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Divides options of the crate object_store into those that may be arguments, and secrets."""
    told = {name.lower(): text_of(value) for name, value in options.items() if value is not None}
    secrets = {name: value for name, value in told.items() if is_secret(name)}
    return {name: value for name, value in told.items() if name not in secrets}, secrets


def is_secret(name: str) -> bool:
    """Whether the value of an option with this name is a secret."""
    return bool(_SECRET.search(name)) and not _HARMLESS.search(name)


def kinds(value: Any) -> list[tuple[str, str]]:
    """Returns the packages and names of a value's class and of the classes that it is made of. Nothing is imported."""
    return [(base.__module__.partition(".")[0], base.__name__) for base in type(value).__mro__]


def shown(value: Any) -> str:
    """Returns a value's class, as messages show it. The value itself may hold secrets."""
    return f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"


def mapping(value: Any) -> dict[str, Any]:
    """Returns a dictionary that may be missing."""
    return dict(cast("Mapping[str, Any]", value)) if value else {}

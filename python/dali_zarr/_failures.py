"""The reader's errors as values: what programs can match goes with the exception, beside the message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ._hints import did_you_mean


@dataclass(frozen=True)
class Failure:
    """An error of the library."""

    # What the library says of it. The header explains the keys, at ``dali_zarr_last_error_details``.
    details: dict[str, Any]

    @property
    def raw(self) -> str:
        """The library's own message, as DALI's exceptions hold it."""
        return self.details["message"].replace("\0", "\\0")

    @property
    def message(self) -> str:
        """The message for people. For a name that doesn't exist, it ends with the one that was probably meant."""
        if self.details["name"] is None:
            return self.raw
        hint = did_you_mean(self.details["name"], self.details["known"], "")
        return f"{self.raw}; {hint}" if hint else self.raw


def attach(error: Exception, failure: Failure) -> Exception:
    """Says that an exception is raised for this error. Returns the exception."""
    error.__dict__["_dali_zarr"] = failure
    return error


def failure_of(error: BaseException) -> Failure | None:
    """Returns the error for which an exception is raised; None if it isn't one of the library's."""
    return error.__dict__.get("_dali_zarr")


def error_details(error: BaseException) -> dict[str, Any]:
    """Returns what a program can match of an error of the reader, so that it needn't read the message. It may be any error
    of a pipeline, a loader or a function of this package. For errors of other origins the result is empty.

    The keys are:

    - ``code``: what went wrong, such as ``"damaged"`` or ``"unavailable"``. The page on Python in the documentation lists
      the codes. They are never renamed or removed; there may be new ones.
    - ``kind``: ``"value"``, ``"type"``, ``"index"``, ``"runtime"`` or ``"memory"``, as the exception's class.
    - ``message``: the message, without what DALI adds.
    - ``store``, ``array``: where the error happened.
    - ``chunk``, ``inner_chunk``: the key of the chunk or shard; the inner chunk's coordinates.
    - ``key``, ``range``: a key of the store; the bytes that were read: first, last + 1.
    - ``tries``: how often a request was sent.
    - ``name``, ``known``: a name that doesn't exist; the names that exist.
    - ``source``: the message of the system, the server or the driver.

    What isn't known is None.
    """
    at: BaseException | None = error
    seen: set[int] = set()
    # An error of this package may be raised from one of the library.
    while at is not None and id(at) not in seen:
        if failure := failure_of(at):
            return {key: value for key, value in failure.details.items() if key != "operator"}
        seen.add(id(at))
        at = at.__cause__
    return {}

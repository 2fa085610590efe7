"""Exceptions as users need them: the reader's message first, then what DALI says of the operator's place; and MemoryError,
which DALI hasn't, for readers that need more memory than there is."""

import functools
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from . import _dali, _log, _native

# What the engine says, between DALI's account of where the operator was made and its last words.
_MESSAGE = re.compile(r"(?:^|\n)(zarr_reader(?: '[^'\n]*')?: .*?)(?=\n(?:Current pipeline object|Stacktrace)|\Z)", re.DOTALL)


def first(text: str) -> str:
    """A text of DALI with the reader's own message, if there is one, before the rest."""
    found = _MESSAGE.search(text)
    if found is None or found.start(1) == 0:
        return text
    rest = (text[: found.start(1)] + text[found.end(1) :]).replace("\nencountered:\n", "\n")
    return f"{_native.hinted(found[1].rstrip())}\n\n{rest.strip()}"


def _translated(method: Callable[..., Any], *positional: Any, **arguments: Any) -> Any:
    try:
        return method(*positional, **arguments)
    except (ValueError, TypeError, IndexError, RuntimeError) as error:
        text = first(str(error))
        lacking = _native.memory_error() if isinstance(error, RuntimeError) else None
        if lacking is not None and lacking in text:
            raise MemoryError(text) from None
        if text != str(error):
            error.args = (text,)
        raise


def _replace(owner: Any, name: str, around: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
    method = getattr(owner, name)
    if getattr(method, "_dali_zarr", False):
        return

    @functools.wraps(method)
    def replacement(*positional: Any, **arguments: Any) -> Any:
        with around():
            return _translated(method, *positional, **arguments)

    replacement.__dict__["_dali_zarr"] = True
    setattr(owner, name, replacement)


def hook() -> None:
    """Translates errors where pipelines, and readers of the dynamic mode, are built and run; what is logged while they are built
    goes to Python's logging. Does nothing the second time."""
    backend = _dali.module("backend_impl")
    for name in ("Outputs", "ShareOutputs"):
        _replace(backend.Pipeline, name)
    for owner, name in ((backend.Pipeline, "Build"), (backend._Operator, "__init__")):
        _replace(owner, name, _log.engine)

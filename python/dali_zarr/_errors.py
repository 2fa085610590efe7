"""Translates DALI's exceptions for users. The reader's message comes first, then what DALI says about where the
operator was made. Readers that need more memory than there is raise MemoryError, which DALI doesn't have."""

from collections.abc import Callable
from typing import Any

from . import _native
from ._failures import Failure, attach, failure_of


def _first(text: str, failure: Failure) -> str:
    """Moves the reader's own message to the front of a text of DALI's that has it."""
    before, _, after = text.partition(failure.raw)
    if not before:
        return text
    rest = (before + after).replace("\nencountered:\n", "\n")
    return f"{failure.message}\n\n{rest.strip()}"


def shorten(error: Exception) -> None:
    """Cuts an error's text after the reader's own message. This is for pipelines that users didn't write: where the
    operator was made doesn't help them. Errors of other operators stay as they are."""
    failure = failure_of(error)
    if failure is not None:
        error.args = (failure.message,)


def translated(method: Callable[..., Any], *positional: Any, **arguments: Any) -> Any:
    """Calls a method of DALI's. An error of the reader gets the reader's message and class."""
    try:
        return method(*positional, **arguments)
    except (ValueError, TypeError, IndexError, RuntimeError) as error:
        failure = None if failure_of(error) else _native.operator_error(str(error))
        if failure is None:
            raise
        text = _first(str(error), failure)
        if failure.details["kind"] == "memory":
            raise attach(MemoryError(text), failure) from None
        error.args = (text,)
        attach(error, failure)
        raise

"""MemoryError for readers that need more memory than there is: DALI has no such exception, and raises a RuntimeError instead."""

from collections.abc import Callable
from typing import Any

from . import _native
from ._iterators import replace


def _translated(method: Callable[..., Any], *positional: Any, **arguments: Any) -> Any:
    try:
        return method(*positional, **arguments)
    except RuntimeError as error:
        message = _native.memory_error()
        if message is None or message not in str(error):
            raise
        # The message first, then what DALI says of the operator's place.
        raise MemoryError(f"{message}\n{str(error).replace(message, '', 1)}") from None


def hook() -> None:
    """Translates the error where pipelines, and readers of the dynamic mode, are built. Does nothing the second time."""
    from nvidia.dali import backend_impl

    replace(backend_impl.Pipeline, "Build", _translated)
    replace(backend_impl._Operator, "__init__", _translated)

"""A reader without DALI."""

from __future__ import annotations

import ctypes
import json
from typing import Any

from .library import POINTER, Epoch, check, loaded


class Reader:
    """A reader on the CPU, without DALI."""

    def __init__(self, spec: dict[str, Any]):
        """Opens the reader.

        Raises:
            ValueError, TypeError, IndexError, MemoryError: As building a pipeline with the reader does.
        """
        self._reader = POINTER()
        check(loaded().dali_zarr_open(json.dumps(spec).encode(), ctypes.byref(self._reader)))

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        loaded().dali_zarr_close(self._reader)
        self._reader = POINTER()

    def samples(self) -> int:
        """Returns the number of samples in an epoch, over all shards."""
        epoch = Epoch()
        check(loaded().dali_zarr_describe_epoch(self._reader, ctypes.byref(epoch)))
        return epoch.epoch_size

    def skip(self) -> None:
        """Waits for the next batch. After an error the next call waits for the batch that follows.

        Raises:
            RuntimeError: A chunk of the batch can't be read or decoded.
        """
        batch = POINTER()
        check(loaded().dali_zarr_next_batch(self._reader, ctypes.byref(batch)))
        loaded().dali_zarr_batch_release(batch)

    def bytes(self) -> bytes:
        """Returns the memory of the first output of the next batch.

        Raises:
            RuntimeError: A chunk of the batch can't be read or decoded.
        """
        batch, data, size = POINTER(), POINTER(), ctypes.c_size_t()
        check(loaded().dali_zarr_next_batch(self._reader, ctypes.byref(batch)))
        try:
            check(loaded().dali_zarr_batch_data(batch, 0, ctypes.byref(data), ctypes.byref(size)))
            return ctypes.string_at(data, size.value)
        finally:
            loaded().dali_zarr_batch_release(batch)

    def counters(self) -> dict[str, Any]:
        """Returns the counters of this reader up to now."""
        text = ctypes.c_char_p()
        check(loaded().dali_zarr_stats(self._reader, ctypes.byref(text)))
        return json.loads(text.value or b"{}")

"""Consecutive pairs of hours from chunks of ten hours, of one hour, uncompressed and sharded, by each reader.

    python examples/study/chunking.py --size small
"""

from __future__ import annotations

from typing import Any

from common import arguments, compare, gpu_wait, rate
from readers import READERS
from store import prepare

WAYS = ("zarr-python", "kvikio", "external_source", "dali_zarr")
STORES = ("ten-hours", "one-hour", "uncompressed", "sharded")


def main() -> None:
    args = arguments(__doc__)
    paths, size = prepare(args.data, args.size), args.size

    def measure(reader: str, store: str) -> dict[str, Any]:
        found = rate(READERS[reader](paths[store], size), size.seconds, gpu_wait())
        samples = found["batches_per_second"] * size.batch
        return {**found, "samples_per_second": samples, "gb_per_second": samples * size.sample_bytes / 1e9}

    compare(args, __file__, {reader: STORES for reader in WAYS}, measure)


if __name__ == "__main__":
    main()

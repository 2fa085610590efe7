"""Consecutive pairs of hours from chunks of ten hours, of one hour, uncompressed and sharded, by each reader.

    python examples/study/chunking.py --small
"""

from __future__ import annotations

import json

from common import arguments, gpu_wait, has_gpu, in_process, rate, save
from readers import OF_GPU, READERS
from store import prepare

STORES = ("ten-hours", "one-hour", "uncompressed", "sharded")


def main() -> None:
    args = arguments(__doc__)
    paths = prepare(args.data, args.size)
    if args.one:
        reader, store = args.one
        found = rate(READERS[reader](paths[store], args.size), args.size.seconds, gpu_wait())
        found["gb_per_second"] = found["batches_per_second"] * args.size.batch * args.size.sample_bytes / 1e9
        found["samples_per_second"] = found["batches_per_second"] * args.size.batch
        print(json.dumps(found))
        return
    rows = []
    for store in STORES:
        for reader in READERS:
            if reader in OF_GPU and not has_gpu():
                continue
            rows.append({"store": store, "reader": reader, **in_process(args, "chunking.py", reader, store)})
            print(rows[-1], flush=True)
    save(args, "chunking", rows)


if __name__ == "__main__":
    main()

"""Writes the files of this folder, as fsspec's LazyReferenceMapper does, by pandas 3.1 with fastparquet 2026.9 and pyarrow 26.0."""

import sys

import numpy as np
import pandas as pd

out, rows = sys.argv[1], 100
path, raw = (np.full(rows, None, dtype="O") for _ in range(2))
offset, size = (np.zeros(rows, "int64") for _ in range(2))
for i in range(rows):
    if i % 6 == 2:
        raw[i] = bytes([i, 0, 255])
    elif i % 6:
        path[i] = f"s3://bucket/file{i // 6}.nc"
    if i % 6 > 2:
        offset[i], size[i] = 1000 * i, 7 + i
frame = pd.DataFrame({"path": path, "offset": offset, "size": size, "raw": raw})
categories = frame.assign(path=frame.path.astype("category"))


def fastparquet(frame, name, **how):
    encodings = {"raw": "bytes", "path": "utf8"}
    frame.to_parquet(
        f"{out}/fastparquet-{name}.parq", engine="fastparquet", index=False, stats=False, object_encoding=encodings,
        has_nulls=["path", "raw"], **how,
    )


def arrow(frame, name, **how):
    frame.to_parquet(f"{out}/arrow-{name}.parq", engine="pyarrow", index=False, **how)


fastparquet(frame, "zstd", compression="zstd")
fastparquet(frame, "snappy-groups", compression="snappy", row_group_offsets=[0, 37, 80])
fastparquet(categories, "categories", compression="zstd")
fastparquet(categories, "gzip", compression="gzip")
arrow(frame, "zstd", compression="zstd", write_statistics=False)
arrow(categories, "v2-none", compression=None, data_page_version="2.0", data_page_size=64, write_batch_size=10)
arrow(frame, "plain", compression="snappy", use_dictionary=False)

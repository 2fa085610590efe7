"""Writes one array with zarr-python 2, in whose environment it runs. The only argument is JSON: what ``zarr.create`` is told, and
where values lie, where the store is to be, and where to put what zarr-python 2 reads back."""

import json
import sys

import numcodecs
import numpy as np
import zarr

job = json.loads(sys.argv[1])
values = np.load(job["values"])
stores = {"directory": zarr.DirectoryStore, "nested": zarr.NestedDirectoryStore, "zip": zarr.ZipStore}
store = stores[job["store"]](job["folder"])
codecs = [numcodecs.get_codec(config) for config in job["codecs"]]
arguments = job["arguments"] | {"dtype": np.dtype(job["arguments"]["dtype"])}
if job["compressed"]:
    arguments["compressor"] = codecs.pop() if codecs else numcodecs.Blosc()
else:
    arguments["compressor"] = None
root = zarr.open_group(store, mode="w")
array = root.create(job["name"], filters=codecs or None, **arguments)
array.attrs.update(job["attributes"])
if job["how"] == "appended":
    # From nothing to all of it, a few at a time.
    array.resize((0, *values.shape[1:]))
    for at in range(0, values.shape[0], 3):
        array.append(values[at : at + 3])
elif job["how"] == "shrunk":
    array.resize(tuple(n + 7 for n in values.shape))
    array[...] = array.fill_value if array.fill_value is not None else 0
    array[tuple(slice(n) for n in values.shape)] = values
    array.resize(values.shape)
elif job["how"] == "grown":
    array.resize(tuple(max(1, n // 2) for n in values.shape))
    box = tuple(slice(max(1, n // 2)) for n in values.shape)
    array[...] = values[box]
    array.resize(values.shape)
else:
    array[...] = values
if job["consolidated"]:
    zarr.consolidate_metadata(store)
np.save(job["result"], array[...])
store.close()

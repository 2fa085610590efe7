"""``rechunk``: writes a store with other chunks, shards, codecs or types. zarr-python reads and writes, Dask runs the tasks."""

"""Uses of the package in which the type checker must find errors: where it finds none, the comment that expects one is an error."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

import dali_zarr

print(dali_zarr.explain(path="s", arrays=["a"])["samples"])
dali_zarr.zarr_reader(path="s", windw=3)  # pyright: ignore[reportCallIssue]
dali_zarr.zarr_reader(path="s", random_shuffle="yes")  # pyright: ignore[reportArgumentType]
dali_zarr.explain(path="s", out_of_bounds_policy="wrap")  # pyright: ignore[reportArgumentType]

"""The commands of ``python -m dali_zarr`` that have no function of the package: ``info``, ``check`` and ``bench``."""

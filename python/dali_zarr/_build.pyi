"""How this copy of dali_zarr was built; the build writes it."""

VERSION: str
DALI_VERSION: str
LIBRARY: str

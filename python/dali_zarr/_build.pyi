"""How this copy of dali_zarr was built; the build writes it."""

VERSION: str
DALI_VERSIONS: tuple[str, ...]
LIBRARY: str

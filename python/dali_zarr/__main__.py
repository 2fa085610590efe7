"""``python -m dali_zarr``: says what is installed."""

import argparse

from . import DALI_VERSION, __version__


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(prog="python -m dali_zarr", description="NVIDIA DALI operator for Zarr arrays")
    version = f"dali_zarr {__version__}, for NVIDIA DALI {DALI_VERSION}"
    parser.add_argument("--version", action="version", version=version)
    parser.parse_args()
    parser.print_help()


if __name__ == "__main__":
    main()

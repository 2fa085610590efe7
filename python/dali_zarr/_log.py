"""The logger ``dali_zarr``. It has no handler: Python shows warnings by default, and the rest where logging is set up."""

import logging

log = logging.getLogger("dali_zarr")

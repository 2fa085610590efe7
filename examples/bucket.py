"""Looks at a store in a bucket: bucket.py URL ENDPOINT. Keys come from the environment."""

import sys

from dali_zarr.torch import Loader

if "--help" in sys.argv:
    sys.exit(print(__doc__))

url, endpoint = sys.argv[1:]
# The endpoint is for servers other than AWS.
options = {"aws_endpoint": endpoint, "aws_region": "us-east-1", "aws_allow_http": True}
try:
    loader = Loader(url, storage_options=options, arrays=["t2m"], batch_size=4, device="cpu")
    for batch in loader:
        print(*batch["t2m"].mean(dim=(1, 2)).tolist())
except (ValueError, RuntimeError) as error:
    sys.exit(str(error).split("\n")[0])

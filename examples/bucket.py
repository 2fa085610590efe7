"""Prints means of batches of a store in a bucket. Keys come from the environment (AWS_ACCESS_KEY_ID and others)."""

import argparse
import sys

from dali_zarr.torch import Loader

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("url", help="such as s3://bucket/hours.zarr")
parser.add_argument("endpoint", help="the address of the S3 server, such as http://localhost:9000")
args = parser.parse_args()

# The endpoint is for servers other than AWS.
options = {"aws_endpoint": args.endpoint, "aws_region": "us-east-1", "aws_allow_http": True}
try:
    loader = Loader(args.url, storage_options=options, arrays=["t2m"], batch_size=4, device="cpu")
    for batch in loader:
        print(*batch["t2m"].mean(dim=(1, 2)).tolist())
except (ValueError, RuntimeError) as error:
    sys.exit(str(error).split("\n")[0])

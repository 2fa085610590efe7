"""Writes a model for Triton's DALI backend, whose pipeline reads samples by number."""

import argparse
from pathlib import Path
from typing import Any

import dali_zarr
import nvidia.dali
from nvidia.dali.pipeline import pipeline_def

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("store", help="its path as the server sees it")
parser.add_argument("folder", type=Path, help="where the model is written, such as example-data/models")
args = parser.parse_args()

fn: Any = nvidia.dali.fn
types: Any = nvidia.dali.types
CONFIG = """name: "fields"
backend: "dali"
max_batch_size: 8
input [{ name: "SAMPLE", data_type: TYPE_INT64, dims: [1] }]
output [{ name: "FIELD", data_type: TYPE_FP32, dims: [-1, -1] }]
"""


@pipeline_def(batch_size=8, num_threads=2)
def fields() -> Any:
    # Which samples a request wants: one number each.
    sample = fn.external_source(name="SAMPLE", device="cpu", ndim=1, dtype=types.INT64)
    field: Any = dali_zarr.zarr_reader(fn.squeeze(sample, axes=0), path=args.store, arrays=["t2m"], device="cpu")
    return field - 273.15


(args.folder / "fields" / "1").mkdir(parents=True, exist_ok=True)
(args.folder / "fields" / "config.pbtxt").write_text(CONFIG)
no_gpu: Any = {"device_id": None}
pipe: Any = fields(**no_gpu)
pipe.serialize(filename=str(args.folder / "fields" / "1" / "model.dali"))
print(f"tritonserver --model-repository {args.folder} --backend-config dali,plugin_libs={dali_zarr.plugin_path()}")

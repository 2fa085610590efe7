"""Writes a model for Triton's DALI backend, whose pipeline reads samples by number: python triton_pipeline.py STORE FOLDER"""

import sys
from pathlib import Path
from typing import Any

import dali_zarr
import nvidia.dali
from nvidia.dali.pipeline import pipeline_def

if "--help" in sys.argv:
    sys.exit(print(__doc__))

fn: Any = nvidia.dali.fn
types: Any = nvidia.dali.types
store, folder = sys.argv[1], Path(sys.argv[2])
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
    # The store's path must be the one that the server sees.
    field: Any = dali_zarr.zarr_reader(fn.squeeze(sample, axes=0), path=store, arrays=["t2m"], device="cpu")
    return field - 273.15


(folder / "fields" / "1").mkdir(parents=True, exist_ok=True)
(folder / "fields" / "config.pbtxt").write_text(CONFIG)
no_gpu: Any = {"device_id": None}
pipe: Any = fields(**no_gpu)
pipe.serialize(filename=str(folder / "fields" / "1" / "model.dali"))
print(f"tritonserver --model-repository {folder} --backend-config dali,plugin_libs={dali_zarr.plugin_path()}")

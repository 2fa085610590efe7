// Element types, from the engine's names to DALI's.
#pragma once

#include "dali/pipeline/data/types.h"

#include "dali-zarr/src/bridge.rs.h"

namespace dali_zarr {

/// DALI's name for an element type of the engine.
dali::DALIDataType ToDali(engine::DType type);

}  // namespace dali_zarr

// Element types, from the engine's names to DALI's.
#pragma once

#include <cstdint>

#include "dali/pipeline/data/types.h"

namespace dali_zarr {

/// DALI's name for an element type of the engine, a dali_zarr_dtype.
dali::DALIDataType ToDali(int32_t type);

}  // namespace dali_zarr

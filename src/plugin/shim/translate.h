// Element types, from the engine's names to DALI's, and what differs between versions of DALI (DALI_ZARR_DALI: 204 is 2.4).
#pragma once

#include <cstdint>

#include "dali/pipeline/data/types.h"

#include "dali-zarr/src/bridge.rs.h"

namespace dali_zarr {

/// What lists of integers among the operator's arguments hold. Before 2.4 DALI has none of 64 bits: the Python package gives larger
/// integers in another way (kOthers).
#if DALI_ZARR_DALI >= 204
using Integer = int64_t;
inline constexpr dali::DALIDataType kIntegers = DALI_INT64_VEC;
#else
using Integer = int;
inline constexpr dali::DALIDataType kIntegers = DALI_INT_VEC;
#endif

/// DALI's name for an element type of the engine.
dali::DALIDataType ToDali(engine::DType type);

}  // namespace dali_zarr

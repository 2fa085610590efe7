// Translates the engine's element types to DALI's, and handles differences between versions of DALI (DALI_ZARR_DALI:
// 204 is 2.4).
#pragma once

#include <cstdint>

#include "dali-zarr/src/bridge.rs.h"
#include "dali/pipeline/data/types.h"

namespace dali_zarr {

/// Element type of integer lists in the operator's arguments. DALI before 2.4 has no lists of 64-bit integers. For it,
/// the Python package passes larger integers in the argument kOthers.
#if DALI_ZARR_DALI >= 204
using Integer = int64_t;
inline constexpr dali::DALIDataType kIntegers = DALI_INT64_VEC;
#else
using Integer = int;
inline constexpr dali::DALIDataType kIntegers = DALI_INT_VEC;
#endif

/// Returns DALI's type for an element type of the engine.
dali::DALIDataType ToDali(engine::DType type);

}  // namespace dali_zarr

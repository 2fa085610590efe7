// Runs code for a warp on the host.
#pragma once
#include <cstdint>

namespace dz {

// Calls `body(argument, lane)` for each lane of a warp. All have to meet at the same points, and to end together.
void run_host_warp(void (*body)(void*, uint32_t), void* argument);

}  // namespace dz

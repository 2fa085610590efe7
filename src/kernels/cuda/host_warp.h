// Runs code for a warp on the host.
#pragma once
#include <cstdint>

namespace dz {

// Calls `body(argument, lane)` for each lane of a warp. All lanes must meet at the same points. No lane may end while
// another waits at such a point.
void run_host_warp(void (*body)(void*, uint32_t), void* argument);

}  // namespace dz

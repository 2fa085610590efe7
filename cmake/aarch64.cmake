# The operators for aarch64, compiled on another machine. GCC 12: see src/plugin/shim/compat.cc.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++-12)
set(CMAKE_STRIP aarch64-linux-gnu-strip)

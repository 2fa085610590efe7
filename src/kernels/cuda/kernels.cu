// The one translation unit: all kernels go into one fat binary.
#include "assemble.cuh"
#include "assemble_channels.cuh"
#include "checksum.cuh"
#include "gather.cuh"
#include "inflate.cuh"
#include "lz4.cuh"
#include "zstd_entropy.cuh"
#include "zstd_execute_kernel.cuh"

// Objects and arrays in shared memory, by address. On the device an address is a 32-bit number, and the compiler keeps
// it in a register; from a variable's name it would compute the address anew for each access.
#pragma once
#include "layout.cuh"

namespace dz {

// Returns a pointer to an object in shared memory, whose address the compiler keeps in a register.
template <class T>
DZ_HD T* shared_pointer(T* object) {
#ifdef __CUDA_ARCH__
  uint32_t at = uint32_t(__cvta_generic_to_shared(object));
  // Keeps the compiler from seeing where the address comes from.
  asm volatile("" : "+r"(at));
  return static_cast<T*>(__cvta_shared_to_generic(at));
#else
  return object;
#endif
}

class SharedArray {
#ifdef __CUDA_ARCH__
  using Address = uint32_t;
#else
  using Address = uintptr_t;
#endif
  Address at = 0;

 public:
  SharedArray() = default;

  DZ_HD explicit SharedArray(const void* array) {
#ifdef __CUDA_ARCH__
    at = uint32_t(__cvta_generic_to_shared(array));
    // Keeps the compiler from seeing where the address comes from.
    asm volatile("" : "+r"(at));
#else
    at = reinterpret_cast<Address>(array);
#endif
  }

  // The array whose byte `bytes` is the first byte of this one. Its first bytes may lie outside shared memory.
  DZ_HD SharedArray before(uint32_t bytes) const {
    SharedArray array;
    array.at = at - bytes;
    return array;
  }

  // Returns the 2 bytes at byte `offset`.
  DZ_HD uint32_t u16(uint32_t offset) const {
#ifdef __CUDA_ARCH__
    uint32_t value;
    asm volatile("ld.shared.u16 %0, [%1];" : "=r"(value) : "r"(at + offset));
    return value;
#else
    return *reinterpret_cast<const uint16_t*>(at + offset);
#endif
  }

  // Returns the byte at `offset`, or the four bytes, of an array that begins at a multiple of its size, a power of two.
  DZ_HD uint32_t aligned_u8(uint32_t offset) const {
#ifdef __CUDA_ARCH__
    uint32_t value;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(at | offset));
    return value;
#else
    return *reinterpret_cast<const uint8_t*>(at | offset);
#endif
  }

  DZ_HD uint32_t aligned_u32(uint32_t offset) const {
#ifdef __CUDA_ARCH__
    uint32_t value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(at | offset));
    return value;
#else
    return *reinterpret_cast<const uint32_t*>(at | offset);
#endif
  }
};

}  // namespace dz

// Addresses of shared memory as instructions take them.
#pragma once

#include <cstdint>

namespace kdt::cuda::device {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// The same number, of which the compiler does not know where it comes from: it stays in a register
// instead of being computed again at each use.
template <typename T>
__device__ __forceinline__ T kept(T x) {
  if constexpr (sizeof(T) == 8)
    asm("mov.b64 %0, %0;" : "+l"(x));
  else
    asm("mov.b32 %0, %0;" : "+r"(x));
  return x;
}

// Four floats from an address that is a multiple of 16.
__device__ __forceinline__ void load_shared(uint32_t address, float (&x)[4]) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void store_shared_words(uint32_t address, uint32_t first,
                                                   uint32_t second) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(first), "r"(second)
               : "memory");
}

// Stores two floats at an address that is a multiple of 8.
__device__ __forceinline__ void store_shared_pair(uint32_t address, float first, float second) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(first), "f"(second)
               : "memory");
}

}  // namespace kdt::cuda::device

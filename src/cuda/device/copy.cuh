// Asynchronous copies from global to shared memory (cp.async, sm_80 and up).
#pragma once

#include <cstdint>

namespace kdt::cuda::device {

// 16 bytes, both sides 16-byte aligned; zeros when `valid` is false (`from` is not read then).
__device__ __forceinline__ void copy_async16(uint32_t to_shared, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to_shared), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}

// The same at kOffset bytes behind both addresses, which are encoded in the instruction; nothing
// when `valid` is false.
template <int kOffset>
__device__ __forceinline__ void copy_async16_at(uint32_t to_shared, const void* from, bool valid) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.u32 p, %3, 0;\n"
      "@p cp.async.cg.shared.global [%0 + %2], [%1 + %2], 16;\n"
      "}\n" ::"r"(to_shared),
      "l"(from), "n"(kOffset), "r"(static_cast<uint32_t>(valid))
      : "memory");
}

// 4 bytes, both sides aligned to as many.
__device__ __forceinline__ void copy_async4(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to_shared), "l"(from) : "memory");
}

// Ends this thread's current group of copies.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `kPending` of this thread's latest groups are under way.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace kdt::cuda::device

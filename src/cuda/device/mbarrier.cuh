// Shared-memory barriers that count arrivals and copied bytes (PTX mbarrier, sm_90).
#pragma once

#include <cstdint>

#include "cuda/device/shared_address.cuh"

namespace kdt::cuda::device {

using MBarrier = uint64_t;

__device__ __forceinline__ void mbarrier_init(MBarrier* barrier, uint32_t n_arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(n_arrivals));
}

// Makes initialized barriers visible to the copy engine; the threads still have to synchronize.
__device__ __forceinline__ void mbarrier_fence_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(MBarrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// The same, and `bytes` more are to be copied before the phase ends.
__device__ __forceinline__ void mbarrier_arrive_expect(MBarrier* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

// Whether the phase of `parity` (0 for the first, 1 for the second, ...) has ended; may suspend the
// thread for a short while.
__device__ __forceinline__ bool mbarrier_try_wait(MBarrier* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

__device__ __forceinline__ void mbarrier_wait(MBarrier* barrier, uint32_t parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}

}  // namespace kdt::cuda::device

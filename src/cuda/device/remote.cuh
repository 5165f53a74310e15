// Values sent between the CTAs of a cluster, and the cluster's barrier (sm_90 and up).
#pragma once

#include "cuda/device/mbarrier.cuh"

namespace kdt::cuda::device {

// One thread's: makes the barrier's first phase end when `bytes` have been sent to this CTA. The
// cluster may send after cluster_arrive() here and cluster_wait() there.
__device__ __forceinline__ void expect_arrival(MBarrier* barrier, uint32_t bytes) {
  mbarrier_init(barrier, 1);
  mbarrier_arrive_expect(barrier, bytes);
  mbarrier_fence_init();
}

// Stores `value` to the same variable in CTA `rank` and counts 4 bytes at the same barrier there.
__device__ __forceinline__ void send(uint32_t* variable, uint32_t value, MBarrier* barrier,
                                     int rank) {
  uint32_t to, at;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_address(variable)), "r"(rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(barrier)), "r"(rank));
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(to),
      "r"(value), "r"(at)
      : "memory");
}

// Returns when everything has arrived.
__device__ __forceinline__ void wait_arrival(MBarrier* barrier) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "wait:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
      "@!done bra wait;\n"
      "}\n" ::"r"(shared_address(barrier))
      : "memory");
}

// Without ordering of ordinary memory accesses.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

}  // namespace kdt::cuda::device

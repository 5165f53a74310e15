// The bulk tensor copy engine of sm_90: boxes of a 2-D array into shared memory.
#pragma once

#include <cuda.h>

#include "cuda/device/mbarrier.cuh"

namespace kdt::cuda::device {

__device__ __forceinline__ void tma_prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
}

// Copies the map's box at (column, row) to `shared`; its bytes count on `barrier`. Elements outside
// the array are zero-filled and count too.
__device__ __forceinline__ void tma_load_2d(void* shared, const CUtensorMap* map, int32_t column,
                                            int32_t row, MBarrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(shared)),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)), "r"(column), "r"(row)
      : "memory");
}

// Asks for the map's box to be brought into the L2.
__device__ __forceinline__ void tma_prefetch_2d(const CUtensorMap* map, int32_t column,
                                                int32_t row) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(
                   reinterpret_cast<uint64_t>(map)),
               "r"(column), "r"(row)
               : "memory");
}

// Orders this thread's ordinary writes to shared memory before later reads and writes of the tensor
// cores and the copy engine.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace kdt::cuda::device

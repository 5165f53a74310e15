// The bulk tensor copy engine of sm_90: boxes of a 2-D array into shared memory.
#pragma once

#include <cuda.h>

#include "cuda/device/mbarrier.cuh"

namespace kdt::cuda::device {

__device__ __forceinline__ void tma_prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
}

// All lanes of a warp call these together, with the same arguments; one of them does the work. The
// copy takes its operands from uniform registers, and inside a branch of one lane the compiler
// would fetch them in a loop of 300 cycles.

// Copies the map's box of `bytes` at (column, row) to `shared`, and arrives at `barrier`, on which
// its bytes count. Elements outside the array are zero-filled and count too.
__device__ __forceinline__ void tma_load_2d(void* shared, const CUtensorMap* map, int32_t column,
                                            int32_t row, MBarrier* barrier, uint32_t bytes) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%2], %5;\n"
      "@p cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];\n"
      "}\n" ::"r"(shared_address(shared)),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)), "r"(column), "r"(row),
      "r"(bytes)
      : "memory");
}

// The same into both blocks of a cluster of two, at the same places and counting on the barrier of
// each; the other block arrives at its own.
__device__ __forceinline__ void tma_load_2d_both(void* shared, const CUtensorMap* map,
                                                 int32_t column, int32_t row, MBarrier* barrier,
                                                 uint32_t bytes) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%2], %5;\n"
      "@p cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %6;\n"
      "}\n" ::"r"(shared_address(shared)),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)), "r"(column), "r"(row),
      "r"(bytes), "h"(static_cast<uint16_t>(3))
      : "memory");
}

// Where the other block copies: arrives at the barrier on which the bytes count here.
__device__ __forceinline__ void tma_expect(MBarrier* barrier, uint32_t bytes) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(bytes)
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

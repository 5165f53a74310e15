// The bulk copy engine of sm_90: boxes of a 2-D array, and runs of bytes, into shared memory.
#pragma once

#include <cuda.h>

#include "cuda/device/mbarrier.cuh"

namespace kdt::cuda::device {

__device__ __forceinline__ void tma_prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
}

// Copies the map's box at (column, row) to `shared`, and arrives at `barrier`, which then waits for
// `bytes`, those of the box and of others that are announced with it. Elements outside the array
// are zero-filled and count too.
//
// All lanes of a warp call it together, with the same arguments; one of them does the work. The
// copy takes its operands from uniform registers: in a branch of one lane the compiler fetches them
// in a loop, which takes 300 cycles, as long as the copy of a tile.
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

// The same without an arrival: its bytes are among those that another copy announces.
__device__ __forceinline__ void tma_load_2d_announced(void* shared, const CUtensorMap* map,
                                                      int32_t column, int32_t row,
                                                      MBarrier* barrier) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "@p cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];\n"
      "}\n" ::"r"(shared_address(shared)),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)), "r"(column), "r"(row)
      : "memory");
}

// Copies `bytes`, a multiple of 16, from global memory at `from` to `shared`, both aligned to 16;
// they count on `barrier`, to which somebody announces them (mbarrier_arrive_expect()). All lanes
// call it together, as above.
__device__ __forceinline__ void bulk_copy(void* shared, const void* from, uint32_t bytes,
                                          MBarrier* barrier) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "@p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n"
      "}\n" ::"r"(shared_address(shared)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier))
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

// Orders the writes to global memory that this thread may read before later reads of the copy
// engine.
__device__ __forceinline__ void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Orders this thread's ordinary writes to shared memory before later reads and writes of the tensor
// cores and the copy engine.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace kdt::cuda::device

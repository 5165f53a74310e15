// Matrix products of a warpgroup (128 threads, sm_90a): fp32 accumulators in registers.
//
// Accumulator fragment of a 64 x N tile: thread t holds, for each 8-column group j, columns
// 8 j + 2 (t % 4) + {0, 1} of row 16 (t / 32) + t % 32 / 4 in c[4 j + {0, 1}] and of that row + 8
// in c[4 j + {2, 3}]. An A fragment of 16 columns packs two such groups: the accumulators of
// columns 16 k .. 16 k + 15, converted in order, are the A registers of k-step k.
//
// All shared-memory tiles here are 64 x 64 elements of 2 bytes, 128-byte rows, the 16-byte chunk c
// of row r stored at chunk c ^ (r % 8) (the copy engine's 128-byte swizzle), 1024-byte aligned.
#pragma once

#include <cstdint>

#include "cuda/device/mbarrier.cuh"

namespace kdt::cuda::device {

inline constexpr int kTileBytes = 64 * 128;

// An operand in shared memory is told to the tensor cores by a descriptor. Its high word is that of
// all tiles here (swizzle; 8-row groups are 1024 bytes apart), so it is passed on as its low word.

// The low word for a tile whose rows are the rows of A or the columns of B (the row's elements are
// multiplied). A k-step of 16 elements is 32 bytes further.
__device__ __forceinline__ uint32_t row_major_low(const void* tile) {
  return 1 << 16 | (shared_address(tile) & 0x3ffff) >> 4;
}

// The low word for adjacent tiles whose columns are the columns of B, 64 a tile (the column's
// elements are multiplied): the next 64 columns are a tile further. A k-step of 16 rows is 2048
// bytes further.
__device__ __forceinline__ uint32_t column_major_low(const void* tiles) {
  return kTileBytes >> 4 << 16 | (shared_address(tiles) & 0x3ffff) >> 4;
}

// The descriptor of a place `bytes` further than that of `low`. In assembly, so that the sum is one
// instruction.
__device__ __forceinline__ uint64_t descriptor(uint32_t low, int bytes) {
  uint64_t both;
  asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low + (bytes >> 4)), "n"(1 << 30 | 1024 >> 4));
  return both;
}

// Before the first product of a batch that reads registers written since the last one.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most kPending of the latest committed batches are still running.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Gives registers of this warpgroup back to the SM, or takes some; a multiple of 8 a thread.
template <int kRegisters, bool kTake>
__device__ __forceinline__ void limit_registers() {
  if constexpr (kTake)
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
  else
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Whether `any` is so in the warpgroup, by named barrier `barrier`.
__device__ __forceinline__ bool any_in_warpgroup(bool any, int barrier) {
  uint32_t result;
  asm volatile(
      "{\n"
      ".reg .pred p, q;\n"
      "setp.ne.u32 p, %1, 0;\n"
      "barrier.cta.red.or.pred q, %2, 128, p;\n"
      "selp.u32 %0, 1, 0, q;\n"
      "}\n"
      : "=r"(result)
      : "r"(static_cast<uint32_t>(any)), "r"(barrier)
      : "memory");
  return result != 0;
}

// Keeps the compiler from moving reads or writes of `c` across this point.
template <int kN>
__device__ __forceinline__ void wgmma_touch(float (&c)[kN]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) asm volatile("" : "+f"(c[i])::"memory");
}

// 32 accumulators as operands 0 .. 31 of inline assembly.
#define KDT_REGISTERS_32                                                   \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define KDT_OPERANDS_8(i)                                                                     \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
      "+f"(c[i + 6]), "+f"(c[i + 7])
#define KDT_OPERANDS_32 KDT_OPERANDS_8(0), KDT_OPERANDS_8(8), KDT_OPERANDS_8(16), KDT_OPERANDS_8(24)
// 128 accumulators as operands 0 .. 127 of inline assembly.
#define KDT_REGISTERS_128                                                    \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "                       \
  "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "             \
  "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "             \
  "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "             \
  "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "             \
  "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, "             \
  "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, "     \
  "%108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, " \
  "%120, %121, %122, %123, %124, %125, %126, %127"
#define KDT_OPERANDS_128                                                                           \
  KDT_OPERANDS_32, KDT_OPERANDS_8(32), KDT_OPERANDS_8(40), KDT_OPERANDS_8(48), KDT_OPERANDS_8(56), \
      KDT_OPERANDS_8(64), KDT_OPERANDS_8(72), KDT_OPERANDS_8(80), KDT_OPERANDS_8(88),              \
      KDT_OPERANDS_8(96), KDT_OPERANDS_8(104), KDT_OPERANDS_8(112), KDT_OPERANDS_8(120)
// One product: `shape` n64 or n256, `operands` after the accumulators, `scale` the operand that
// says whether to add to them.
#define KDT_WGMMA(shape, type, registers, scale, operands)                                  \
  "{\n.reg .pred p;\nsetp.ne.b32 p, %" scale ", 0;\nwgmma.mma_async.sync.aligned.m64" shape \
  "k16.f32." type "." type " {" registers "}, " operands ";\n}\n"

struct Bf16 {};
struct Fp16 {};

// c (64 x 64) = a b^T + (accumulate ? c : 0), both operands in shared memory, rows multiplied.
template <typename Element>
__device__ __forceinline__ void wgmma_64x64(float* c, uint64_t a, uint64_t b, int accumulate) {
  if constexpr (__is_same(Element, Bf16)) {
    asm volatile(KDT_WGMMA("n64", "bf16", KDT_REGISTERS_32, "34", "%32, %33, p, 1, 1, 0, 0")
                 : KDT_OPERANDS_32
                 : "l"(a), "l"(b), "r"(accumulate));
  } else {
    asm volatile(KDT_WGMMA("n64", "f16", KDT_REGISTERS_32, "34", "%32, %33, p, 1, 1, 0, 0")
                 : KDT_OPERANDS_32
                 : "l"(a), "l"(b), "r"(accumulate));
  }
}

// c (64 x 256) = a b + (accumulate ? c : 0): a in shared memory, b four tiles of 64 columns.
template <typename Element>
__device__ __forceinline__ void wgmma_64x256(float* c, uint64_t a, uint64_t b, int accumulate) {
  if constexpr (__is_same(Element, Bf16)) {
    asm volatile(KDT_WGMMA("n256", "bf16", KDT_REGISTERS_128, "130", "%128, %129, p, 1, 1, 0, 1")
                 : KDT_OPERANDS_128
                 : "l"(a), "l"(b), "r"(accumulate));
  } else {
    asm volatile(KDT_WGMMA("n256", "f16", KDT_REGISTERS_128, "130", "%128, %129, p, 1, 1, 0, 1")
                 : KDT_OPERANDS_128
                 : "l"(a), "l"(b), "r"(accumulate));
  }
}

// The same with the A fragment in registers.
template <typename Element>
__device__ __forceinline__ void wgmma_64x256(float* c, const uint32_t* a, uint64_t b,
                                             int accumulate) {
  if constexpr (__is_same(Element, Bf16)) {
    asm volatile(KDT_WGMMA("n256", "bf16", KDT_REGISTERS_128, "133",
                           "{%128, %129, %130, %131}, %132, p, 1, 1, 1")
                 : KDT_OPERANDS_128
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
  } else {
    asm volatile(KDT_WGMMA("n256", "f16", KDT_REGISTERS_128, "133",
                           "{%128, %129, %130, %131}, %132, p, 1, 1, 1")
                 : KDT_OPERANDS_128
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
  }
}

#undef KDT_WGMMA
#undef KDT_REGISTERS_32
#undef KDT_REGISTERS_128
#undef KDT_OPERANDS_8
#undef KDT_OPERANDS_32
#undef KDT_OPERANDS_128

// Two floats as one register of two elements, `low` in the low half.
template <typename Element>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t packed;
  if constexpr (__is_same(Element, Bf16)) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

// Stores a 16 x 16 A fragment: lane l gives the address of row l % 8 of the 8 x 8 matrix l / 8, the
// matrices in the order of the registers.
__device__ __forceinline__ void store_matrix(uint32_t address, const uint32_t* a) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
               : "memory");
}

}  // namespace kdt::cuda::device

// The implementations of verify_attention behind the CUDA backend's entry.
//   simt   fp32 arithmetic, any shape and type; the truth on the GPU
//   mma    mma.sync, sm_90 and up
//   sm90   wgmma and TMA, sm_90a
// Tests and benchmarks get one of them by its name (ops/backend.h).
#pragma once

#include <cstdint>

#include "ops/backend.h"

namespace kdt::cuda {

// What an implementation may use of the device.
struct Machine {
  int n_ctas;        // multiprocessors; a kernel's CTAs each have one to themselves
  int shared_bytes;  // shared memory of a CTA
  bool hopper;       // sm_90
};
// A CTA's shared memory on sm_120; the mma implementation fits into it.
inline constexpr int kSmallSharedBytes = 101'376;

Machine this_machine();  // the current device

// Whether rows lie where the tensor-core implementations copy 16 bytes at a time.
inline bool rows_aligned(const VerifyAttentionParams& p) {
  const auto aligned = [](const void* rows) { return reinterpret_cast<uintptr_t>(rows) % 16 == 0; };
  return aligned(p.q) && aligned(p.kv_pages) && aligned(p.tail) && aligned(p.out);
}

// 16-byte aligned arrays, as sm90 below.
bool mma_supports(const VerifyAttentionParams& p, const Machine& machine);
size_t mma_workspace(const VerifyAttentionParams& p, const Machine& machine);
void mma_attention(const VerifyAttentionParams& p, const Machine& machine, Stream stream);

// Queries and keys of the same 16-bit type, latent 512 and rope 64, scale > 0, 16-byte aligned
// arrays; not batch_invariant.
bool sm90_supports(const VerifyAttentionParams& p, const Machine& machine);
size_t sm90_workspace(const Machine& machine);
void sm90_plan(const VerifyAttentionParams& p, const Machine& machine, Stream stream);
void sm90_attention(const VerifyAttentionParams& p, const Machine& machine, Stream stream);
// For these and for tests. A plan lies in device memory: the host keeps which rows and heads a
// workspace was planned for. require_plan() throws kInvalidArgument for others, and
// sm90_attention() with it. Thread-safe.
void note_plan(const VerifyAttentionParams& p);
void require_plan(const VerifyAttentionParams& p);

bool simt_supports(const VerifyAttentionParams& p, const Machine& machine);
void simt_attention(const VerifyAttentionParams& p, const Machine& machine, Stream stream);

}  // namespace kdt::cuda

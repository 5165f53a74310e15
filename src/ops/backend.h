// A backend: one table of function pointers that implements every op on one kind of memory.
// Callers use the free functions of the op headers (linear(backend, params), ...), which check the
// arguments once and then call through the table. Backends assume checked arguments. An entry is
// null where the backend lacks the op; the free functions then throw kUnsupported.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "ops/draft_attention.h"
#include "ops/draft_topk.h"
#include "ops/embedding.h"
#include "ops/kv_commit.h"
#include "ops/linear.h"
#include "ops/lse_merge.h"
#include "ops/moe.h"
#include "ops/next_round.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/silu_mul.h"
#include "ops/tree_accept.h"
#include "ops/tree_build.h"
#include "ops/verify_attention.h"

namespace kdt {

struct Backend {
  const char* name = nullptr;  // "cpu", "cuda"

  // Memory of the backend: 64-byte aligned, zero-filled, pages touched only when used. allocate
  // throws kOutOfResources naming the size.
  void* (*allocate)(size_t bytes) = nullptr;
  void (*deallocate)(void* data, size_t bytes) = nullptr;
  void (*copy_in)(void* device, const void* host, size_t bytes, Stream stream) = nullptr;
  void (*copy_out)(void* host, const void* device, size_t bytes, Stream stream) = nullptr;
  void (*copy)(void* to, const void* from, size_t bytes, Stream stream) = nullptr;  // within
  void (*synchronize)(Stream stream) = nullptr;

  // The device and its driver, for the headers of measurements. Null for the CPU.
  std::string (*describe)() = nullptr;

  // What `call` enqueues on the stream it is given, captured once: the result enqueues it again,
  // as one unit and with no host value of its own (a CUDA graph). Null where the backend has no
  // such thing.
  std::function<void(Stream)> (*capture)(const std::function<void(Stream)>& call) = nullptr;

  // Median microseconds of one `call`, which enqueues ops on the stream it is given: captured once,
  // replayed with cold caches. Null where the backend cannot replay.
  double (*time_cold)(const std::function<void(Stream)>& call, int n_warmups,
                      int n_repeats) = nullptr;

  LinearWeight (*pack_linear)(std::span<const LinearSource> groups) = nullptr;
  void (*linear)(const LinearParams&, Stream) = nullptr;
  void (*embedding)(const EmbeddingParams&, Stream) = nullptr;
  void (*rms_norm)(const RmsNormParams&, Stream) = nullptr;
  void (*rope)(const RopeParams&, Stream) = nullptr;
  void (*silu_mul)(const SiluMulParams&, Stream) = nullptr;
  void (*moe_route)(const MoeRouteParams&, Stream) = nullptr;
  size_t (*moe_experts_workspace)(const MoeExpertsParams&) = nullptr;
  void (*moe_experts)(const MoeExpertsParams&, Stream) = nullptr;
  size_t (*verify_attention_workspace)(const VerifyAttentionParams&) = nullptr;
  void (*verify_attention_plan)(const VerifyAttentionParams&, Stream) = nullptr;
  void (*verify_attention)(const VerifyAttentionParams&, Stream) = nullptr;
  void (*lse_merge)(const LseMergeParams&, Stream) = nullptr;
  size_t (*draft_attention_workspace)(const DraftAttentionParams&) = nullptr;
  void (*draft_attention)(const DraftAttentionParams&, Stream) = nullptr;
  size_t (*draft_topk_workspace)(const DraftTopkParams&) = nullptr;
  void (*draft_topk)(const DraftTopkParams&, Stream) = nullptr;
  void (*draft_topk_merge)(const DraftTopkMergeParams&, Stream) = nullptr;
  size_t (*tree_build_workspace)(const TreeBuildParams&) = nullptr;
  void (*tree_build)(const TreeBuildParams&, Stream) = nullptr;
  size_t (*tree_accept_workspace)(const TreeAcceptParams&) = nullptr;
  void (*tree_accept)(const TreeAcceptParams&, Stream) = nullptr;
  void (*kv_commit)(const KvCommitParams&, Stream) = nullptr;
  void (*next_round)(const NextRoundParams&, Stream) = nullptr;
};

// The backends of this build. The CPU backend always exists; the CUDA backend is null when the
// build or the machine has no CUDA.
const Backend& cpu_backend();
const Backend* cuda_backend();
// The CUDA backend with one implementation of verify_attention for every shape, instead of the one
// it would choose: "simt", "mma", "mma_small" (mma within the shared memory of sm_120), "sm90". It
// throws kUnsupported for shapes it does not take. Null without CUDA or when there is none of that
// name for this device.
const Backend* cuda_backend_with_attention(std::string_view implementation);

// Threads of the CPU backend's ops; 0: OpenMP's default, all cores unless OMP_NUM_THREADS says
// less. Results do not depend on it. Call before anything is allocated for the ops.
void set_cpu_threads(int threads);

}  // namespace kdt

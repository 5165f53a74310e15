// verify_attention: absorbed MLA (DeepSeek-V2, arXiv 2405.04434, section 2.1) of tree nodes over a
// paged prefix and the tree's own tail.
//
//   s   = scale * (q[:latent] . c_kv + q[latent:] . k_pe)         over the visible keys
//   out = softmax(s) c_kv,   lse = log sum exp(s)  (natural log)
//
// Node i of request b sees the whole prefix [0, prefix_len[b]) and those tail rows j whose bit is
// set in its ancestor words: its ancestors and itself, nothing else (DDTree, arXiv 2604.12989).
// With `ancestors` null the tail is a causal chain: node i sees tail rows 0 .. i.
// A row that sees nothing gives out = 0, lse = -inf.
//
// FP8 KV: an e4m3 code times the fp32 scale of its row, one scale for the latent and the rope part
// together (e4m3 keeps its relative precision over 2^14, so one range fits both). Applied in fp32,
// to the codes or to the key's score and weight: dequantizing costs no accuracy. A code of NaN is
// NaN.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "ops/row_batch.h"

namespace kdt {

struct Backend;

struct VerifyAttentionParams {
  RowBatch rows;
  const void* q = nullptr;              // [R, H, latent + rope], `q_dtype`
  const void* kv_pages = nullptr;       // [n_pages, 64, latent + rope], `kv_dtype`
  const void* tail = nullptr;           // [R, latent + rope], `kv_dtype`: row_offset[b] + node id
  const float* page_scales = nullptr;   // [n_pages, 64] with f8e4m3 KV, else unused
  const float* tail_scales = nullptr;   // [R] likewise
  const uint64_t* ancestors = nullptr;  // [R, n_words], bit j % 64 of word j / 64 = node j visible
  void* out = nullptr;                  // [R, H, latent], `out_dtype`; padding rows untouched
  float* lse = nullptr;                 // [R, H]
  int32_t n_words = 0;                  // W = ceil(N / 64)
  int32_t n_heads = 0;                  // H
  int32_t n_pages = 0;                  // of the cache; block tables name 0 .. n_pages - 1
  int32_t latent_dim = 512;             // kv_lora_rank
  int32_t rope_dim = 64;                // qk_rope_head_dim
  float scale = 0.0f;
  DType q_dtype = DType::kF32;   // f32, bf16, f16
  DType kv_dtype = DType::kF32;  // f32, bf16, f16, f8e4m3
  DType out_dtype = DType::kF32;
  // Whether a request must get the same bits alone and in any batch. The CPU backend always gives
  // them; CUDA then cuts keys by the request's own sizes, which leaves multiprocessors idle.
  bool batch_invariant = false;
  // From verify_attention_plan() to the last call that uses the plan, theirs alone.
  Workspace workspace;
};

void check(const VerifyAttentionParams& p);
size_t verify_attention_workspace(const Backend& backend, const VerifyAttentionParams& largest);

// What the calls of one batch have in common, the layers of a model, is computed once for them and
// left in the workspace: how the batch is dealt out to the device. Call it before
// verify_attention() on every backend, and again when the contents of row_offset, n_nodes,
// prefix_len or block_table have changed or anything else has written to the workspace. The calls
// that use a plan follow in stream order, one after the other. They may differ in the arrays that
// they read and write (not in the alignment of these to 16 bytes) and in a positive scale, in
// nothing else.
//
// Throws what verify_attention() does. That throws kInvalidArgument where CUDA needs a plan and the
// workspace was not planned for this RowBatch and n_heads. It cannot see changed contents or an
// overwritten workspace: results are undefined then, and the call may not return. A captured call
// uses the plan that is there when it is replayed; nothing is checked then.
void verify_attention_plan(const Backend& backend, const VerifyAttentionParams& p,
                           Stream stream = {});
void verify_attention(const Backend& backend, const VerifyAttentionParams& p, Stream stream = {});

}  // namespace kdt

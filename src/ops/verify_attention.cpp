#include "ops/verify_attention.h"

#include "ops/arguments.h"
#include "ops/backend.h"

namespace kdt {
namespace {
constexpr const char* kOp = "verify_attention";

void check_all(const Backend& backend, const VerifyAttentionParams& p) {
  check(p);
  require_workspace(kOp, p.workspace,
                    implemented(backend, &Backend::verify_attention_workspace, kOp)(p));
}
}  // namespace

void check(const VerifyAttentionParams& p) {
  require_rows(kOp, p.rows, RowFields::kOffsetsAndCounts);
  require(p.n_heads >= 1, kOp, "n_heads", p.n_heads, "1 or more");
  require(p.latent_dim >= 1, kOp, "latent_dim", p.latent_dim, "1 or more");
  require(p.rope_dim >= 0, kOp, "rope_dim", p.rope_dim, "0 or more");
  require(p.n_pages >= 0, kOp, "n_pages", p.n_pages, "0 or more");
  require_float(kOp, "q_dtype", p.q_dtype);
  const bool f8 = p.kv_dtype == DType::kF8E4M3;
  require(
      f8 || p.kv_dtype == DType::kF32 || p.kv_dtype == DType::kBF16 || p.kv_dtype == DType::kF16,
      kOp, "kv_dtype", dtype_name(p.kv_dtype), "f32, bf16, f16 or f8e4m3");
  require_float(kOp, "out_dtype", p.out_dtype);
  require(p.n_words >= (p.ancestors != nullptr), kOp, "n_words", p.n_words,
          "1 or more with ancestors");
  if (p.rows.n_requests == 0 || p.rows.n_rows == 0) return;
  require_pointer(kOp, "q", p.q);
  require_pointer(kOp, "tail", p.tail);
  require_pointer(kOp, "out", p.out);
  require_pointer(kOp, "lse", p.lse);
  if (f8) require_pointer(kOp, "tail_scales", p.tail_scales);
  if (p.n_pages > 0) require_pointer(kOp, "kv_pages", p.kv_pages);
  if (p.n_pages > 0 && f8) require_pointer(kOp, "page_scales", p.page_scales);
}

size_t verify_attention_workspace(const Backend& backend, const VerifyAttentionParams& largest) {
  return implemented(backend, &Backend::verify_attention_workspace, kOp)(largest);
}

void verify_attention_plan(const Backend& backend, const VerifyAttentionParams& p, Stream stream) {
  check_all(backend, p);
  implemented(backend, &Backend::verify_attention_plan, "verify_attention_plan")(p, stream);
}

void verify_attention(const Backend& backend, const VerifyAttentionParams& p, Stream stream) {
  check_all(backend, p);
  implemented(backend, &Backend::verify_attention, kOp)(p, stream);
}

}  // namespace kdt

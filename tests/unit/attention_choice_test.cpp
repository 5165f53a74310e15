// Which calls the tensor-core implementations of verify_attention take; no GPU is needed.
#include <gtest/gtest.h>

#include "cuda/verify_attention.h"

namespace kdt::cuda {
namespace {

constexpr Machine kMachine = {.n_ctas = 132, .shared_bytes = 232'448};

// Two requests of MLA; addresses that nobody reads.
VerifyAttentionParams good() {
  VerifyAttentionParams p;
  p.rows.n_requests = 2;
  p.rows.n_rows = 6;
  p.rows.max_blocks = 3;
  p.n_heads = 16;
  p.scale = 0.1f;
  p.q_dtype = p.kv_dtype = p.out_dtype = DType::kBF16;
  p.q = p.kv_pages = p.tail = p.out = reinterpret_cast<void*>(uintptr_t{1} << 20);
  return p;
}

template <typename Change>
bool mma_takes(const Change& change) {
  VerifyAttentionParams p = good();
  change(p);
  return mma_supports(p, kMachine);
}

TEST(AttentionChoice, CopiesOfSixteenBytesNeedAlignedRows) {
  void* const odd = reinterpret_cast<void*>((uintptr_t{1} << 20) + 8);
  EXPECT_TRUE(mma_takes([](auto&) {}));
  EXPECT_FALSE(mma_takes([&](auto& p) { p.q = odd; }));
  EXPECT_FALSE(mma_takes([&](auto& p) { p.kv_pages = odd; }));
  EXPECT_FALSE(mma_takes([&](auto& p) { p.tail = odd; }));
  EXPECT_FALSE(mma_takes([&](auto& p) { p.out = odd; }));
  EXPECT_TRUE(mma_takes([](auto& p) { p.kv_pages = nullptr; }));  // without pages
  EXPECT_TRUE(simt_supports(good(), kMachine));
}

TEST(AttentionChoice, TypesAndShapesOfMlaOnly) {
  EXPECT_TRUE(mma_takes([](auto& p) { p.kv_dtype = DType::kF8E4M3; }));
  EXPECT_FALSE(mma_takes([](auto& p) { p.q_dtype = DType::kF16; }));
  EXPECT_FALSE(mma_takes([](auto& p) { p.q_dtype = p.kv_dtype = DType::kF32; }));
  EXPECT_FALSE(mma_takes([](auto& p) { p.latent_dim = 256; }));
  EXPECT_FALSE(mma_takes([](auto& p) { p.rope_dim = 128; }));
  EXPECT_TRUE(mma_takes([](auto& p) { p.rows.n_requests = 512; }));
  EXPECT_FALSE(mma_takes([](auto& p) { p.rows.n_requests = 513; }));
}

}  // namespace
}  // namespace kdt::cuda

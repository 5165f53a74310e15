// Which calls the CUDA backend takes, and with which implementation of verify_attention; no GPU is
// needed.
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "cuda/ops.h"
#include "cuda/verify_attention.h"
#include "tests/errors.h"

namespace kdt::cuda {
namespace {

constexpr Machine kMachine = {.n_ctas = 132, .shared_bytes = 232'448, .hopper = true};

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

TEST(AttentionChoice, Sm90OnHopperWhereTheScheduleCounts) {
  const auto sm90_takes = [](const auto& change, Machine machine = kMachine) {
    VerifyAttentionParams p = good();
    change(p);
    return sm90_supports(p, machine);
  };
  EXPECT_TRUE(sm90_takes([](auto&) {}));
  EXPECT_FALSE(sm90_takes([](auto&) {}, {132, 232'448, false}));
  EXPECT_EQ(sm90_workspace({132, 232'448, false}), 0u);
  EXPECT_GT(sm90_workspace(kMachine), 0u);
  EXPECT_FALSE(sm90_takes([](auto& p) { p.kv_dtype = DType::kF8E4M3; }));
  EXPECT_FALSE(sm90_takes([](auto& p) { p.batch_invariant = true; }));
  EXPECT_FALSE(sm90_takes([](auto& p) { p.rows.max_blocks = 1 << 27; }));
}

TEST(AttentionChoice, APlanIsForItsRowsAndWorkspace) {
  char workspaces[2];
  int32_t lengths[2];
  VerifyAttentionParams p = good();
  p.workspace.data = &workspaces[0];
  const auto refused = [&](const auto& change) {
    VerifyAttentionParams other = p;
    change(other);
    test::expect_error(ErrorCode::kInvalidArgument, "call verify_attention_plan with them first",
                       [&] { require_plan(other); });
  };
  refused([](auto&) {});
  note_plan(p);
  require_plan(p);
  refused([&](auto& q) { q.workspace.data = &workspaces[1]; });
  refused([](auto& q) { ++q.n_heads; });
  refused([](auto& q) { ++q.rows.n_requests; });
  refused([](auto& q) { ++q.rows.n_rows; });
  refused([](auto& q) { ++q.rows.max_blocks; });
  refused([&](auto& q) { q.rows.row_offset = lengths; });
  refused([&](auto& q) { q.rows.n_nodes = lengths; });
  refused([&](auto& q) { q.rows.prefix_len = lengths; });
  refused([&](auto& q) { q.rows.block_table = lengths; });
  VerifyAttentionParams another_layer = p;
  another_layer.scale *= 2;
  another_layer.kv_pages = another_layer.tail = another_layer.q = another_layer.out = workspaces;
  require_plan(another_layer);
  VerifyAttentionParams other = p;
  other.workspace.data = &workspaces[1];
  ++other.n_heads;
  note_plan(other);
  require_plan(other);
  require_plan(p);
}

TEST(GridLimits, AreSaidInTheOpsWords) {
  const auto words = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  DraftTopkParams topk;
  topk.batch = 4096;
  topk.depth = 16;
  topk.vocab = topk.k = 64;
  EXPECT_EQ(words([&] { draft_topk(topk, {}); }),
            "draft_topk: batch * depth is 65536, expected at most 65535 on a GPU");
  DraftTopkMergeParams merge;
  merge.batch = 65536;
  EXPECT_EQ(words([&] { draft_topk_merge(merge, {}); }),
            "draft_topk_merge: batch is 65536, expected at most 65535 on a GPU");
  KvCommitParams commit;
  commit.rows.n_requests = 65536;
  EXPECT_EQ(words([&] { kv_commit(commit, {}); }),
            "kv_commit: n_requests is 65536, expected at most 65535 on a GPU");
}

}  // namespace
}  // namespace kdt::cuda

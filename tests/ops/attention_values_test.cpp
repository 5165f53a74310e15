// The implementations of verify_attention behind the CUDA backend: values that are not finite, and
// those of many magnitudes.
#include <array>
#include <cmath>
#include <map>

#include "tests/ops/attention_implementations.h"

namespace kdt::test {
namespace {

// Rows whose output has NaN must be those that see the bad rows, and no other row may change a bit.
void expect_nan_where(const AttentionProblem& a, const AttentionResult& got,
                      const AttentionResult& clean, const std::vector<bool>& hit) {
  const size_t per_row = static_cast<size_t>(a.heads) * a.latent;
  for (size_t row = 0; row < hit.size(); ++row) {
    size_t n_right = 0;
    for (size_t i = row * per_row; i < (row + 1) * per_row; ++i)
      n_right += hit[row] ? std::isnan(got.out[i]) : got.out[i] == clean.out[i];
    EXPECT_EQ(n_right, per_row) << "row " << row << (hit[row] ? ", which sees" : ", blind to")
                                << " the bad row";
    for (int h = 0; h < a.heads && !hit[row]; ++h)
      EXPECT_EQ(got.lse[row * a.heads + h], clean.lse[row * a.heads + h]) << "row " << row;
    if (testing::Test::HasFailure()) return;
  }
}

TEST_F(AttentionImplementations, NanStaysWithTheRowsThatSeeIt) {
  // heads, prefix, nodes of the first request: one item of rows and many, one tail block and two.
  const int shapes[][3] = {{4, 40, 7}, {16, 70, 40}, {2, 300, 100}, {8, 0, 65}, {64, 129, 9}};
  for (const DType type : {DType::kBF16, DType::kF16, DType::kF8E4M3}) {
    for (const auto& [heads, prefix, n] : shapes) {
      SCOPED_TRACE(testing::Message() << dtype_name(type) << ", " << heads << " heads, prefix "
                                      << prefix << ", " << n << " nodes");
      Random random(13);
      const bool fp8 = type == DType::kF8E4M3;
      AttentionProblem a = mla(heads, fp8 ? DType::kBF16 : type, type, DType::kF32);
      a.n_words = 2;
      add_request(a, random, prefix, n, random_parents(random, n, 6));
      add_request(a, random, 64, 2, {-1, 0});
      // What lies behind a prefix in its last page belongs to nobody.
      for (int i = prefix; i % 64 != 0; ++i) {
        const size_t row = static_cast<size_t>(a.block_table[i / 64]) * 64 + i % 64;
        std::fill_n(&a.pages[row * a.width()], a.width(), NAN);
      }
      std::map<std::string, AttentionResult> clean;
      AttentionCall call(*cuda_backend(), a);
      on_each(a, [&](const std::string& name, const Backend& backend) {
        clean[name] = call.run(backend, &scratch_);
      });
      for (const float bad_value : {NAN, kInf}) {
        if (fp8 && bad_value == kInf) continue;  // which has no code
        const int key = n / 3, query = n / 2 + 1, width = a.width();
        AttentionProblem bad = a;
        std::fill_n(&bad.tail[key * width], width, bad_value);
        std::fill_n(&bad.q[query * heads * width], heads * width, NAN);
        std::vector<bool> hit(n + 2);
        for (int row = 0; row < n; ++row) hit[row] = row == query || a.sees(0, row, key);
        AttentionCall bad_call(*cuda_backend(), bad);
        on_each(bad, [&](const std::string& name, const Backend& backend) {
          expect_nan_where(bad, bad_call.run(backend, &scratch_), clean[name], hit);
        });
      }
      if (prefix == 0) continue;
      // A bad prefix key spoils its request and no other.
      AttentionProblem bad = a;
      std::fill_n(&bad.pages[static_cast<size_t>(a.block_table[0]) * 64 * a.width()], a.width(),
                  NAN);
      std::vector<bool> hit(n + 2, true);
      hit[n] = hit[n + 1] = false;
      AttentionCall bad_call(*cuda_backend(), bad);
      on_each(bad, [&](const std::string& name, const Backend& backend) {
        expect_nan_where(bad, bad_call.run(backend, &scratch_), clean[name], hit);
      });
    }
  }
}

// In requests that have such items: the first NaN is in an earlier gang's part, the others are in a
// later one's, which is added.
TEST_F(AttentionImplementations, NanStaysWithItsRequestAmongItemsOfTwoGangs) {
  const AttentionProblem a = items_of_two_gangs(DType::kBF16, DType::kF32, 0);
  AttentionProblem bad = a;
  AttentionCall call(*cuda_backend(), a);
  std::vector<bool> hit(a.n_rows);
  for (const int b : {14, 20, 24}) {  // a key of the first page, of the last one, of the tail
    const int key = b == 14 ? 5 : 195, width = a.width();
    const size_t page = a.block_table[static_cast<size_t>(b) * a.max_blocks + key / 64];
    std::fill_n(b < 24 ? &bad.pages[(page * 64 + key % 64) * width]
                       : &bad.tail[static_cast<size_t>(a.row_offset[b]) * width],
                width, NAN);
    // Every row of the request sees it: in the tail it is the root.
    std::fill_n(hit.begin() + a.row_offset[b], 17, true);
  }
  AttentionCall bad_call(*cuda_backend(), bad);
  on_each(bad, [&](const std::string&, const Backend& backend) {
    expect_nan_where(bad, bad_call.run(backend, &scratch_), call.run(backend, &scratch_), hit);
  });
}

// One infinite element of a tail row: whether its score is inf or -inf depends on the query. A row
// is NaN where the CPU backend's is, and rows that are blind to the key do not change a bit.
TEST_F(AttentionImplementations, AnInfiniteElementOfTheTailIsNanWhereItIsOnTheCpu) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const auto& [heads, prefix, n] : {std::array{4, 40, 7}, {16, 70, 40}, {64, 129, 9}}) {
      SCOPED_TRACE(testing::Message() << dtype_name(type) << ", " << heads << " heads, prefix "
                                      << prefix << ", " << n << " nodes, seed 19");
      Random random(19);
      AttentionProblem a = mla(heads, type, type, DType::kF32);
      a.n_words = 1;
      add_request(a, random, prefix, n, random_parents(random, n, 6));
      AttentionCall call(*cuda_backend(), a);
      AttentionProblem bad = a;
      const int key = n / 3;
      bad.tail[key * a.width() + 300] = kInf;
      AttentionCall bad_call(*cuda_backend(), bad);
      const AttentionResult want = run(cpu_backend(), bad);
      on_each(a, [&](const std::string&, const Backend& backend) {
        const AttentionResult clean = call.run(backend, &scratch_);
        const AttentionResult got = bad_call.run(backend, &scratch_);
        size_t n_nan = 0, n_finite = 0, n_wrong = 0;
        for (size_t i = 0; i < got.out.size(); ++i) {
          const int row = static_cast<int>(i / a.latent / heads);
          n_nan += std::isnan(want.out[i]);
          n_finite += !std::isnan(got.out[i]);
          if (std::isnan(want.out[i])) n_wrong += !std::isnan(got.out[i]);
          if (!a.sees(0, row, key)) n_wrong += got.out[i] != clean.out[i];
        }
        EXPECT_EQ(n_wrong, 0u);
        EXPECT_GT(n_nan, 0u);
        EXPECT_GT(n_finite, 0u);
      });
    }
  }
}

// Queries and scales of keys far from 1, and queries of 0, next to one another.
TEST_F(AttentionImplementations, Fp8ScalesAndQueriesOfManyMagnitudes) {
  for (const auto& [heads, prefix, n] : {std::array{8, 200, 33}, {2, 70, 9}, {1, 33, 5}}) {
    SCOPED_TRACE(testing::Message()
                 << heads << " heads, prefix " << prefix << ", " << n << " nodes, seed 17");
    Random random(17);
    AttentionProblem a = mla(heads, DType::kBF16, DType::kF8E4M3, DType::kF32);
    a.n_words = 1;
    add_request(a, random, prefix, n, random_parents(random, n, 6));
    const auto rescale = [&](std::vector<float>& x, std::vector<float>* scales, int row,
                             float factor) {
      for (int d = 0; d < a.width(); ++d) x[static_cast<size_t>(row) * a.width() + d] *= factor;
      if (scales) (*scales)[row] *= factor;
    };
    for (int row = 0; row < n * heads; ++row)
      rescale(a.q, nullptr, row, row % 5 == 4 ? 0.0f : std::ldexp(1.0f, -20 * (row % 5)));
    for (int row = 0; row < a.n_pages * 64; ++row)
      rescale(a.pages, &a.page_scales, row, std::ldexp(1.0f, -2 * (row % 9)));
    for (int row = 0; row < n; ++row)
      rescale(a.tail, &a.tail_scales, row, std::ldexp(1.0f, -6 * (row % 4)));
    const AttentionResult want = truth(a);
    AttentionCall call(*cuda_backend(), a);
    on_each(a, [&](const std::string&, const Backend& backend) {
      expect_near(a, call.run(backend, &scratch_), want);
    });
  }
}

}  // namespace
}  // namespace kdt::test

#include "ops/embedding.h"

#include <gtest/gtest.h>

#include "base/dtype.h"
#include "ops/backend.h"
#include "tests/errors.h"
#include "tests/ops/random.h"
#include "tests/ops/weights.h"

namespace kdt::test {
namespace {

TEST(Embedding, CopiesRowsOfEveryTypeFromAnyAddress) {
  const int vocab = 37, hidden = 21;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    Random random(1);
    std::vector<uint8_t> table = {0};  // rows start at an odd address
    std::vector<float> values;
    for (int i = 0; i < vocab * hidden; ++i) {
      values.push_back(append_float(&table, dtype, random.normal()));
    }
    const std::vector<int32_t> tokens = {36, 0, 5, 5, 17};
    std::vector<float> out(tokens.size() * hidden, kPoison);
    embedding(cpu_backend(), {.tokens = tokens.data(),
                              .table = table.data() + 1,
                              .dtype = dtype,
                              .out = out.data(),
                              .n_rows = static_cast<int32_t>(tokens.size()),
                              .hidden = hidden,
                              .vocab = vocab});
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(out[i], values[tokens[i / hidden] * hidden + i % hidden])
          << dtype_name(dtype) << " row " << i / hidden << " column " << i % hidden;
    }
  }
}

TEST(Embedding, RefusesBadArguments) {
  const std::vector<int32_t> tokens = {3, 4};
  const std::vector<float> table(5 * 8);
  std::vector<float> out(2 * 8);
  const EmbeddingParams good = {.tokens = tokens.data(),
                                .table = table.data(),
                                .dtype = DType::kF32,
                                .out = out.data(),
                                .n_rows = 2,
                                .hidden = 8,
                                .vocab = 5};
  const auto refuse = [&](const std::string& part, auto change) {
    EmbeddingParams p = good;
    change(p);
    expect_error(ErrorCode::kInvalidArgument, "embedding: " + part,
                 [&] { embedding(cpu_backend(), p); });
  };
  const std::vector<int32_t> negative = {0, -1};
  refuse("tokens[1] is 4, expected 0..3", [](EmbeddingParams& p) { p.vocab = 4; });
  refuse("tokens[1] is -1, expected 0..4", [&](EmbeddingParams& p) { p.tokens = negative.data(); });
  refuse("tokens is null", [](EmbeddingParams& p) { p.tokens = nullptr; });
  refuse("table is null", [](EmbeddingParams& p) { p.table = nullptr; });
  refuse("out is null", [](EmbeddingParams& p) { p.out = nullptr; });
  refuse("n_rows is -1", [](EmbeddingParams& p) { p.n_rows = -1; });
  refuse("hidden is 0", [](EmbeddingParams& p) { p.hidden = 0; });
  refuse("vocab is 0", [](EmbeddingParams& p) { p.vocab = 0; });
  refuse("dtype is f8e4m3", [](EmbeddingParams& p) { p.dtype = DType::kF8E4M3; });
  embedding(cpu_backend(), {.table = table.data(), .n_rows = 0, .hidden = 8, .vocab = 5});
}

}  // namespace
}  // namespace kdt::test

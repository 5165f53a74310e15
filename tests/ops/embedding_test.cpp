#include "ops/embedding.h"

#include <gtest/gtest.h>

#include "base/dtype.h"
#include "ops/backend.h"
#include "tests/errors.h"
#include "tests/ops/arrays.h"
#include "tests/ops/on_backends.h"
#include "tests/ops/random.h"
#include "tests/ops/weights.h"

namespace kdt::test {
namespace {

TEST(EmbeddingOnTheCpu, CopiesRowsOfEveryTypeFromAnyAddress) {
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

class Embedding : public OnBackends {};
INSTANTIATE_ON_BACKENDS(Embedding);

TEST_P(Embedding, WidensRowsOfEveryType) {
  const int vocab = 37, hidden = 1500;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    Random random(2);
    std::vector<uint8_t> codes;
    std::vector<float> values;
    for (int i = 0; i < vocab * hidden; ++i)
      values.push_back(append_float(&codes, dtype, random.normal()));
    Array<uint8_t> table(backend(), codes);
    std::vector<int32_t> rows = {36, 0, 5, 5, 17};
    Array<int32_t> tokens(backend(), rows);
    auto out = poisoned<float>(backend(), rows.size() * hidden);
    EmbeddingParams p = {.tokens = tokens.data(),
                         .table = table.data(),
                         .dtype = dtype,
                         .out = out.data(),
                         .n_rows = static_cast<int32_t>(rows.size()),
                         .hidden = hidden,
                         .vocab = vocab};
    embedding(backend(), p);
    const std::vector<float> got = out.get();
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(got[i], values[rows[i / hidden] * hidden + i % hidden])
          << dtype_name(dtype) << " row " << i / hidden << " column " << i % hidden;
    if (is_cpu()) continue;
    rows[1] = vocab;
    rows[3] = -1;
    tokens = Array<int32_t>(backend(), rows);
    p.tokens = tokens.data();
    embedding(backend(), p);
    const std::vector<float> bad = out.get();
    for (size_t i = 0; i < bad.size(); ++i) {
      const size_t row = i / hidden;
      if (row == 1 || row == 3)
        ASSERT_TRUE(std::isnan(bad[i])) << "row " << row;
      else
        ASSERT_EQ(bad[i], got[i]) << "row " << row;
    }
  }
}

TEST(EmbeddingArguments, RefusesWhatIsOutside) {
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

#include "ops/kv_commit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "tests/errors.h"
#include "tests/ops/arrays.h"
#include "tests/ops/attention_problem.h"
#include "tests/ops/golden.h"
#include "tests/ops/on_backends.h"
#include "tests/ops/random.h"

namespace kdt::test {
namespace {

// Tail and pages as bytes: the op copies, it does not compute.
struct CommitProblem {
  int n_layers = 1, n_pages = 0, width = 1, max_blocks = 0, max_accepted = 0, n_rows = 0;
  int n_features = 0, hidden = 0, n_out = 0;
  int64_t tail_layer_stride = 0, feature_stride = 0;
  DType dtype = DType::kF32;
  std::vector<char> tail, pages;
  std::vector<float> features, tail_scales, page_scales;
  std::vector<int32_t> row_offset, prefix_len, block_table, accepted, n_accepted, feature_offset;
};

struct CommitResult {
  std::vector<char> pages;
  std::vector<float> features, page_scales;
};

CommitResult run(const Backend& backend, const CommitProblem& c) {
  Array<char> tail(backend, c.tail), pages(backend, c.pages);
  Array<float> features(backend, c.features);
  Array<float> tail_scales(backend, c.tail_scales), page_scales(backend, c.page_scales);
  Array<int32_t> row_offset(backend, c.row_offset), prefix_len(backend, c.prefix_len);
  Array<int32_t> block_table(backend, c.block_table), accepted(backend, c.accepted);
  Array<int32_t> n_accepted(backend, c.n_accepted), feature_offset(backend, c.feature_offset);
  auto out = poisoned<float>(backend, static_cast<size_t>(c.n_out) * c.n_features * c.hidden);
  const KvCommitParams p = {
      .rows = {.n_requests = static_cast<int32_t>(c.row_offset.size()),
               .n_rows = c.n_rows,
               .row_offset = row_offset.data(),
               .prefix_len = prefix_len.data(),
               .block_table = block_table.data(),
               .max_blocks = c.max_blocks},
      .tail = tail.data(),
      .pages = pages.data(),
      .accepted = accepted.data(),
      .n_accepted = n_accepted.data(),
      .max_accepted = c.max_accepted,
      .n_layers = c.n_layers,
      .n_pages = c.n_pages,
      .width = c.width,
      .tail_layer_stride = c.tail_layer_stride,
      .dtype = c.dtype,
      .tail_scales = tail_scales.data(),
      .page_scales = page_scales.data(),
      .features = c.features.empty() ? nullptr : features.data(),
      .features_out = out.data(),
      .feature_offset = feature_offset.data(),
      .n_features = c.n_features,
      .hidden = c.hidden,
      .feature_stride = c.feature_stride,
  };
  kv_commit(backend, p);
  return {pages.get(), out.get(), page_scales.get()};
}

// One element at a time.
CommitResult reference(const CommitProblem& c) {
  CommitResult r;
  r.pages = c.pages;
  r.page_scales = c.page_scales;
  r.features =
      poisoned<float>(cpu_backend(), static_cast<size_t>(c.n_out) * c.n_features * c.hidden).get();
  const size_t element = dtype_bytes(c.dtype);
  for (size_t b = 0; b < c.row_offset.size(); ++b) {
    for (int i = 0; i < c.n_accepted[b]; ++i) {
      const int node = c.accepted.empty() ? i : c.accepted[b * c.max_accepted + i];
      const int row = c.row_offset[b] + node, position = c.prefix_len[b] + i;
      const int page = c.block_table[b * c.max_blocks + position / 64];
      for (int layer = 0; layer < c.n_layers && !c.tail_scales.empty(); ++layer)
        r.page_scales[(layer * c.n_pages + page) * 64 + position % 64] =
            c.tail_scales[layer * c.n_rows + row];
      for (int layer = 0; layer < c.n_layers; ++layer)
        for (size_t x = 0; x < c.width * element; ++x)
          r.pages[((static_cast<size_t>(layer) * c.n_pages + page) * 64 + position % 64) * c.width *
                      element +
                  x] =
              c.tail[(layer * c.tail_layer_stride + static_cast<int64_t>(row) * c.width) * element +
                     x];
      for (int f = 0; f < c.n_features; ++f)
        for (int x = 0; x < c.hidden; ++x)
          r.features[(static_cast<size_t>(c.feature_offset[b] + i) * c.n_features + f) * c.hidden +
                     x] = c.features[f * c.feature_stride + row * c.hidden + x];
    }
  }
  return r;
}

// Of a random problem, at most.
struct Extent {
  int layers = 4, width = 40, batch = 4, hidden = 5;
};

CommitProblem random_problem(Random& random, const Extent& most = {}) {
  CommitProblem c;
  const DType types[] = {DType::kF32, DType::kBF16, DType::kF8E4M3};
  c.dtype = types[random.integer(0, 2)];
  c.n_layers = static_cast<int>(random.integer(0, most.layers));
  c.width = static_cast<int>(random.integer(1, most.width));
  c.max_accepted = static_cast<int>(random.integer(1, 70));
  c.max_blocks = 4;
  const int batch = static_cast<int>(random.integer(0, most.batch));
  const bool in_order = random.integer(0, 1);
  c.n_features = static_cast<int>(random.integer(0, 3));
  c.hidden = static_cast<int>(random.integer(1, most.hidden));
  for (int b = 0; b < batch; ++b) {
    const int n = static_cast<int>(random.integer(1, largest(80, 65))),
              n_accepted = static_cast<int>(random.integer(0, std::min(n, c.max_accepted)));
    c.row_offset.push_back(c.n_rows);
    c.n_rows += n;
    c.n_accepted.push_back(n_accepted);
    c.prefix_len.push_back(static_cast<int32_t>(random.integer(0, 256 - n_accepted)));
    c.feature_offset.push_back(c.n_out);
    c.n_out += n_accepted;
    std::vector<int> nodes;
    for (int i = 0; i < n; ++i) nodes.push_back(i);
    while (static_cast<int>(nodes.size()) > n_accepted)
      nodes.erase(nodes.begin() + random.integer(0, static_cast<int64_t>(nodes.size()) - 1));
    for (int i = 0; i < c.max_accepted && !in_order; ++i)
      c.accepted.push_back(i < n_accepted ? nodes[i] : -7);
    for (int i = 0; i < 4; ++i) c.block_table.push_back((b * 4 + i * 3 % 4 + 2) % (4 * batch + 2));
  }
  c.n_pages = 4 * batch + 2;
  ++c.n_out;  // a row that nobody writes
  c.tail_layer_stride = static_cast<int64_t>(c.n_rows) * c.width + random.integer(0, 9);
  c.feature_stride = static_cast<int64_t>(c.n_rows) * c.hidden + random.integer(0, 9);
  c.tail.resize((c.n_layers * c.tail_layer_stride + 16) * dtype_bytes(c.dtype));
  c.pages.resize(static_cast<size_t>(c.n_layers) * c.n_pages * 64 * c.width * dtype_bytes(c.dtype));
  for (char& x : c.tail) x = static_cast<char>(random.bits());
  for (char& x : c.pages) x = static_cast<char>(random.bits());
  if (c.dtype == DType::kF8E4M3 && random.integer(0, 3)) {
    c.tail_scales = random.normals(static_cast<size_t>(c.n_layers) * c.n_rows);
    c.page_scales = random.normals(static_cast<size_t>(c.n_layers) * c.n_pages * 64);
  }
  if (c.n_features) c.features = random.normals(c.n_features * c.feature_stride);
  return c;
}

class KvCommit : public OnBackends {};
INSTANTIATE_ON_BACKENDS(KvCommit);

TEST_P(KvCommit, RandomBatchesEqualTheDefinition) {
  const uint64_t n_seeds = seeds(is_cpu() ? 300 : 2000);
  for (uint64_t seed = 0; seed < n_seeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const CommitProblem c = random_problem(random);
    const CommitResult got = run(backend(), c), want = reference(c);
    ASSERT_TRUE(got.pages == want.pages);
    ASSERT_TRUE(got.features == want.features);
    ASSERT_TRUE(got.page_scales == want.page_scales);
  }
}

// Where the GPU gives a thread block several stripes of rows.
TEST_P(KvCommit, LargeBatchesOfWideRowsEqualTheDefinition) {
  for (uint64_t seed = 0; seed < seeds(8); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const CommitProblem c =
        random_problem(random, {.layers = 6, .width = 300, .batch = 24, .hidden = 1000});
    const CommitResult got = run(backend(), c), want = reference(c);
    ASSERT_TRUE(got.pages == want.pages);
    ASSERT_TRUE(got.features == want.features);
    ASSERT_TRUE(got.page_scales == want.page_scales);
  }
}

TEST_P(KvCommit, HundredRunsGiveTheSameBits) {
  Random random(3);
  const CommitProblem c = random_problem(random);
  const CommitResult first = run(backend(), c);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(run(backend(), c).pages == first.pages);
}

// Pages of more than 2^31 elements, of which a few rows are written and read.
TEST_P(KvCommit, PagesBeyondTwoToTheThirtyOneElements) {
  if (is_cpu()) GTEST_SKIP() << "takes 9 GB of memory";
  constexpr int kPages = 60000, kWidth = 576, kLayers = 2, kRows = 5;
  Random random(2);
  const size_t row_bytes = kWidth * 2, layer_bytes = size_t{kPages} * 64 * row_bytes;
  ASSERT_GT(layer_bytes / 2, size_t{1} << 31);
  std::vector<char> rows(kLayers * kRows * row_bytes);
  for (char& x : rows) x = static_cast<char>(random.bits());
  Array<char> tail(backend(), rows);
  Buffer<char> pages(backend(), kLayers * layer_bytes);
  Array<int32_t> offset(backend(), {0}), prefix(backend(), {62}), n_accepted(backend(), {3});
  Array<int32_t> table(backend(), {kPages - 1, 7}), accepted(backend(), {0, 2, 4});
  kv_commit(backend(), {.rows = {.n_requests = 1,
                                 .n_rows = kRows,
                                 .row_offset = offset.data(),
                                 .prefix_len = prefix.data(),
                                 .block_table = table.data(),
                                 .max_blocks = 2},
                        .tail = tail.data(),
                        .pages = pages.data(),
                        .accepted = accepted.data(),
                        .n_accepted = n_accepted.data(),
                        .max_accepted = 3,
                        .n_layers = kLayers,
                        .n_pages = kPages,
                        .width = kWidth,
                        .tail_layer_stride = kRows * kWidth,
                        .dtype = DType::kBF16});
  const size_t slots[] = {(kPages - 1) * 64 + 62, (kPages - 1) * 64 + 63, 7 * 64};
  std::vector<char> got(row_bytes);
  for (size_t layer = 0; layer < kLayers; ++layer) {
    for (size_t i = 0; i < 3; ++i) {
      const char* want = &rows[(layer * kRows + 2 * i) * row_bytes];
      backend().copy_out(got.data(), pages.data() + layer * layer_bytes + slots[i] * row_bytes,
                         row_bytes, {});
      backend().synchronize({});
      EXPECT_TRUE(std::equal(got.begin(), got.end(), want)) << layer << ' ' << i;
    }
  }
}

std::vector<char> codes(const std::vector<float>& values) {
  std::vector<char> bytes(values.size() * 2);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t code = f32_to_bf16(values[i]);
    std::memcpy(&bytes[i * 2], &code, 2);
  }
  return bytes;
}

CommitProblem golden_problem(const Golden& g) {
  CommitProblem c;
  const auto pages = g.shape("pages");
  c.n_layers = static_cast<int>(pages[0]);
  c.n_pages = static_cast<int>(pages[1]);
  c.width = static_cast<int>(pages[3]);
  c.n_rows = static_cast<int>(g.shape("tail")[1]);
  c.max_blocks = static_cast<int>(g.shape("block_table")[1]);
  c.max_accepted = g.scalar<int32_t>("max_accepted");
  c.tail_layer_stride = int64_t{c.n_rows} * c.width;
  c.dtype = DType::kBF16;
  c.tail = codes(g.floats("tail"));
  c.pages = codes(g.floats("pages"));
  c.row_offset = g.get<int32_t>("row_offset");
  c.prefix_len = g.get<int32_t>("prefix_len");
  c.block_table = g.get<int32_t>("block_table");
  c.n_accepted = g.get<int32_t>("n_accepted");
  if (g.has("accepted")) c.accepted = g.get<int32_t>("accepted");
  if (g.has("features")) {
    c.features = g.get<float>("features");
    c.feature_offset = g.get<int32_t>("feature_offset");
    c.n_features = static_cast<int>(g.shape("features")[0]);
    c.hidden = static_cast<int>(g.shape("features")[2]);
    c.n_out = static_cast<int>(g.shape("features_out")[0]);
    c.feature_stride = int64_t{c.n_rows} * c.hidden;
  }
  return c;
}

TEST_P(KvCommit, GoldenBundles) {
  for (const Golden& g : golden_bundles("kv_commit")) {
    SCOPED_TRACE(g.label());
    const CommitResult got = run(backend(), golden_problem(g));
    EXPECT_TRUE(got.pages == codes(g.floats("pages_after")));
    if (g.has("features")) {
      EXPECT_EQ(got.features, g.get<float>("features_out"));
    }
  }
}

// The requests of every bundle in one call, each with the pages of its own bundle.
TEST_P(KvCommit, GoldenRequestsMixed) {
  CommitProblem all;
  const auto bundles = golden_bundles("kv_commit");
  std::vector<std::vector<char>> tail(3), pages(3), want(3);
  for (const Golden& g : bundles) {
    const CommitProblem one = golden_problem(g);
    ASSERT_EQ(one.n_layers, 3);
    all.max_blocks = std::max(all.max_blocks, one.max_blocks);
    all.max_accepted = std::max(all.max_accepted, one.max_accepted);
    all.width = one.width;
    all.n_layers = 3;
    all.dtype = one.dtype;
  }
  for (const Golden& g : bundles) {
    const CommitProblem one = golden_problem(g);
    const std::vector<char> after = codes(g.floats("pages_after"));
    for (size_t b = 0; b < one.row_offset.size(); ++b) {
      all.row_offset.push_back(all.n_rows + one.row_offset[b]);
      all.prefix_len.push_back(one.prefix_len[b]);
      all.n_accepted.push_back(one.n_accepted[b]);
      for (int i = 0; i < all.max_blocks; ++i)
        all.block_table.push_back(
            i < one.max_blocks ? all.n_pages + one.block_table[b * one.max_blocks + i] : -1);
      for (int i = 0; i < all.max_accepted; ++i)
        all.accepted.push_back(i >= one.max_accepted  ? -1
                               : one.accepted.empty() ? i
                                                      : one.accepted[b * one.max_accepted + i]);
    }
    for (size_t layer = 0; layer < 3; ++layer) {
      const auto part = [&](const std::vector<char>& x) {
        const size_t n = x.size() / 3;
        return std::vector<char>(x.begin() + layer * n, x.begin() + (layer + 1) * n);
      };
      const auto extend = [](auto& x, const auto& y) { x.insert(x.end(), y.begin(), y.end()); };
      extend(tail[layer], part(one.tail));
      extend(pages[layer], part(one.pages));
      extend(want[layer], part(after));
    }
    all.n_rows += one.n_rows;
    all.n_pages += one.n_pages;
  }
  std::vector<char> expected;
  for (size_t layer = 0; layer < 3; ++layer) {
    all.tail.insert(all.tail.end(), tail[layer].begin(), tail[layer].end());
    all.pages.insert(all.pages.end(), pages[layer].begin(), pages[layer].end());
    expected.insert(expected.end(), want[layer].begin(), want[layer].end());
  }
  all.tail_layer_stride = int64_t{all.n_rows} * all.width;
  EXPECT_TRUE(run(backend(), all).pages == expected);
}

TEST(KvCommitArguments, RefusesWhatWouldWriteOutside) {
  CommitProblem good;
  good.n_pages = 2;
  good.max_blocks = 2;
  good.max_accepted = 3;
  good.n_rows = 4;
  good.tail_layer_stride = 4;
  good.tail.resize(16);
  good.pages.resize(2 * 64 * 4);
  good.row_offset = {1};
  good.prefix_len = {63};
  good.block_table = {1, 0};
  good.accepted = {0, 2, 1};
  good.n_accepted = {2};
  const auto with = [&](auto change) -> std::string {
    CommitProblem bad = good;
    change(bad);
    return test::message_of([&] { run(cpu_backend(), bad); }, ErrorCode::kInvalidArgument);
  };
  EXPECT_EQ(with([](auto&) {}), "no error");
  EXPECT_EQ(with([](auto& c) { c.block_table[1] = 2; }),
            "kv_commit: block_table is 2, expected 0..1 at block 1 of request 0");
  EXPECT_EQ(with([](auto& c) { c.accepted[1] = 3; }),
            "kv_commit: accepted is 3, expected 0..2 (rows from row_offset 1)");
  EXPECT_EQ(with([](auto& c) { c.accepted[0] = -1; }),
            "kv_commit: accepted is -1, expected 0..2 (rows from row_offset 1)");
  EXPECT_EQ(with([](auto& c) { c.n_accepted[0] = 4; }),
            "kv_commit: n_accepted is 4, expected 0..3 (max_accepted)");
  EXPECT_EQ(with([](auto& c) { c.prefix_len[0] = 127; }),
            "kv_commit: prefix_len is 127, expected 0..126 to commit 2 rows into 2 blocks");
  EXPECT_EQ(with([](auto& c) { c.row_offset[0] = -1; }),
            "kv_commit: row_offset is -1, expected 0 or more");
  EXPECT_EQ(with([](auto& c) { c.width = 0; }), "kv_commit: width is 0, expected 1 or more");
  EXPECT_EQ(with([](auto& c) {
              c.n_layers = 2;
              c.tail_layer_stride = 3;
            }),
            "kv_commit: tail_layer_stride is 3, expected at least 4 (n_rows x width)");
  EXPECT_EQ(with([](auto& c) { c.tail_scales = c.page_scales = {1.0f}; }),
            "kv_commit: dtype is f32, expected f8e4m3 with scales");
  EXPECT_EQ(with([](auto& c) {
              c.dtype = DType::kF8E4M3;
              c.tail_scales = {1.0f};
            }),
            "kv_commit: page_scales is null, expected an array");
}

}  // namespace
}  // namespace kdt::test

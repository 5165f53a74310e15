// The drafter against the golden bundles of whole DFlash forwards, and against itself over pages.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "checkpoint/expected_weights.h"
#include "draft/draft_model.h"
#include "tests/ops/golden.h"
#include "tests/ops/random.h"
#include "tests/ops/tolerance.h"
#include "tests/unit/checkpoint_files.h"

namespace kdt {
namespace {

using checkpoint::TestTensor;
using draft::DraftConventions;
using test::TempDir;
using Json = nlohmann::json;

// `values` gives the numbers of a tensor by its checkpoint name.
template <typename Config, typename Values>
void write_checkpoint(const TempDir& dir, const Json& config_json, const Config& config,
                      const Values& values) {
  std::vector<TestTensor> tensors;
  checkpoint::visit_expected_weights(config, [&](const checkpoint::ExpectedWeight& weight) {
    const std::string name = weight.name + (weight.is_linear ? ".weight" : "");
    tensors.push_back(
        checkpoint::float_tensor(name, "F32", weight.shape, values(name, weight.shape)));
  });
  dir.write("config.json", config_json.dump());
  dir.write("model.safetensors", checkpoint::safetensors(tensors));
}

// A target that lends the drafter what the bundle fixes: token t embeds to row t of `embedded`, and
// the head copies the hidden state to the first logits.
void write_target(const TempDir& dir, const checkpoint::DraftConfig& draft,
                  const std::vector<float>& embedded) {
  Json json = Json::parse(std::ifstream(std::string(KDT_SOURCE_DIR) +
                                        "/tests/golden/deepseek_v3_tiny/plain_f32/config.json"));
  json["hidden_size"] = draft.hidden_size;
  json["vocab_size"] = draft.vocab_size;
  json["num_hidden_layers"] = json["first_k_dense_replace"] = draft.n_target_layers;
  const auto config = checkpoint::parse_target_config("config.json", json.dump());
  write_checkpoint(dir, json, config,
                   [&](const std::string& name, const std::vector<int64_t>& shape) {
                     int64_t numel = 1;
                     for (const int64_t size : shape) numel *= size;
                     std::vector<float> values(numel);
                     if (name == "model.embed_tokens.weight")
                       std::copy(embedded.begin(), embedded.end(), values.begin());
                     for (int64_t i = 0; name == "lm_head.weight" && i < shape[1]; ++i)
                       values[i * shape[1] + i] = 1.0f;
                     return values;
                   });
}

// The drafter of a bundle, loaded from checkpoint directories.
struct Pair {
  explicit Pair(const test::Golden& golden, const DraftConventions& conventions) {
    const Json json = Json::parse(golden.metadata("config"));
    const auto config = checkpoint::parse_draft_config("config.json", json.dump());
    write_checkpoint(draft_dir, json, config,
                     [&](const std::string& name, const auto&) { return golden.floats(name); });
    write_target(target_dir, config, golden.floats("embedded"));
    const auto capture = draft::DraftModel::capture_layers(draft_dir.path(), target_dir.path());
    target.emplace(cpu_backend(), target_dir.path(), capture, model::LoadProgress{});
    draft.emplace(cpu_backend(), draft_dir.path(), *target, conventions, model::LoadProgress{});
  }

  TempDir target_dir, draft_dir;
  std::optional<model::TargetModel> target;
  std::optional<draft::DraftModel> draft;
};

// One request: the features of its committed tokens and the pages that its context goes to.
struct Context {
  std::vector<float> features;
  std::vector<int32_t> pages;
};

// Commits the contexts `chunk` tokens at a time, request b one more than b - 1, then drafts tokens
// 0 .. block - 1 behind each. Pages of nobody hold NaN. Returns the logits [B, L, vocab].
std::vector<float> run(draft::DraftModel& draft, const std::vector<Context>& contexts,
                       int32_t chunk, draft::ContextCache* cache) {
  const int32_t n_requests = static_cast<int32_t>(contexts.size()), width = draft.feature_width();
  const int32_t block = draft.depth() + 1;
  std::vector<int32_t> row_offset(n_requests), n_nodes(n_requests), cached(n_requests);
  std::vector<int32_t> block_table;
  for (const Context& context : contexts)
    for (size_t i = 0; i < 4; ++i)
      block_table.push_back(i < context.pages.size() ? context.pages[i] : -1);
  draft.plan(1024, n_requests);
  const auto rows = [&](int32_t n_rows) -> RowBatch {
    return {.n_requests = n_requests,
            .n_rows = n_rows,
            .row_offset = row_offset.data(),
            .n_nodes = n_nodes.data(),
            .prefix_len = cached.data(),
            .block_table = block_table.data(),
            .max_blocks = 4};
  };
  for (Buffer<float>* pages : {&cache->k_pages, &cache->v_pages})
    std::fill_n(pages->data(), pages->size(), test::kPoison);

  std::vector<int32_t> tokens, positions;
  do {
    std::vector<float> features;
    positions.clear();
    for (int32_t b = 0; b < n_requests; ++b) {
      const auto& all = contexts[b].features;
      const int32_t left = static_cast<int32_t>(all.size()) / width - cached[b];
      row_offset[b] = static_cast<int32_t>(positions.size());
      n_nodes[b] = std::min(left, chunk + b);
      features.insert(features.end(), all.begin() + cached[b] * width,
                      all.begin() + (cached[b] + n_nodes[b]) * width);
      for (int32_t i = 0; i < n_nodes[b]; ++i) positions.push_back(cached[b] + i);
    }
    draft.extend_context(features.data(), positions.data(),
                         rows(static_cast<int32_t>(positions.size())), cache);
    for (int32_t b = 0; b < n_requests; ++b) cached[b] += n_nodes[b];
  } while (!positions.empty());

  for (int32_t b = 0; b < n_requests; ++b) {
    row_offset[b] = b * block;
    n_nodes[b] = block;
    for (int32_t i = 0; i < block; ++i) {
      tokens.push_back(i);
      positions.push_back(cached[b] + i);
    }
  }
  const float* logits =
      draft.draft(tokens.data(), positions.data(), rows(n_requests * block), *cache);
  return {logits, logits + n_requests * draft.depth() * draft.config().vocab_size};
}

// The hidden states [L, hidden] of the masked positions.
std::vector<float> hidden_of(const draft::DraftModel& draft, const std::vector<float>& logits) {
  const int64_t vocab = draft.config().vocab_size, hidden = draft.config().hidden_size;
  std::vector<float> states;
  for (int64_t row = 0; row < draft.depth(); ++row)
    states.insert(states.end(), logits.begin() + row * vocab,
                  logits.begin() + row * vocab + hidden);
  return states;
}

// Keys or values [n_layers, 20, K*S] of the bundle's tokens, in the third of three pages.
std::vector<float> context_of(const draft::DraftModel& draft, const Buffer<float>& pages) {
  const auto& c = draft.config();
  const int64_t width = c.n_kv_heads * c.head_dim, page = kPageTokens * width;
  std::vector<float> rows;
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const float* first = pages.data() + (layer * 3 + 2) * page;
    rows.insert(rows.end(), first, first + 20 * width);
  }
  return rows;
}

struct Result {
  std::vector<float> hidden, ctx_k, ctx_v;
};

Result forward(const test::Golden& golden, const DraftConventions& conventions, int32_t chunk) {
  Pair pair(golden, conventions);
  draft::ContextCache cache = pair.draft->make_cache(3);
  const auto logits = run(*pair.draft, {{golden.floats("features"), {2}}}, chunk, &cache);
  return {hidden_of(*pair.draft, logits), context_of(*pair.draft, cache.k_pages),
          context_of(*pair.draft, cache.v_pages)};
}

double error_of(const std::vector<float>& found, const std::vector<float>& want) {
  EXPECT_EQ(found.size(), want.size());
  return test::relative_error(found.data(), want.data(), want.size());
}

std::vector<float> masked_rows(const test::Golden& golden) {
  std::vector<float> hidden = golden.floats("hidden");
  hidden.erase(hidden.begin(), hidden.begin() + golden.shape("hidden")[1]);  // the root's row
  return hidden;
}

test::Golden bundle(const std::string& name) {
  return test::Golden(std::string(KDT_SOURCE_DIR) + "/tests/golden/dflash." + name + ".kdtr");
}

TEST(GoldenDFlash, EveryBundleInChunks) {
  for (const test::Golden& golden : test::golden_bundles("dflash"))
    for (const int32_t chunk : {1, 7, 20}) {
      SCOPED_TRACE(fmt::format("{} chunk {}", golden.label(), chunk));
      const Result found =
          forward(golden, {.causal_sliding_layers = golden.flag("causal_sliding")}, chunk);
      const double bound = test::tolerance(DType::kF32, 64);  // the features' width
      EXPECT_LE(error_of(found.ctx_k, golden.floats("ctx_k")), bound);
      EXPECT_LE(error_of(found.ctx_v, golden.floats("ctx_v")), bound);
      EXPECT_LE(error_of(found.hidden, masked_rows(golden)), bound);
    }
}

// Each disputed convention changes what it should, and nothing where it does not apply.
TEST(GoldenDFlash, ConventionsDecide) {
  using checkpoint::DraftAmplitude;
  const auto error = [](const char* name, const DraftConventions& conventions) {
    const test::Golden golden = bundle(name);
    return error_of(forward(golden, conventions, 20).hidden, masked_rows(golden));
  };
  const double close = test::tolerance(DType::kF32, 64);
  EXPECT_LE(error("full", {.causal_sliding_layers = false}), close);
  EXPECT_GT(error("sliding_causal", {.causal_sliding_layers = false}), 0.01);
  EXPECT_GT(error("sliding_symmetric", {.causal_sliding_layers = true}), 0.01);
  EXPECT_LE(error("full", {.amplitude = DraftAmplitude::kFullMscale}), close);
  EXPECT_LE(error("yarn", {.amplitude = DraftAmplitude::kFullMscale}), close);
  EXPECT_GT(error("yarn", {.amplitude = DraftAmplitude::kMscaleRatio}), 0.01);
  EXPECT_LE(error("deepseek_yarn", {.amplitude = DraftAmplitude::kMscaleRatio}), close);
  EXPECT_GT(error("deepseek_yarn", {.amplitude = DraftAmplitude::kFullMscale}), 0.01);
}

// Contexts that end before, on and behind page borders, grown side by side over scattered pages,
// draft the bits of each context alone, in one chunk and in order.
TEST(GoldenDFlash, ContextsCrossPages) {
  constexpr uint64_t kSeed = 51;
  Pair pair(bundle("sliding_causal"), {});
  test::Random random(kSeed);
  std::vector<Context> contexts;
  std::vector<int32_t> free_pages = {7, 2, 9, 0, 5, 11, 3, 8, 1, 10, 6, 4};
  for (const int32_t n : {150, 64, 63, 65, 128, 1}) {
    Context context{random.normals(n * pair.draft->feature_width()), {}};
    for (int32_t page = 0; page * kPageTokens < n; ++page) {
      context.pages.push_back(free_pages.back());
      free_pages.pop_back();
    }
    contexts.push_back(std::move(context));
  }
  draft::ContextCache cache = pair.draft->make_cache(12);
  const std::vector<float> together = run(*pair.draft, contexts, 5, &cache);
  const size_t per_request = together.size() / contexts.size();
  for (size_t b = 0; b < contexts.size(); ++b) {
    contexts[b].pages = {0, 1, 2};
    const std::vector<float> alone = run(*pair.draft, {contexts[b]}, 1000, &cache);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + b * per_request))
        << "request " << b << " seed " << kSeed;
    EXPECT_TRUE(std::all_of(alone.begin(), alone.end(), [](float x) { return std::isfinite(x); }));
  }
}

}  // namespace
}  // namespace kdt

#include "draft/draft_model.h"

#include <algorithm>
#include <cmath>

#include "model/layers.h"

namespace kdt::draft {

using model::norm_rows;
using model::project;

namespace {

DraftLayer load_layer(model::WeightLoader& loader, const checkpoint::DraftConfig& c,
                      int64_t index) {
  const checkpoint::ExpectedDraftLayer weights = checkpoint::expected_layer(c, index);
  DraftLayer layer;
  layer.input_norm = loader.vector(weights.input_norm);
  layer.post_norm = loader.vector(weights.post_norm);
  layer.q = loader.linear(weights.q);
  layer.k = loader.linear(weights.k);
  layer.v = loader.linear(weights.v);
  layer.o = loader.linear(weights.o);
  layer.q_norm = loader.vector(weights.q_norm);
  layer.k_norm = loader.vector(weights.k_norm);
  layer.gate = loader.linear(weights.mlp.gate);
  layer.up = loader.linear(weights.mlp.up);
  layer.down = loader.linear(weights.mlp.down);
  return layer;
}

}  // namespace

std::vector<int64_t> DraftModel::capture_layers(const std::string& draft_dir,
                                                const std::string& target_dir) {
  const checkpoint::DraftConfig config = checkpoint::load_draft_config(draft_dir);
  checkpoint::check_pair(checkpoint::load_target_config(target_dir), config);
  return config.target_layer_ids;
}

DraftModel::DraftModel(const Backend& backend, const std::string& dir,
                       const model::TargetModel& target, const DraftConventions& conventions,
                       model::LoadProgress progress)
    : backend_(backend),
      target_(target),
      config_(checkpoint::load_draft_config(dir)),
      conventions_(conventions) {
  const checkpoint::Checkpoint checkpoint(dir);
  const checkpoint::QuantizationConfig dense;
  model::WeightLoader loader(backend, checkpoint, dense, std::move(progress));
  const checkpoint::ExpectedDraft weights = checkpoint::expected_weights(config_);
  fc_ = loader.linear(weights.fc);
  hidden_norm_ = loader.vector(weights.hidden_norm);
  norm_ = loader.vector(weights.norm);
  for (int64_t i = 0; i < config_.n_layers; ++i) layers_.push_back(load_layer(loader, config_, i));
  loader.finish();

  const std::vector<float> inv_freq = checkpoint::inv_freq(config_.rope);
  inv_freq_ = Buffer<float>(backend, inv_freq.size());
  backend.copy_in(inv_freq_.data(), inv_freq.data(), inv_freq.size() * sizeof(float), {});
  rope_amplitude_ = checkpoint::draft_rope_amplitude(config_.rope, conventions.amplitude);
}

int32_t DraftModel::feature_width() const {
  return static_cast<int32_t>(config_.target_layer_ids.size() * config_.hidden_size);
}

size_t DraftModel::kv_bytes_per_token() const {
  return 2 * sizeof(float) * config_.n_layers * config_.n_kv_heads * config_.head_dim;
}

void DraftModel::plan(int32_t max_context_rows, int32_t max_requests) {
  const auto& c = config_;
  const int32_t block_rows = max_requests * static_cast<int32_t>(c.block_size);
  const int32_t max_rows = std::max(block_rows, max_context_rows);
  const auto floats = [&](int64_t n_rows, int64_t per_row) {
    return Buffer<float>(backend_, static_cast<size_t>(n_rows * per_row));
  };
  const int64_t kv_width = c.n_kv_heads * c.head_dim;
  x_ = floats(max_rows, c.hidden_size);
  h_ = floats(max_rows, c.hidden_size);
  q_ = floats(block_rows, c.n_heads * c.head_dim);
  k_ = floats(block_rows, kv_width);
  v_ = floats(block_rows, kv_width);
  attention_ = floats(block_rows, c.n_heads * c.head_dim);
  gate_ = floats(block_rows, c.intermediate_size);
  up_ = floats(block_rows, c.intermediate_size);
  context_k_ = floats(max_context_rows, c.n_layers * kv_width);
  context_v_ = floats(max_context_rows, c.n_layers * kv_width);
  logits_ = floats(max_requests * depth(), c.vocab_size);
  DraftAttentionParams largest{.n_heads = static_cast<int32_t>(c.n_heads),
                               .n_kv_heads = static_cast<int32_t>(c.n_kv_heads),
                               .head_dim = static_cast<int32_t>(c.head_dim)};
  largest.rows = {.n_requests = max_requests, .n_rows = block_rows};
  workspace_ = Buffer<uint8_t>(backend_, draft_attention_workspace(backend_, largest));
}

ContextCache DraftModel::make_cache(int32_t n_pages) const {
  const size_t floats = static_cast<size_t>(config_.n_layers) * n_pages * kPageTokens *
                        config_.n_kv_heads * config_.head_dim;
  return {Buffer<float>(backend_, floats), Buffer<float>(backend_, floats), n_pages};
}

void DraftModel::rotate(float* x, int32_t n_heads, const int32_t* positions, int32_t n_rows) {
  const int64_t head = config_.head_dim;
  rope(backend_, {.x = x,
                  .y = x,
                  .positions = positions,
                  .inv_freq = inv_freq_.data(),
                  .n_rows = n_rows,
                  .n_heads = n_heads,
                  .dim = static_cast<int32_t>(head),
                  .x_row_stride = n_heads * head,
                  .x_head_stride = head,
                  .y_row_stride = n_heads * head,
                  .y_head_stride = head,
                  .amplitude = rope_amplitude_,
                  .interleaved = false});
}

// K = rope(k_norm(k_proj x)), V = v_proj x, both [n_rows, K*S].
void DraftModel::layer_kv(const DraftLayer& layer, const float* x, const int32_t* positions,
                          int32_t n_rows, float* k, float* v) {
  const int32_t heads = static_cast<int32_t>(config_.n_kv_heads);
  const int64_t width = heads * config_.head_dim;
  project(backend_, layer.k, x, config_.hidden_size, k, width, n_rows);
  project(backend_, layer.v, x, config_.hidden_size, v, width, n_rows);
  rms_norm(backend_, {.x = k,
                      .weight = layer.k_norm.data(),
                      .y = k,
                      .n_rows = n_rows,
                      .n_heads = heads,
                      .dim = static_cast<int32_t>(config_.head_dim),
                      .x_row_stride = width,
                      .y_row_stride = width,
                      .eps = config_.rms_norm_eps});
  rotate(k, heads, positions, n_rows);
}

void DraftModel::extend_context(const float* features, const int32_t* positions,
                                const RowBatch& rows, ContextCache* cache) {
  const int32_t n_rows = rows.n_rows, n_layers = static_cast<int32_t>(config_.n_layers);
  const int64_t hidden = config_.hidden_size, width = config_.n_kv_heads * config_.head_dim;
  const int64_t layer_stride = n_rows * width;
  project(backend_, fc_, features, feature_width(), x_.data(), hidden, n_rows);
  norm_rows(backend_, hidden_norm_, x_.data(), hidden, x_.data(), hidden, n_rows,
            config_.rms_norm_eps);
  for (int32_t i = 0; i < n_layers; ++i)
    layer_kv(layers_[i], x_.data(), positions, n_rows, context_k_.data() + i * layer_stride,
             context_v_.data() + i * layer_stride);

  KvCommitParams commit{.rows = rows,
                        .tail = context_k_.data(),
                        .pages = cache->k_pages.data(),
                        .n_accepted = rows.n_nodes,
                        .max_accepted = n_rows,
                        .n_layers = n_layers,
                        .n_pages = cache->n_pages,
                        .width = static_cast<int32_t>(width),
                        .tail_layer_stride = layer_stride};
  kv_commit(backend_, commit);
  commit.tail = context_v_.data();
  commit.pages = cache->v_pages.data();
  kv_commit(backend_, commit);
}

// x += attention(norm(x)), then x += mlp(norm(x)).
void DraftModel::run_layer(int64_t i, const int32_t* positions, const RowBatch& rows,
                           const ContextCache& cache) {
  const auto& c = config_;
  const int32_t n_rows = rows.n_rows, n_heads = static_cast<int32_t>(c.n_heads);
  const int64_t hidden = c.hidden_size, q_width = c.n_heads * c.head_dim;
  const int64_t kv_page = static_cast<int64_t>(kPageTokens) * c.n_kv_heads * c.head_dim;
  const DraftLayer& layer = layers_[i];
  norm_rows(backend_, layer.input_norm, x_.data(), hidden, h_.data(), hidden, n_rows,
            c.rms_norm_eps);
  project(backend_, layer.q, h_.data(), hidden, q_.data(), q_width, n_rows);
  rms_norm(backend_, {.x = q_.data(),
                      .weight = layer.q_norm.data(),
                      .y = q_.data(),
                      .n_rows = n_rows,
                      .n_heads = n_heads,
                      .dim = static_cast<int32_t>(c.head_dim),
                      .x_row_stride = q_width,
                      .y_row_stride = q_width,
                      .eps = c.rms_norm_eps});
  rotate(q_.data(), n_heads, positions, n_rows);
  layer_kv(layer, h_.data(), positions, n_rows, k_.data(), v_.data());
  const bool sliding = c.layer_is_sliding[i];
  draft_attention(backend_, {.rows = rows,
                             .q = q_.data(),
                             .k = k_.data(),
                             .v = v_.data(),
                             .k_pages = cache.k_pages.data() + i * kv_page * cache.n_pages,
                             .v_pages = cache.v_pages.data() + i * kv_page * cache.n_pages,
                             .out = attention_.data(),
                             .n_pages = cache.n_pages,
                             .n_heads = n_heads,
                             .n_kv_heads = static_cast<int32_t>(c.n_kv_heads),
                             .head_dim = static_cast<int32_t>(c.head_dim),
                             .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)),
                             .sliding_window = sliding ? static_cast<int32_t>(c.sliding_window) : 0,
                             .causal = sliding && conventions_.causal_sliding_layers,
                             .workspace = {workspace_.data(), workspace_.size()}});
  project(backend_, layer.o, attention_.data(), q_width, x_.data(), hidden, n_rows, true);

  norm_rows(backend_, layer.post_norm, x_.data(), hidden, h_.data(), hidden, n_rows,
            c.rms_norm_eps);
  project(backend_, layer.gate, h_.data(), hidden, gate_.data(), c.intermediate_size, n_rows);
  project(backend_, layer.up, h_.data(), hidden, up_.data(), c.intermediate_size, n_rows);
  silu_mul(backend_, {.gate = gate_.data(),
                      .up = up_.data(),
                      .y = gate_.data(),
                      .n = n_rows * c.intermediate_size});
  project(backend_, layer.down, gate_.data(), c.intermediate_size, x_.data(), hidden, n_rows, true);
}

const float* DraftModel::draft(const int32_t* block_tokens, const int32_t* block_positions,
                               const RowBatch& rows, const ContextCache& cache) {
  const auto& c = config_;
  const model::TargetWeights& target = target_.weights();
  const int64_t hidden = c.hidden_size;
  embedding(backend_, {.tokens = block_tokens,
                       .table = target.embedding.data(),
                       .dtype = target.embedding_dtype,
                       .out = x_.data(),
                       .n_rows = rows.n_rows,
                       .hidden = static_cast<int32_t>(hidden),
                       .vocab = static_cast<int32_t>(c.vocab_size)});
  for (int64_t i = 0; i < c.n_layers; ++i) run_layer(i, block_positions, rows, cache);
  // The root's row predicts nothing: rows 1 .. L of each block, side by side.
  const int32_t block = static_cast<int32_t>(c.block_size);
  for (int32_t b = 0; b < rows.n_requests; ++b)
    norm_rows(backend_, norm_, x_.data() + (b * block + 1) * hidden, hidden,
              h_.data() + b * depth() * hidden, hidden, depth(), c.rms_norm_eps);
  project(backend_, target.lm_head, h_.data(), hidden, logits_.data(), c.vocab_size,
          rows.n_requests * depth());
  return logits_.data();
}

}  // namespace kdt::draft

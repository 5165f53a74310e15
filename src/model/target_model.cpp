#include "model/target_model.h"

#include <algorithm>

#include "base/error.h"
#include "base/rounding.h"
#include "checkpoint/rope.h"
#include "model/layers.h"

namespace kdt::model {
namespace {

// The norms inside the low-rank projections use the class default of the reference code, not the
// config's rms_norm_eps.
constexpr float kLoraNormEps = 1e-6f;

}  // namespace

TargetModel::TargetModel(const Backend& backend, const std::string& dir,
                         std::vector<int64_t> capture, LoadProgress progress)
    : backend_(backend),
      config_(checkpoint::load_target_config(dir)),
      capture_(std::move(capture)) {
  const checkpoint::Checkpoint checkpoint(dir);
  weights_ = load_target_weights(backend, checkpoint, config_, std::move(progress));
  scale_ = checkpoint::attention_scale(config_);
  rope_amplitude_ = checkpoint::rope_amplitude(config_.rope);
}

int32_t TargetModel::kv_width() const {
  return static_cast<int32_t>(config_.kv_lora_rank + config_.qk_rope_head_dim);
}

size_t TargetModel::kv_bytes_per_token() const {
  return sizeof(float) * kv_width() * config_.n_layers;
}

void TargetModel::plan(const TargetPlan& plan) {
  const auto& c = config_;
  const int32_t max_rows = plan.max_rows;
  const auto floats = [&](int64_t per_row) {
    return Buffer<float>(backend_, static_cast<size_t>(max_rows) * per_row);
  };
  int64_t intermediate = 1;
  for (const TargetLayer& layer : weights_.layers)
    intermediate = std::max(intermediate, layer.gate.get()->out_features);
  const int64_t n_captured = static_cast<int64_t>(capture_.size());

  max_rows_ = max_rows;
  x_ = floats(c.hidden_size);
  norm_ = floats(c.hidden_size);
  q_a_ = floats(c.q_lora_rank);
  q_ = floats(c.n_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim));
  q_latent_ = floats(c.n_heads * kv_width());
  attention_ = floats(c.n_heads * (c.kv_lora_rank + 1));
  values_ = floats(c.n_heads * c.v_head_dim);
  gate_ = floats(intermediate);
  up_ = floats(intermediate);
  router_logits_ = floats(c.n_routed_experts);
  router_weights_ = floats(c.n_experts_per_tok);
  router_ids_ = Buffer<int32_t>(backend_, max_rows * c.n_experts_per_tok);
  tail_ = floats(c.n_layers * kv_width());
  features_ = floats(n_captured * c.hidden_size);
  logits_ = Buffer<float>(backend_, static_cast<size_t>(plan.max_logit_rows) * c.vocab_size);
  head_norm_ = Buffer<float>(backend_, static_cast<size_t>(plan.max_logit_rows) * c.hidden_size);

  VerifyAttentionParams attention{.n_words = ceil_div(plan.max_nodes, 64),
                                  .n_heads = static_cast<int32_t>(c.n_heads),
                                  .latent_dim = static_cast<int32_t>(c.kv_lora_rank),
                                  .rope_dim = static_cast<int32_t>(c.qk_rope_head_dim)};
  attention.rows = {.n_requests = plan.max_requests, .n_rows = max_rows};
  attention_workspace_ = Buffer<uint8_t>(backend_, verify_attention_workspace(backend_, attention));
  size_t bytes = 0;
  for (const TargetLayer& layer : weights_.layers) {
    if (!layer.is_moe) continue;
    const MoeExpertsParams experts{.gate = layer.expert_gate.get(),
                                   .up = layer.expert_up.get(),
                                   .down = layer.expert_down.get(),
                                   .n_rows = max_rows,
                                   .n_selected = static_cast<int32_t>(c.n_experts_per_tok)};
    bytes = std::max(bytes, moe_experts_workspace(backend_, experts));
  }
  workspace_ = Buffer<uint8_t>(backend_, bytes);
}

LatentCache TargetModel::make_cache(int32_t n_pages) const {
  const size_t page = static_cast<size_t>(kPageTokens) * kv_width();
  return {Buffer<float>(backend_, config_.n_layers * page * n_pages), n_pages};
}

void TargetModel::forward(const TargetBatch& batch, const LatentCache& cache) {
  const int32_t n_rows = batch.rows.n_rows;
  const int64_t hidden = config_.hidden_size;
  KDT_CHECK_LE(n_rows, max_rows_);
  embedding(backend_, {.tokens = batch.tokens,
                       .table = weights_.embedding.data(),
                       .dtype = weights_.embedding_dtype,
                       .out = x_.data(),
                       .n_rows = n_rows,
                       .hidden = static_cast<int32_t>(hidden),
                       .vocab = static_cast<int32_t>(config_.vocab_size)});
  // Of all layers: they have the same lengths.
  verify_attention_plan(backend_, attention_params(0, batch, cache));
  for (int64_t i = 0; i < config_.n_layers; ++i) {
    const TargetLayer& layer = weights_.layers[i];
    attention(layer, i, batch, cache);
    ffn(layer, n_rows);
    for (size_t c = 0; c < capture_.size(); ++c)
      if (capture_[c] == i)
        backend_.copy(features_.data() + c * max_rows_ * hidden, x_.data(),
                      sizeof(float) * n_rows * hidden, {});
  }
}

VerifyAttentionParams TargetModel::attention_params(int64_t index, const TargetBatch& batch,
                                                    const LatentCache& cache) {
  const auto& c = config_;
  const int64_t page = static_cast<int64_t>(kPageTokens) * kv_width();
  return {.rows = batch.rows,
          .q = q_latent_.data(),
          .kv_pages = cache.pages.data() + index * page * cache.n_pages,
          .tail = tail_.data() + index * max_rows_ * kv_width(),
          .ancestors = batch.ancestors,
          .out = attention_.data(),
          .lse = attention_.data() + int64_t{max_rows_} * c.n_heads * c.kv_lora_rank,
          .n_words = batch.n_words,
          .n_heads = static_cast<int32_t>(c.n_heads),
          .n_pages = cache.n_pages,
          .latent_dim = static_cast<int32_t>(c.kv_lora_rank),
          .rope_dim = static_cast<int32_t>(c.qk_rope_head_dim),
          .scale = scale_,
          .workspace = {attention_workspace_.data(), attention_workspace_.size()}};
}

// x += o(W_UV attention(q W_UK, latent)), the latent rows of this pass kept in the tail.
void TargetModel::attention(const TargetLayer& layer, int64_t index, const TargetBatch& batch,
                            const LatentCache& cache) {
  const auto& c = config_;
  const int32_t n_rows = batch.rows.n_rows, heads = static_cast<int32_t>(c.n_heads);
  const int64_t nope = c.qk_nope_head_dim, rope_dim = c.qk_rope_head_dim;
  const int64_t latent = c.kv_lora_rank, q_head = nope + rope_dim, width = kv_width();
  const int64_t q_row = heads * q_head;
  float* tail = tail_.data() + index * max_rows_ * width;
  RopeParams rotation{.positions = batch.positions,
                      .inv_freq = weights_.inv_freq.data(),
                      .n_rows = n_rows,
                      .dim = static_cast<int32_t>(rope_dim),
                      .amplitude = rope_amplitude_,
                      .interleaved = true};

  norm_rows(backend_, layer.input_norm, x_.data(), c.hidden_size, norm_.data(), c.hidden_size,
            n_rows, c.rms_norm_eps);
  if (c.q_lora_rank > 0) {
    project(backend_, layer.q_a, norm_.data(), c.hidden_size, q_a_.data(), c.q_lora_rank, n_rows);
    norm_rows(backend_, layer.q_a_norm, q_a_.data(), c.q_lora_rank, q_a_.data(), c.q_lora_rank,
              n_rows, kLoraNormEps);
    project(backend_, layer.q_b, q_a_.data(), c.q_lora_rank, q_.data(), q_row, n_rows);
  } else {
    project(backend_, layer.q_b, norm_.data(), c.hidden_size, q_.data(), q_row, n_rows);
  }

  project(backend_, layer.kv_a, norm_.data(), c.hidden_size, tail, width, n_rows);
  norm_rows(backend_, layer.kv_a_norm, tail, width, tail, width, n_rows, kLoraNormEps);
  rotation.x = rotation.y = tail + latent;
  rotation.n_heads = 1;
  rotation.x_row_stride = rotation.y_row_stride = width;
  rotation.x_head_stride = rotation.y_head_stride = rope_dim;
  rope(backend_, rotation);

  linear(backend_, {.x = q_.data(),
                    .y = q_latent_.data(),
                    .weight = layer.w_uk.get(),
                    .n_rows = n_rows,
                    .x_row_stride = q_row,
                    .x_group_stride = q_head,
                    .y_row_stride = heads * width,
                    .y_group_stride = width});
  rotation.x = q_.data() + nope;
  rotation.y = q_latent_.data() + latent;
  rotation.n_heads = heads;
  rotation.x_row_stride = q_row;
  rotation.x_head_stride = q_head;
  rotation.y_row_stride = heads * width;
  rotation.y_head_stride = width;
  rope(backend_, rotation);

  verify_attention(backend_, attention_params(index, batch, cache));
  linear(backend_, {.x = attention_.data(),
                    .y = values_.data(),
                    .weight = layer.w_uv.get(),
                    .n_rows = n_rows,
                    .x_row_stride = heads * latent,
                    .x_group_stride = latent,
                    .y_row_stride = heads * c.v_head_dim,
                    .y_group_stride = c.v_head_dim});
  project(backend_, layer.o, values_.data(), heads * c.v_head_dim, x_.data(), c.hidden_size, n_rows,
          true);
}

// x += mlp(norm(x)): dense, or shared experts + routed experts.
void TargetModel::ffn(const TargetLayer& layer, int32_t n_rows) {
  const auto& c = config_;
  const int64_t hidden = c.hidden_size, intermediate = layer.gate.get()->out_features;
  norm_rows(backend_, layer.post_norm, x_.data(), hidden, norm_.data(), hidden, n_rows,
            c.rms_norm_eps);
  if (intermediate > 0) {
    project(backend_, layer.gate, norm_.data(), hidden, gate_.data(), intermediate, n_rows);
    project(backend_, layer.up, norm_.data(), hidden, up_.data(), intermediate, n_rows);
    silu_mul(
        backend_,
        {.gate = gate_.data(), .up = up_.data(), .y = gate_.data(), .n = n_rows * intermediate});
    project(backend_, layer.down, gate_.data(), intermediate, x_.data(), hidden, n_rows, true);
  }
  if (!layer.is_moe) return;

  const int32_t n_selected = static_cast<int32_t>(c.n_experts_per_tok);
  project(backend_, layer.router, norm_.data(), hidden, router_logits_.data(), c.n_routed_experts,
          n_rows);
  moe_route(backend_, {.logits = router_logits_.data(),
                       .bias = layer.router_bias.data(),
                       .ids = router_ids_.data(),
                       .weights = router_weights_.data(),
                       .n_rows = n_rows,
                       .n_experts = static_cast<int32_t>(c.n_routed_experts),
                       .n_selected = n_selected,
                       .n_group = static_cast<int32_t>(c.n_group),
                       .topk_group = static_cast<int32_t>(c.topk_group),
                       .scaling_factor = c.routed_scaling_factor,
                       .normalize = c.norm_topk_prob});
  moe_experts(backend_, {.x = norm_.data(),
                         .ids = router_ids_.data(),
                         .weights = router_weights_.data(),
                         .gate = layer.expert_gate.get(),
                         .up = layer.expert_up.get(),
                         .down = layer.expert_down.get(),
                         .y = x_.data(),
                         .n_rows = n_rows,
                         .n_selected = n_selected,
                         .workspace = {workspace_.data(), workspace_.size()}});
}

void TargetModel::compute_logits(int32_t first_row, int32_t n_rows, int32_t to_row) {
  const int64_t hidden = config_.hidden_size;
  norm_rows(backend_, weights_.norm, x_.data() + first_row * hidden, hidden, head_norm_.data(),
            hidden, n_rows, config_.rms_norm_eps);
  float* to = logits_.data() + static_cast<int64_t>(to_row) * config_.vocab_size;
  project(backend_, weights_.lm_head, head_norm_.data(), hidden, to, config_.vocab_size, n_rows);
}

}  // namespace kdt::model

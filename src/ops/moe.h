// moe_route and moe_experts: the mixture-of-experts block of DeepSeek-V3 (arXiv 2412.19437).
#pragma once

#include <cstdint>

#include "ops/linear.h"
#include "ops/row_batch.h"

namespace kdt {

struct Backend;

inline constexpr int kMaxExperts = 1024;

// sigmoid + noaux_tc: s = sigmoid(logits); choice = s + bias; a group's score is the sum of its two
// largest choices; experts outside the topk_group best groups become -inf; the n_selected largest
// choices are taken (ties to the lower id), in that order. Weights are s (without bias), divided by
// their sum + 1e-20 when `normalize`, times scaling_factor.
struct MoeRouteParams {
  const float* logits = nullptr;  // [M, E]
  const float* bias = nullptr;    // [E] e_score_correction_bias, or null
  int32_t* ids = nullptr;         // [M, n_selected]
  float* weights = nullptr;       // [M, n_selected]
  int32_t n_rows = 0;             // M
  int32_t n_experts = 0;          // E
  int32_t n_selected = 0;
  int32_t n_group = 1;
  int32_t topk_group = 1;
  float scaling_factor = 1.0f;
  bool normalize = true;
};

void check(const MoeRouteParams& p);
void moe_route(const Backend& backend, const MoeRouteParams& p, Stream stream = {});

// y[m] += sum over slots j, in slot order, of weights[m, j] * down(silu(gate x[m]) * (up x[m])) of
// expert ids[m, j]: the slots are summed first, then added to y.
struct MoeExpertsParams {
  const float* x = nullptr;            // [M, hidden]
  const int32_t* ids = nullptr;        // [M, n_selected], distinct within a row
  const float* weights = nullptr;      // [M, n_selected]
  const LinearWeight* gate = nullptr;  // E x [intermediate, hidden]
  const LinearWeight* up = nullptr;    // E x [intermediate, hidden]
  const LinearWeight* down = nullptr;  // E x [hidden, intermediate]
  float* y = nullptr;                  // [M, hidden]
  int32_t n_rows = 0;                  // M
  int32_t n_selected = 0;
  Workspace workspace;
};

void check(const MoeExpertsParams& p);
size_t moe_experts_workspace(const Backend& backend, const MoeExpertsParams& largest);
void moe_experts(const Backend& backend, const MoeExpertsParams& p, Stream stream = {});

}  // namespace kdt

// Pieces of config.json that target and drafter share. Internal to src/checkpoint.
#pragma once

#include <string>

#include "base/json.h"
#include "checkpoint/config.h"

namespace kdt::checkpoint {

// Far above any real model, and low enough that every product of a few of them fits int64.
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;  // channels, and heads x head width
inline constexpr int64_t kMaxLayers = 1024;
inline constexpr int64_t kMaxHeadDim = 8192;
inline constexpr int64_t kMaxVocab = int64_t{1} << 24;
inline constexpr int64_t kMaxPositions = int64_t{1} << 24;  // exact as fp32
inline constexpr size_t kMaxConfigBytes = size_t{16} << 20;

// The first of "architectures"; "" when there is none.
std::string first_architecture(const JsonObject& config);

// Refuses what no model of ours has: another activation, attention biases.
void require_plain_block(const JsonObject& config);

// heads * dim (of `what`, for the message) must stay within kMaxWidth.
void require_width(const JsonObject& config, const std::string& heads_key, int64_t heads,
                   const std::string& what, int64_t dim);

// rope_parameters or rope_scaling of `config`, with rope_theta inside or beside it.
RopeConfig parse_rope(const JsonObject& config, int64_t dim, int64_t max_position_embeddings);

}  // namespace kdt::checkpoint

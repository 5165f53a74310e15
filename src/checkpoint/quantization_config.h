// quantization_config of a target config.json. Internal to src/checkpoint.
#pragma once

#include "base/json.h"
#include "checkpoint/config.h"

namespace kdt::checkpoint {

// kUnsupported for every scheme except compressed-tensors INT4 groups and FP8 128x128 blocks.
QuantizationConfig parse_quantization(const JsonObject& quantization);

}  // namespace kdt::checkpoint

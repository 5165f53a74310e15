#include "apps/bench_data.h"

#include <algorithm>
#include <cmath>

#include "base/dtype.h"
#include "base/error.h"

namespace kdt::apps {

CaseData::~CaseData() {
  for (const auto& weight : weights_)
    if (weight->data) backend_.deallocate(weight->data, weight->bytes);
}

uint64_t CaseData::random() {  // splitmix64 (Steele et al. 2014)
  uint64_t z = (state_ += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

float CaseData::unit() {
  return static_cast<float>(random() >> 40) * 0x1p-24f;
}

float* CaseData::uniform(size_t count, float scale) {
  std::vector<float> host(count);
  for (float& x : host) x = scale * (2.0f * unit() - 1.0f);
  return put(host);
}

std::vector<float> CaseData::zipf_logits(size_t count) {
  // The k-th largest of V exponential variables is about log(V / k).
  std::vector<float> host(count);
  for (float& x : host) x = -1.5f * std::log(1.0f - unit());
  return host;
}

int32_t* CaseData::distinct_ids(size_t rows, int32_t count, int32_t limit) {
  std::vector<int32_t> ids;
  for (size_t row = 0; row < rows; ++row) {
    const size_t first = ids.size();
    while (ids.size() < first + count) {
      const auto id = static_cast<int32_t>(random() % limit);
      if (std::find(ids.begin() + first, ids.end(), id) == ids.end()) ids.push_back(id);
    }
  }
  return put(ids);
}

const LinearWeight* CaseData::weight(WeightFormat format, int32_t groups, int64_t out, int64_t in) {
  const bool int4 = format == WeightFormat::kInt4Group;
  KDT_CHECK(int4 || format == WeightFormat::kBF16);
  constexpr int32_t kGroup = 32;
  // Scaled so that outputs have about the size of the inputs.
  const float scale = std::sqrt(3.0f / static_cast<float>(in));
  const auto bf16 = [&](size_t count, float low, float high) {
    std::vector<uint16_t> values(count);
    for (uint16_t& x : values) x = f32_to_bf16(low + (high - low) * unit());
    return values;
  };
  std::vector<std::vector<uint16_t>> values, scales;
  std::vector<LinearSource> sources;
  for (int32_t g = 0; g < groups; ++g) {
    if (int4) {
      values.emplace_back(out * in / 4);
      for (uint16_t& nibbles : values.back()) nibbles = static_cast<uint16_t>(random() >> 48);
      scales.push_back(bf16(out * in / kGroup, 0.1f * scale, 0.3f * scale));
    } else {
      values.push_back(bf16(out * in, -scale, scale));
      scales.emplace_back();
    }
    sources.push_back({.format = format,
                       .out_features = out,
                       .in_features = in,
                       .data = values.back().data(),
                       .scale = int4 ? scales.back().data() : nullptr,
                       .group_size = kGroup});
  }
  weights_.push_back(std::make_unique<LinearWeight>(pack_linear(backend_, sources)));
  return weights_.back().get();
}

float* CaseData::output(size_t count) {
  float* data = zeros<float>(count);
  expect([this, data, count] {
    const std::vector<float> host = get(data, count);
    return std::all_of(host.begin(), host.end(), [](float x) { return std::isfinite(x); }) &&
           std::any_of(host.begin(), host.end(), [](float x) { return x != 0.0f; });
  });
  return data;
}

bool CaseData::outputs_sound() const {
  return std::all_of(expectations_.begin(), expectations_.end(),
                     [](const auto& holds) { return holds(); });
}

RowBatch CaseData::row_batch(int32_t n_requests, int32_t rows, int32_t prefix) {
  const int32_t blocks = (prefix + rows + kPageTokens - 1) / kPageTokens;
  std::vector<int32_t> offsets, table;
  for (int32_t b = 0; b < n_requests; ++b) offsets.push_back(b * rows);
  // Pages in reverse: neighbours in the table are not neighbours in memory.
  for (int32_t i = n_requests * blocks; i-- > 0;) table.push_back(i);
  return {.n_requests = n_requests,
          .n_rows = n_requests * rows,
          .row_offset = put(offsets),
          .n_nodes = put(std::vector<int32_t>(n_requests, rows)),
          .prefix_len = put(std::vector<int32_t>(n_requests, prefix)),
          .block_table = put(table),
          .max_blocks = blocks};
}

}  // namespace kdt::apps

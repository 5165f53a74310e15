#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/rounding.h"
#include "cpu/linear_expand.h"
#include "cpu/ops.h"
#include "cpu/panels.h"
#include "cpu/parallel.h"

namespace kdt::cpu {
namespace {

using namespace KDT_ISA;

static_assert(static_cast<int>(WeightFormat::kF32) == static_cast<int>(PanelFormat::kF32));
static_assert(static_cast<int>(WeightFormat::kF16) == static_cast<int>(PanelFormat::kF16));
static_assert(static_cast<int>(WeightFormat::kBF16) == static_cast<int>(PanelFormat::kBF16));
static_assert(static_cast<int>(WeightFormat::kInt4Group) == static_cast<int>(PanelFormat::kInt4));
static_assert(static_cast<int>(WeightFormat::kFp8Block) == static_cast<int>(PanelFormat::kFp8));

// Checkpoints give no alignment, so elements are read bytewise.
template <typename T>
T read(const void* data, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * sizeof(T), sizeof(T));
  return value;
}

float read_scale(const LinearSource& s, int64_t index) {
  switch (s.scale_dtype) {
    case DType::kBF16:
      return bf16_to_f32(read<uint16_t>(s.scale, index));
    case DType::kF16:
      return f16_to_f32(read<uint16_t>(s.scale, index));
    default:
      return read<float>(s.scale, index);
  }
}

PackedLinear plan(const LinearSource& s) {
  const auto format = static_cast<PanelFormat>(s.format);
  int64_t segment = s.in_features;
  if (format == PanelFormat::kInt4) segment = s.group_size;
  if (format == PanelFormat::kFp8) segment = std::min<int64_t>(s.block_size, s.in_features);
  const int64_t segment_bytes =
      (has_scales(format) ? kScaleBytes : 0) + ceil_div(segment, 2) * pair_bytes(format);
  return {.segment = segment,
          .segment_bytes = segment_bytes,
          .panel_bytes = ceil_div(s.in_features, segment) * segment_bytes};
}

// Where element (k, lane) of a segment lies, in formats whose pairs of k's are interleaved.
int64_t interleaved(int64_t k, int64_t lane) {
  return (k / 2 * kPanelOutputs + lane) * 2 + k % 2;
}

template <typename T>
void pack_dense(const LinearSource& s, int64_t row, int64_t n, uint8_t* panel) {
  constexpr int64_t kBlock = 64;  // rows a power of two apart share cache sets: few lines at a time
  T* out = reinterpret_cast<T*>(panel);
  const bool pairs = s.format == WeightFormat::kBF16;
  for (int64_t begin = 0; begin < s.in_features; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, s.in_features);
    for (int64_t lane = 0; lane < n; ++lane) {
      const char* source = static_cast<const char*>(s.data) +
                           (row + lane) * s.in_features * static_cast<int64_t>(sizeof(T));
      for (int64_t k = begin; k < end; ++k) {
        out[pairs ? interleaved(k, lane) : k * kPanelOutputs + lane] = read<T>(source, k);
      }
    }
  }
}

void pack_int4(const LinearSource& s, int64_t row, int64_t n, const PackedLinear& layout,
               uint8_t* panel) {
  const int64_t words = s.in_features / 8, groups = s.in_features / s.group_size;
  for (int64_t g = 0; g < groups; ++g) {
    uint8_t* segment = panel + g * layout.segment_bytes;
    for (int64_t lane = 0; lane < n; ++lane) {
      const float scale = read_scale(s, (row + lane) * groups + g);
      std::memcpy(segment + lane * sizeof(float), &scale, sizeof(float));
      uint8_t* codes = segment + kScaleBytes + lane;
      for (int64_t k = 0; k < s.group_size; k += 8) {
        const int64_t word = (row + lane) * words + (g * s.group_size + k) / 8;
        const uint32_t nibbles = read<uint32_t>(s.data, word);
        for (int64_t pair = 0; pair < 4; ++pair) {
          codes[(k / 2 + pair) * kPanelOutputs] = static_cast<uint8_t>(nibbles >> (8 * pair));
        }
      }
    }
  }
}

// False when a weight or scale is not a number (or a scale is beyond what 2^8 times it can hold).
bool pack_fp8(const LinearSource& s, int64_t row, int64_t n, const PackedLinear& layout,
              uint8_t* panel) {
  const int64_t blocks = ceil_div(s.in_features, s.block_size);
  const uint8_t* data = static_cast<const uint8_t*>(s.data);
  bool ok = true;
  for (int64_t lane = 0; lane < n; ++lane) {
    for (int64_t b = 0; b < blocks; ++b) {
      const float scale = 0x1p8f * read_scale(s, (row + lane) / s.block_size * blocks + b);
      ok &= std::isfinite(scale);
      uint8_t* segment = panel + b * layout.segment_bytes;
      std::memcpy(segment + lane * sizeof(float), &scale, sizeof(float));
      const int64_t begin = b * layout.segment;
      const int64_t n_k = std::min(layout.segment, s.in_features - begin);
      for (int64_t k = 0; k < n_k; ++k) {
        const uint8_t code = data[(row + lane) * s.in_features + begin + k];
        ok &= (code & 0x7f) != 0x7f;
        segment[kScaleBytes + interleaved(k, lane)] = code;
      }
    }
  }
  return ok;
}

bool pack_panel(const LinearSource& s, int64_t row, const PackedLinear& layout, uint8_t* panel) {
  const int64_t n = std::min<int64_t>(kPanelOutputs, s.out_features - row);
  switch (s.format) {
    case WeightFormat::kF32:
      pack_dense<float>(s, row, n, panel);
      break;
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      pack_dense<uint16_t>(s, row, n, panel);
      break;
    case WeightFormat::kInt4Group:
      pack_int4(s, row, n, layout, panel);
      break;
    case WeightFormat::kFp8Block:
      return pack_fp8(s, row, n, layout, panel);
  }
  return true;
}

}  // namespace

LinearWeight pack_linear(std::span<const LinearSource> groups) {
  const LinearSource& first = groups[0];
  LinearWeight w = {.format = first.format,
                    .n_groups = static_cast<int32_t>(groups.size()),
                    .out_features = first.out_features,
                    .in_features = first.in_features};
  const PackedLinear layout = plan(first);
  const int64_t panels = panel_count(w);
  w.bytes = kPanelsOffset + groups.size() * panels * layout.panel_bytes;
  w.data = allocate(w.bytes);
  std::memcpy(w.data, &layout, sizeof(layout));
  uint8_t* data = static_cast<uint8_t*>(w.data) + kPanelsOffset;
  std::atomic<bool> ok = true;
  try {
    parallel_for(w.n_groups * panels, w.bytes > size_t{1} << 20, [&](int64_t i) {
      const LinearSource& source = groups[i / panels];
      if (!pack_panel(source, i % panels * kPanelOutputs, layout, data + i * layout.panel_bytes)) {
        ok = false;
      }
    });
  } catch (...) {
    deallocate(w.data, w.bytes);
    throw;
  }
  release_threads();
  if (!ok) {
    deallocate(w.data, w.bytes);
    throw_error(ErrorCode::kNumeric,
                "pack_linear: fp8 weight [{}, {}] holds NaN, or a scale outside +-2^119",
                w.out_features, w.in_features);
  }
  return w;
}

}  // namespace kdt::cpu

#include "ops/linear.h"

#include "ops/arguments.h"
#include "ops/backend.h"

namespace kdt {
namespace {

constexpr const char* kOp = "linear";
constexpr const char* kPack = "pack_linear";

// Enough for any model; products of two sizes and an element size stay far from overflow.
constexpr int64_t kMaxFeatures = int64_t{1} << 28;

void check_scales(const LinearSource& s) {
  require_pointer(kPack, "scale", s.scale);
  require_float(kPack, "scale_dtype", s.scale_dtype);
  if (s.format == WeightFormat::kInt4Group) {
    require(s.group_size > 0 && s.group_size % 8 == 0, kPack, "group_size", s.group_size,
            "a positive multiple of 8");
    require(s.in_features % s.group_size == 0, kPack, "in_features", s.in_features,
            "a multiple of group_size {}", s.group_size);
  } else {
    require(s.block_size > 0, kPack, "block_size", s.block_size, "1 or more");
  }
}

void check_source(const LinearSource& s) {
  const int format = static_cast<int>(s.format);
  require(format >= 0 && format <= static_cast<int>(WeightFormat::kFp8Block), kPack, "format",
          format, "a WeightFormat");
  require(s.out_features >= 1 && s.out_features <= kMaxFeatures, kPack, "out_features",
          s.out_features, "1..{}", kMaxFeatures);
  require(s.in_features >= 1 && s.in_features <= kMaxFeatures, kPack, "in_features", s.in_features,
          "1..{}", kMaxFeatures);
  require_pointer(kPack, "data", s.data);
  if (s.format == WeightFormat::kInt4Group || s.format == WeightFormat::kFp8Block) check_scales(s);
}

// Every source is packed with the layout of the first.
void check_same(const LinearSource& s, const LinearSource& first) {
  require(s.format == first.format, kPack, "format", static_cast<int>(s.format),
          "{} as in the first group", static_cast<int>(first.format));
  require(s.out_features == first.out_features, kPack, "out_features", s.out_features,
          "{} as in the first group", first.out_features);
  require(s.in_features == first.in_features, kPack, "in_features", s.in_features,
          "{} as in the first group", first.in_features);
  require(s.group_size == first.group_size, kPack, "group_size", s.group_size,
          "{} as in the first group", first.group_size);
  require(s.block_size == first.block_size, kPack, "block_size", s.block_size,
          "{} as in the first group", first.block_size);
}

}  // namespace

LinearWeight pack_linear(const Backend& backend, std::span<const LinearSource> groups) {
  require(!groups.empty() && groups.size() <= INT32_MAX, kPack, "number of groups", groups.size(),
          "1..{}", INT32_MAX);
  for (const LinearSource& source : groups) {
    check_source(source);
    check_same(source, groups[0]);
  }
  return implemented(backend, &Backend::pack_linear, kPack)(groups);
}

void check(const LinearParams& p) {
  require_pointer(kOp, "weight", p.weight);
  const LinearWeight& w = *p.weight;
  require_pointer(kOp, "weight.data", w.data);
  require(p.n_rows >= 0, kOp, "n_rows", p.n_rows, "0 or more");
  if (p.n_rows == 0) return;
  require_pointer(kOp, "x", p.x);
  require_pointer(kOp, "y", p.y);
  const bool many_rows = p.n_rows > 1, many_groups = w.n_groups > 1;
  require(!many_rows || p.x_row_stride >= w.in_features, kOp, "x_row_stride", p.x_row_stride,
          "at least {} (in_features)", w.in_features);
  require(!many_rows || p.y_row_stride >= w.out_features, kOp, "y_row_stride", p.y_row_stride,
          "at least {} (out_features)", w.out_features);
  require(!many_groups || p.x_group_stride >= 0, kOp, "x_group_stride", p.x_group_stride,
          "0 or more");
  if (!many_groups) return;
  const int64_t row_of_groups = (w.n_groups - 1) * p.y_group_stride + w.out_features;
  const int64_t group_of_rows = (p.n_rows - 1) * p.y_row_stride + w.out_features;
  const bool groups_within_row =
      p.y_group_stride >= w.out_features && (!many_rows || p.y_row_stride >= row_of_groups);
  require(groups_within_row || p.y_group_stride >= group_of_rows, kOp, "y_group_stride",
          p.y_group_stride, "strides under which outputs do not overlap (y_row_stride {})",
          p.y_row_stride);
}

void linear(const Backend& backend, const LinearParams& p, Stream stream) {
  check(p);
  implemented(backend, &Backend::linear, kOp)(p, stream);
}

}  // namespace kdt

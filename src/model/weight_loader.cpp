#include "model/weight_loader.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace kdt::model {
namespace {

using checkpoint::LinearFormat;
using checkpoint::TensorView;

WeightFormat dense_format(DType dtype) {
  return dtype == DType::kF32   ? WeightFormat::kF32
         : dtype == DType::kF16 ? WeightFormat::kF16
                                : WeightFormat::kBF16;
}

LinearSource to_op_source(const checkpoint::LinearSource& s) {
  LinearSource op{.out_features = s.out_features,
                  .in_features = s.in_features,
                  .data = s.weight,
                  .scale = s.scales,
                  .scale_dtype = s.scale_dtype};
  switch (s.format) {
    case LinearFormat::kDense:
      op.format = dense_format(s.dtype);
      break;
    case LinearFormat::kInt4Pack:
      op.format = WeightFormat::kInt4Group;
      op.group_size = static_cast<int32_t>(s.block);
      break;
    case LinearFormat::kFp8Block:
      op.format = WeightFormat::kFp8Block;
      op.block_size = static_cast<int32_t>(s.block);
      break;
  }
  return op;
}

// Whether any of n codes has all bits of `exponent` set: infinity or NaN.
template <typename Code>
bool any_special(const uint8_t* data, size_t n, Code exponent) {
  bool found = false;
  for (size_t i = 0; i < n; ++i) {
    Code code;
    std::memcpy(&code, data + i * sizeof(Code), sizeof(Code));
    found |= (code & exponent) == exponent;
  }
  return found;
}

bool is_finite(const TensorView& t) {
  const size_t n = static_cast<size_t>(t.numel());
  switch (t.dtype) {
    case DType::kF32:
      return !any_special<uint32_t>(t.data.data(), n, 0x7f800000u);
    case DType::kF16:
      return !any_special<uint16_t>(t.data.data(), n, 0x7c00);
    case DType::kBF16:
      return !any_special<uint16_t>(t.data.data(), n, 0x7f80);
    case DType::kF8E4M3:
      return !any_special<uint8_t>(t.data.data(), n, 0x7f);
    default:
      return true;
  }
}

void require_finite(const TensorView& tensor) {
  if (!is_finite(tensor))
    throw_error(ErrorCode::kBadFile,
                "{}: tensor {} holds NaN or infinity; the checkpoint is damaged",
                tensor.file->path(), tensor.name);
}

// One op runs all experts of a layer, so their weights are stored alike.
void check_alike(const TensorView& tensor, const TensorView& first) {
  if (tensor.dtype != first.dtype)
    throw_error(ErrorCode::kUnsupported, "{}: tensor {} is {}, expected {} as {}",
                tensor.file->path(), tensor.name, dtype_name(tensor.dtype), dtype_name(first.dtype),
                first.name);
}

}  // namespace

WeightLoader::WeightLoader(const Backend& backend, const checkpoint::Checkpoint& checkpoint,
                           const checkpoint::QuantizationConfig& quantization,
                           LoadProgress progress)
    : backend_(backend),
      checkpoint_(checkpoint),
      quantization_(quantization),
      progress_(std::move(progress)) {
  for (const TensorView* tensor : checkpoint.tensors()) bytes_total_ += tensor->data.size();
}

Linear WeightLoader::linear(const Weight& weight) {
  return weight.name.empty() ? Linear() : grouped(std::span(&weight, 1));
}

Linear WeightLoader::grouped(std::span<const Weight> weights) {
  std::vector<checkpoint::LinearSource> loaded;
  std::vector<LinearSource> sources;
  for (const Weight& weight : weights) {
    loaded.push_back(load(weight));
    check_alike(*loaded.back().weight_tensor, *loaded.front().weight_tensor);
    sources.push_back(to_op_source(loaded.back()));
  }
  Linear packed = pack(sources);
  for (const checkpoint::LinearSource& source : loaded) done(source);
  return packed;
}

void WeightLoader::kv_b(const Weight& weight, const checkpoint::TargetConfig& config, Linear* w_uk,
                        Linear* w_uv) {
  const int64_t heads = config.n_heads, latent = config.kv_lora_rank;
  const int64_t nope = config.qk_nope_head_dim, v = config.v_head_dim;
  const checkpoint::LinearSource source = load(weight);
  // bf16 stays bf16 (the transpose is exact); anything else becomes fp32.
  const bool narrow = source.format == LinearFormat::kDense && source.dtype == DType::kBF16;
  const size_t element = narrow ? 2 : 4;
  const auto put = [&](std::vector<uint8_t>& to, int64_t index, float value) {
    const uint16_t code = f32_to_bf16(value);
    std::memcpy(to.data() + index * element, narrow ? static_cast<const void*>(&code) : &value,
                element);
  };

  std::vector<float> rows((nope + v) * latent);
  std::vector<uint8_t> uk(heads * latent * nope * element), uv(heads * v * latent * element);
  for (int64_t h = 0; h < heads; ++h) {
    checkpoint::dequantize_rows(source, h * (nope + v), nope + v, rows.data());
    for (int64_t c = 0; c < latent; ++c)
      for (int64_t d = 0; d < nope; ++d) put(uk, (h * latent + c) * nope + d, rows[d * latent + c]);
    for (int64_t d = 0; d < v; ++d)
      for (int64_t c = 0; c < latent; ++c)
        put(uv, (h * v + d) * latent + c, rows[(nope + d) * latent + c]);
  }

  std::vector<LinearSource> uk_heads, uv_heads;
  const WeightFormat format = narrow ? WeightFormat::kBF16 : WeightFormat::kF32;
  for (int64_t h = 0; h < heads; ++h) {
    uk_heads.push_back({.format = format,
                        .out_features = latent,
                        .in_features = nope,
                        .data = uk.data() + h * latent * nope * element});
    uv_heads.push_back({.format = format,
                        .out_features = v,
                        .in_features = latent,
                        .data = uv.data() + h * v * latent * element});
  }
  *w_uk = pack(uk_heads);
  *w_uv = pack(uv_heads);
  done(source);
}

Buffer<float> WeightLoader::vector(const Weight& weight) {
  if (weight.name.empty()) return {};
  const TensorView& tensor = get(weight);
  std::vector<float> host(tensor.numel());
  checkpoint::read_f32(tensor, host.data());
  Buffer<float> device(backend_, host.size());
  backend_.copy_in(device.data(), host.data(), host.size() * sizeof(float), {});
  done(tensor);
  return device;
}

Buffer<uint8_t> WeightLoader::table(const Weight& weight, DType* dtype) {
  const TensorView& tensor = get(weight);
  Buffer<uint8_t> device(backend_, tensor.data.size());
  backend_.copy_in(device.data(), tensor.data.data(), tensor.data.size(), {});
  *dtype = tensor.dtype;
  done(tensor);
  return device;
}

void WeightLoader::finish() {
  if (progress_) progress_(bytes_total_, bytes_total_);
}

checkpoint::LinearSource WeightLoader::load(const Weight& weight) {
  const checkpoint::LinearSource source = checkpoint::load_linear(
      checkpoint_, quantization_, weight.name, weight.shape[0], weight.shape[1]);
  require_finite(*source.weight_tensor);
  if (source.scale_tensor) require_finite(*source.scale_tensor);
  return source;
}

const TensorView& WeightLoader::get(const Weight& weight) {
  const TensorView& tensor =
      checkpoint_.get(weight.name, weight.shape, {DType::kF32, DType::kBF16, DType::kF16});
  require_finite(tensor);
  return tensor;
}

Linear WeightLoader::pack(std::span<const LinearSource> groups) {
  return Linear(backend_, pack_linear(backend_, groups));
}

void WeightLoader::done(const TensorView& tensor) {
  checkpoint::release(tensor);
  bytes_done_ += tensor.data.size();
  // A tied head is packed beside its table: its tensor counts twice.
  if (progress_) progress_(std::min(bytes_done_, bytes_total_), bytes_total_);
}

void WeightLoader::done(const checkpoint::LinearSource& source) {
  done(*source.weight_tensor);
  if (source.scale_tensor) done(*source.scale_tensor);
}

}  // namespace kdt::model

#include "kdtr/writer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "base/atomic_file.h"
#include "kdtr/crc32c.h"

namespace kdt::kdtr {
namespace {

template <typename T>
void append(std::vector<uint8_t>& out, T value) {
  const auto bytes = std::bit_cast<std::array<uint8_t, sizeof(T)>>(value);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void append_text(std::vector<uint8_t>& out, std::string_view text) {
  out.insert(out.end(), text.begin(), text.end());
}

void check_tensor(const Tensor& tensor, std::string_view path) {
  check_name(tensor.name, path);
  if (tensor.shape.size() > kMaxRank)
    reject(path, "rank", "tensor '{}': rank {}, at most {} allowed", tensor.name,
           tensor.shape.size(), kMaxRank);
  // A negative dimension becomes a huge one, which the limit on bytes refuses.
  const std::vector<uint64_t> shape(tensor.shape.begin(), tensor.shape.end());
  const uint64_t bytes = checked_bytes(shape, tensor.dtype, tensor.name, path);
  if (tensor.bytes.size() != bytes)
    reject(path, "shape", "tensor '{}': shape [{}] of {} has {} bytes, {} given", tensor.name,
           fmt::join(shape, ", "), dtype_name(tensor.dtype), bytes, tensor.bytes.size());
  if (tensor.dtype == DType::kBool && !valid_bools(tensor.bytes))
    reject(path, "bool", "tensor '{}' has a bool byte other than 0 and 1", tensor.name);
}

std::vector<const Tensor*> sorted(std::span<const Tensor> tensors, std::string_view path) {
  std::vector<const Tensor*> order;
  for (const Tensor& tensor : tensors) {
    check_tensor(tensor, path);
    order.push_back(&tensor);
  }
  std::ranges::sort(order, {}, [](const Tensor* t) -> std::string_view { return t->name; });
  for (size_t i = 1; i < order.size(); ++i)
    if (order[i]->name == order[i - 1]->name)
      reject(path, "order", "tensor '{}' is given twice", order[i]->name);
  return order;
}

std::vector<uint8_t> metadata_index(const Metadata& metadata, std::string_view path) {
  std::vector<uint8_t> index;
  for (const auto& [key, value] : metadata) {
    check_name(key, path);
    check_value(value, path);
    append(index, static_cast<uint32_t>(key.size()));
    append(index, static_cast<uint32_t>(value.size()));
    append_text(index, key);
    append_text(index, value);
  }
  return index;
}

// Header and index; every payload's place follows from the sizes.
std::vector<uint8_t> structure(std::span<const Tensor* const> tensors, const Metadata& metadata,
                               std::string_view path) {
  std::vector<uint8_t> index = metadata_index(metadata, path);
  size_t index_bytes = index.size();
  for (const Tensor* t : tensors)
    index_bytes += kTensorEntryBytes + 8 * t->shape.size() + t->name.size();
  if (tensors.size() > kMaxTensors || metadata.size() > kMaxMeta || index_bytes > kMaxIndexBytes)
    reject(path, "limits", "{} tensors, {} metadata, index of {} bytes; at most {}, {}, {} allowed",
           tensors.size(), metadata.size(), index_bytes, kMaxTensors, kMaxMeta, kMaxIndexBytes);
  uint64_t offset = align_up(sizeof(Header) + index_bytes);
  for (const Tensor* t : tensors) {
    append(index, offset);
    append(index, crc32c(t->bytes));
    append(index, static_cast<uint8_t>(static_cast<int>(t->dtype) + 1));
    append(index, static_cast<uint8_t>(t->shape.size()));
    append(index, static_cast<uint16_t>(t->name.size()));
    for (const int64_t n : t->shape) append(index, n);
    append_text(index, t->name);
    offset = align_up(offset + t->bytes.size());
  }
  KDT_CHECK_EQ(index.size(), index_bytes);
  Header header{.magic = kMagic,
                .version = kVersion,
                .n_tensors = static_cast<uint32_t>(tensors.size()),
                .n_meta = static_cast<uint32_t>(metadata.size()),
                .structure_crc = 0,
                .index_bytes = index_bytes,
                .file_bytes = offset,
                .reserved = {}};
  header.structure_crc = structure_crc(header, index);
  std::vector<uint8_t> out;
  append(out, header);
  out.insert(out.end(), index.begin(), index.end());
  return out;
}

// Hands the file to `sink(data, bytes)` piece by piece.
template <typename Sink>
void emit(const std::string& path, std::span<const Tensor> tensors, const Metadata& metadata,
          Sink&& sink) {
  static constexpr uint8_t kZeros[kAlignment] = {};
  const auto put_padded = [&](std::span<const uint8_t> bytes) {
    sink(bytes.data(), bytes.size());
    sink(kZeros, align_up(bytes.size()) - bytes.size());
  };
  const std::vector<const Tensor*> order = sorted(tensors, path);
  put_padded(structure(order, metadata, path));
  for (const Tensor* tensor : order) put_padded(tensor->bytes);
}

}  // namespace

void write_file(const std::string& path, std::span<const Tensor> tensors,
                const Metadata& metadata) {
  AtomicFile file(path);
  emit(path, tensors, metadata, [&](const uint8_t* data, size_t n) { file.write(data, n); });
  file.commit();
}

std::vector<uint8_t> serialize(std::span<const Tensor> tensors, const Metadata& metadata,
                               const std::string& label) {
  std::vector<uint8_t> out;
  emit(label, tensors, metadata,
       [&](const uint8_t* data, size_t n) { out.insert(out.end(), data, data + n); });
  return out;
}

}  // namespace kdt::kdtr

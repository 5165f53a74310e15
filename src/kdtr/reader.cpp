#include "kdtr/reader.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "kdtr/crc32c.h"

namespace kdt::kdtr {
namespace {

// Reads the index front to back and never past its end.
class IndexCursor {
 public:
  IndexCursor(std::span<const uint8_t> index, std::string_view file) : left_(index), file_(file) {}

  std::span<const uint8_t> take(size_t n) {
    if (n > left_.size())
      reject(file_, "index", "an index entry needs {} bytes where {} are left", n, left_.size());
    const std::span<const uint8_t> taken = left_.first(n);
    left_ = left_.subspan(n);
    return taken;
  }

  template <typename T>
  T integer() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  std::string text(size_t n) {
    const std::span<const uint8_t> raw = take(n);
    return {reinterpret_cast<const char*>(raw.data()), raw.size()};
  }

  size_t left() const { return left_.size(); }

 private:
  std::span<const uint8_t> left_;
  std::string_view file_;
};

Header read_header(std::span<const uint8_t> file, std::string_view path) {
  Header header;
  if (file.size() < sizeof header)
    reject(path, "short", "{} bytes, a KDTR header has {}", file.size(), sizeof header);
  std::memcpy(&header, file.data(), sizeof header);
  if (header.magic != kMagic) reject(path, "magic", "not a KDTR file");
  if (header.version != kVersion)
    reject(path, "version", "KDTR version {}, this reader knows {}", header.version, kVersion);
  if (header.file_bytes != file.size())
    reject(path, "file-size", "{} bytes, the header says {}; truncated?", file.size(),
           header.file_bytes);
  if (header.n_tensors > kMaxTensors || header.n_meta > kMaxMeta ||
      header.index_bytes > kMaxIndexBytes)
    reject(path, "limits", "{} tensors, {} metadata, index of {} bytes; at most {}, {}, {} allowed",
           header.n_tensors, header.n_meta, header.index_bytes, kMaxTensors, kMaxMeta,
           kMaxIndexBytes);
  if (header.index_bytes > file.size() - sizeof header)
    reject(path, "index", "index of {} bytes in a file of {}", header.index_bytes, file.size());
  if (structure_crc(header, file.subspan(sizeof header, header.index_bytes)) !=
      header.structure_crc)
    reject(path, "structure-crc", "header or index damaged: wrong CRC32C");
  if (header.reserved != decltype(header.reserved){})
    reject(path, "reserved", "reserved header bytes are not zero");
  return header;
}

Metadata read_metadata(IndexCursor& cursor, uint32_t n_meta, std::string_view path) {
  Metadata metadata;
  std::string previous;
  for (uint32_t i = 0; i < n_meta; ++i) {
    const auto key_bytes = cursor.integer<uint32_t>();
    const auto value_bytes = cursor.integer<uint32_t>();
    const std::string key = cursor.text(key_bytes);
    check_name(key, path);
    if (key <= previous)
      reject(path, "order", "metadata key '{}' after '{}', ascending keys expected", key, previous);
    const std::string value = cursor.text(value_bytes);
    check_value(value, path);
    metadata.emplace(key, value);
    previous = key;
  }
  return metadata;
}

void check_padding(std::span<const uint8_t> padding, std::string_view path) {
  if (std::any_of(padding.begin(), padding.end(), [](uint8_t b) { return b != 0; }))
    reject(path, "padding", "a padding byte is not zero");
}

struct Entry {
  Tensor tensor;  // without its bytes yet
  uint64_t offset;
  uint64_t bytes;
  uint32_t crc;
};

Entry read_entry(IndexCursor& cursor, std::string_view path) {
  const auto offset = cursor.integer<uint64_t>();
  const auto crc = cursor.integer<uint32_t>();
  const auto code = cursor.integer<uint8_t>();
  const auto rank = cursor.integer<uint8_t>();
  const auto name_bytes = cursor.integer<uint16_t>();
  if (rank > kMaxRank) reject(path, "rank", "rank {}, at most {} allowed", rank, kMaxRank);
  std::vector<uint64_t> shape(rank);
  for (uint64_t& n : shape) n = cursor.integer<uint64_t>();
  std::string name = cursor.text(name_bytes);
  check_name(name, path);
  if (code < 1 || code > kDTypeCount)
    reject(path, "dtype", "tensor '{}': unknown dtype code {}", name, code);
  const auto dtype = static_cast<DType>(code - 1);
  const uint64_t bytes = checked_bytes(shape, dtype, name, path);
  return {{std::move(name), dtype, {shape.begin(), shape.end()}, {}}, offset, bytes, crc};
}

Contents read_contents(std::span<const uint8_t> file, std::string_view path) {
  const Header header = read_header(file, path);
  IndexCursor cursor(file.subspan(sizeof header, header.index_bytes), path);
  Contents contents;
  contents.metadata = read_metadata(cursor, header.n_meta, path);
  uint64_t end = sizeof header + header.index_bytes;
  std::string previous;
  for (uint32_t i = 0; i < header.n_tensors; ++i) {
    auto [tensor, offset, bytes, crc] = read_entry(cursor, path);
    if (tensor.name <= previous)
      reject(path, "order", "tensor '{}' after '{}', ascending names expected", tensor.name,
             previous);
    if (offset != align_up(end))
      reject(path, "offset", "tensor '{}' at byte {}, expected at {}", tensor.name, offset,
             align_up(end));
    if (offset > file.size() || bytes > file.size() - offset)
      reject(path, "bounds", "tensor '{}': {} bytes at {} in a file of {}", tensor.name, bytes,
             offset, file.size());
    check_padding(file.subspan(end, offset - end), path);
    tensor.bytes = file.subspan(offset, bytes);
    previous = tensor.name;
    end = offset + bytes;
    contents.tensors.push_back(std::move(tensor));
    contents.crcs.push_back(crc);
  }
  if (cursor.left() != 0)
    reject(path, "index", "{} bytes of the index are left over", cursor.left());
  if (file.size() != align_up(end))
    reject(path, "trailing", "{} bytes, the content ends at {}", file.size(), align_up(end));
  check_padding(file.subspan(end), path);
  return contents;
}

}  // namespace

Reader::Reader(const std::string& path)
    : mapping_(path), path_(path), contents_(read_contents(mapping_.bytes(), path_)) {}

Reader::Reader(std::span<const uint8_t> bytes, std::string label) : path_(std::move(label)) {
  if (reinterpret_cast<uintptr_t>(bytes.data()) % 8 != 0)
    throw_error(ErrorCode::kInvalidArgument, "{}: KDTR bytes in memory must be 8-byte aligned",
                path_);
  contents_ = read_contents(bytes, path_);
}

const Tensor* Reader::find(std::string_view name) const {
  const auto it = std::ranges::lower_bound(contents_.tensors, name, {}, &Tensor::name);
  return it != contents_.tensors.end() && it->name == name ? &*it : nullptr;
}

const Tensor& Reader::at(std::string_view name) const {
  if (const Tensor* tensor = find(name)) return *tensor;
  throw_error(ErrorCode::kBadFile, "{}: no tensor '{}' among its {}", path_, name,
              contents_.tensors.size());
}

std::optional<std::string> Reader::payload_fault(size_t i) const {
  const Tensor& tensor = contents_.tensors.at(i);
  const uint32_t crc = crc32c(tensor.bytes);
  if (crc != contents_.crcs[i])
    return fmt::format("tensor '{}' is damaged: CRC32C {:08x}, expected {:08x} [payload-crc]",
                       tensor.name, crc, contents_.crcs[i]);
  if (tensor.dtype == DType::kBool && !valid_bools(tensor.bytes))
    return fmt::format("tensor '{}' has a bool byte other than 0 and 1 [bool]", tensor.name);
  return std::nullopt;
}

void Reader::verify() const {
  for (size_t i = 0; i < contents_.tensors.size(); ++i)
    if (const auto fault = payload_fault(i))
      throw_error(ErrorCode::kBadFile, "{}: {}", path_, *fault);
}

bool is_kdtr(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  std::ifstream file(path, std::ios::binary);
  std::array<uint8_t, kMagic.size()> magic{};
  file.read(reinterpret_cast<char*>(magic.data()), magic.size());
  return file && magic == kMagic;
}

}  // namespace kdt::kdtr

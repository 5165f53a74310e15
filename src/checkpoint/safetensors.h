// One .safetensors file, mapped. Layout: u64 little-endian header length, JSON header
// {name: {dtype, shape, data_offsets: [begin, end)}}, payload. The header is untrusted: sizes are
// checked for overflow and against the file, and payloads must tile the file without overlap or
// hole, as the format requires.
//
// Errors: kIo; kBadFile and kUnsupported (an element type unknown here) naming file and tensor.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/mapped_file.h"

namespace kdt::checkpoint {

// A tensor inside a mapped file; valid while the file's owner lives. Payloads start at any byte:
// read elements with memcpy, never through a cast pointer.
struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;     // row-major; empty for a scalar
  std::span<const uint8_t> data;  // little-endian, exactly numel * dtype_bytes
  const MappedFile* file = nullptr;

  int64_t numel() const { return static_cast<int64_t>(data.size() / dtype_bytes(dtype)); }
};

// "bf16 [4, 8]", for messages.
std::string describe(const TensorView& tensor);

// Parses the bytes of a whole file; the views point into `bytes` and have no `file`. `path` only
// names it in errors. Tensors come in payload order.
std::vector<TensorView> parse_safetensors(std::span<const uint8_t> bytes, const std::string& path);

// Thread-safe to read. Movable; views stay valid.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_->path(); }
  const std::vector<TensorView>& tensors() const { return tensors_; }

 private:
  std::unique_ptr<MappedFile> file_;
  std::vector<TensorView> tensors_;
};

}  // namespace kdt::checkpoint

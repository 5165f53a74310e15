// Reads a KDTR file in place. Opening checks its whole structure, so that afterwards every tensor
// is known to lie inside the file; payloads are looked at by payload_fault() and verify() only.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "kdtr/format.h"
#include "kdtr/tensor.h"

namespace kdt::kdtr {

struct Contents {
  std::vector<Tensor> tensors;  // ascending by name
  std::vector<uint32_t> crcs;   // CRC32C of each payload, as the file states it
  Metadata metadata;
};

// Tensors point into the mapping and live as long as the reader; moving the reader keeps them.
// Immutable after construction, so safe to share between threads. The file must not be rewritten in
// place meanwhile (our writers replace files and never do). Throws kIo, or kBadFile with the path
// and the broken rule of FORMAT.md.
class Reader {
 public:
  explicit Reader(const std::string& path);
  // Over bytes that the caller keeps, 8-byte aligned; `label` stands for the path in errors.
  Reader(std::span<const uint8_t> bytes, std::string label);

  std::span<const Tensor> tensors() const { return contents_.tensors; }
  const Metadata& metadata() const { return contents_.metadata; }
  const std::string& path() const { return path_; }

  const Tensor* find(std::string_view name) const;  // null if absent
  const Tensor& at(std::string_view name) const;    // throws kBadFile if absent

  // What is wrong with the payload of tensors()[i] (CRC, bool bytes), or nothing.
  std::optional<std::string> payload_fault(size_t i) const;
  // Throws for the first payload with a fault.
  void verify() const;

 private:
  MappedFile mapping_;
  std::string path_;
  Contents contents_;
};

// True for a regular file that starts with the KDTR magic; never throws.
bool is_kdtr(const std::string& path);

}  // namespace kdt::kdtr

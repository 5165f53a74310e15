// Writes KDTR files. The format is canonical (FORMAT.md): the same tensors and metadata give the
// same bytes, in whatever order they are listed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kdtr/format.h"
#include "kdtr/tensor.h"

namespace kdt::kdtr {

// Replaces `path` atomically. Throws kIo, or the kBadFile that reading the file would throw; then
// an existing file stays as it was.
void write_file(const std::string& path, std::span<const Tensor> tensors,
                const Metadata& metadata = {});

// The bytes of that file; `label` stands for the path in errors.
std::vector<uint8_t> serialize(std::span<const Tensor> tensors, const Metadata& metadata,
                               const std::string& label);

}  // namespace kdt::kdtr

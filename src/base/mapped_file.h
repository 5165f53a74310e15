// A read-only memory-mapped file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kdt {

// Owns the mapping; movable. Thread-safe to read. Throws kIo naming the path and the reason.
// An empty file maps to an empty span.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

  // Tells the kernel that the pages of `range` are no longer needed; they are read again if
  // touched.
  void release_pages(std::span<const uint8_t> range) const;

 private:
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  std::string path_;
};

// Whether there is anything at `path`, be it a dangling link; false where the system does not say.
bool file_exists(const std::string& path);

// The whole file as a string, for small text files; kIo, or kBadFile if empty or above `max_bytes`.
std::string read_text_file(const std::string& path, size_t max_bytes);

}  // namespace kdt

// Writing a file so that a crash leaves either the old content or the new, never a mixture.
#pragma once

#include <cstddef>
#include <string>

namespace kdt {

// Writes to a temporary beside `path`, then fsync + rename on commit(). Without commit() the
// temporary is removed and the old file stays. Throws kIo naming the path, also when it names
// something that is no regular file. Not thread-safe.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t bytes);
  void commit();

 private:
  std::string path_;
  std::string temporary_;
  int fd_ = -1;
};

}  // namespace kdt

#include "base/atomic_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace kdt {

AtomicFile::AtomicFile(const std::string& path) : path_(path), temporary_(path + ".tmp.XXXXXX") {
  // rename() would put a file in the place of a device or a pipe.
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode))
    throw_error(ErrorCode::kIo, "{}: cannot write: not a regular file", path_);
  fd_ = ::mkostemp(temporary_.data(), O_CLOEXEC);
  if (fd_ < 0) throw_error(ErrorCode::kIo, "{}: cannot write: {}", path_, std::strerror(errno));
  const mode_t mask = ::umask(0);
  ::umask(mask);
  ::fchmod(fd_, 0666 & ~mask);
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, p, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_error(ErrorCode::kIo, "{}: cannot write: {}", path_, std::strerror(errno));
    p += n;
    bytes -= static_cast<size_t>(n);
  }
}

void AtomicFile::commit() {
  KDT_CHECK(fd_ >= 0);
  if (::fsync(fd_) != 0)
    throw_error(ErrorCode::kIo, "{}: cannot write: {}", path_, std::strerror(errno));
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    throw_error(ErrorCode::kIo, "{}: cannot replace: {}", path_, std::strerror(errno));
  ::close(fd_);
  fd_ = -1;
  // The rename itself must reach the disk too.
  const std::string parent = std::filesystem::path(path_).parent_path().string();
  const int directory =
      ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory >= 0) {
    ::fsync(directory);
    ::close(directory);
  }
}

}  // namespace kdt

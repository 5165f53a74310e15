#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace kdt {
namespace {

// An open descriptor that closes itself.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

// Opens a regular file for reading and gives its size.
Descriptor open_regular(const std::string& path, size_t* size) {
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) throw_error(ErrorCode::kIo, "{}: cannot open: {}", path, std::strerror(errno));
  struct stat info {};
  if (::fstat(file.fd, &info) != 0)
    throw_error(ErrorCode::kIo, "{}: cannot stat: {}", path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) throw_error(ErrorCode::kIo, "{}: not a regular file", path);
  *size = static_cast<size_t>(info.st_size);
  return file;
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const Descriptor file = open_regular(path, &size_);
  if (size_ == 0) return;
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (mapped == MAP_FAILED)
    throw_error(ErrorCode::kIo, "{}: cannot map {} bytes: {}", path, size_, std::strerror(errno));
  data_ = static_cast<const uint8_t*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<uint8_t*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept {
  *this = std::move(other);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

void MappedFile::release_pages(std::span<const uint8_t> range) const {
  constexpr uintptr_t kPage = 4096;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(range.data()) + kPage - 1) & ~(kPage - 1);
  const uintptr_t end = reinterpret_cast<uintptr_t>(range.data() + range.size()) & ~(kPage - 1);
  if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

bool file_exists(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0;
}

std::string read_text_file(const std::string& path, size_t max_bytes) {
  size_t size = 0;
  const Descriptor file = open_regular(path, &size);
  if (size > max_bytes)
    throw_error(ErrorCode::kBadFile, "{}: {} bytes, at most {} expected", path, size, max_bytes);
  std::string text(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::read(file.fd, text.data() + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_error(ErrorCode::kIo, "{}: cannot read: {}", path, std::strerror(errno));
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  // An interrupted download. Where the file is optional, no text would mean no file.
  if (done == 0) throw_error(ErrorCode::kBadFile, "{}: the file is empty", path);
  text.resize(done);
  return text;
}

}  // namespace kdt

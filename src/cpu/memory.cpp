#include <sys/mman.h>

#include "base/error.h"
#include "cpu/ops.h"

namespace kdt::cpu {

void* allocate(size_t bytes) {
  if (bytes == 0) return nullptr;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw_error(ErrorCode::kOutOfResources, "the system refused {} bytes of memory ({:.1f} GiB)",
                bytes, static_cast<double>(bytes) / (1u << 30));
  }
  return data;
}

void deallocate(void* data, size_t bytes) {
  if (data) munmap(data, bytes);
}

}  // namespace kdt::cpu

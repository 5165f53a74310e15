#include "ops/backend.h"

#include <cstring>

#include "cpu/ops.h"

namespace kdt {
namespace cpu {
namespace {

void copy(void* to, const void* from, size_t bytes, Stream) {
  if (bytes) std::memmove(to, from, bytes);
}
void synchronize(Stream) {}

}  // namespace
}  // namespace cpu

const Backend& cpu_backend() {
  static constexpr Backend kBackend = {
      .name = "cpu",
      .allocate = cpu::allocate,
      .deallocate = cpu::deallocate,
      .copy_in = cpu::copy,
      .copy_out = cpu::copy,
      .copy = cpu::copy,
      .synchronize = cpu::synchronize,
  };
  return kBackend;
}

}  // namespace kdt

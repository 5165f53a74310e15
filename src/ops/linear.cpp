#include "ops/linear.h"

#include "base/error.h"
#include "ops/backend.h"

namespace kdt {

void check(const LinearParams&) {}

void linear(const Backend& backend, const LinearParams& p, Stream stream) {
  check(p);
  backend.linear(p, stream);
}

LinearWeight pack_linear(const Backend& backend, std::span<const LinearSource> groups) {
  return backend.pack_linear(groups);
}

}  // namespace kdt

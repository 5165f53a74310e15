#include "ops/tree_build.h"

#include "base/error.h"
#include "ops/backend.h"

namespace kdt {

void check(const TreeBuildParams&) {}

size_t tree_build_workspace(const Backend& backend, const TreeBuildParams& largest) {
  return backend.tree_build_workspace(largest);
}

void tree_build(const Backend& backend, const TreeBuildParams& p, Stream stream) {
  check(p);
  backend.tree_build(p, stream);
}

}  // namespace kdt

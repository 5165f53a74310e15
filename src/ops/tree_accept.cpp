#include "ops/tree_accept.h"

#include "base/error.h"
#include "ops/backend.h"

namespace kdt {

void check(const TreeAcceptParams&) {}

size_t tree_accept_workspace(const Backend& backend, const TreeAcceptParams& largest) {
  return backend.tree_accept_workspace(largest);
}

void tree_accept(const Backend& backend, const TreeAcceptParams& p, Stream stream) {
  check(p);
  backend.tree_accept(p, stream);
}

}  // namespace kdt

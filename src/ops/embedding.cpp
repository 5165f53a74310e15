#include "ops/embedding.h"

#include "base/error.h"
#include "ops/backend.h"

namespace kdt {

void check(const EmbeddingParams&) {}

void embedding(const Backend& backend, const EmbeddingParams& p, Stream stream) {
  check(p);
  backend.embedding(p, stream);
}

}  // namespace kdt

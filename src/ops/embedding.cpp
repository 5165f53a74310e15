#include "ops/embedding.h"

#include "ops/arguments.h"
#include "ops/backend.h"

namespace kdt {
namespace {
constexpr const char* kOp = "embedding";
}  // namespace

void check(const EmbeddingParams& p) {
  require(p.n_rows >= 0, kOp, "n_rows", p.n_rows, "0 or more");
  require(p.hidden >= 1, kOp, "hidden", p.hidden, "1 or more");
  require(p.vocab >= 1, kOp, "vocab", p.vocab, "1 or more");
  require_float(kOp, "dtype", p.dtype);
  require_pointer(kOp, "table", p.table);
  if (p.n_rows == 0) return;
  require_pointer(kOp, "tokens", p.tokens);
  require_pointer(kOp, "out", p.out);
}

void embedding(const Backend& backend, const EmbeddingParams& p, Stream stream) {
  check(p);
  implemented(backend, &Backend::embedding, kOp)(p, stream);
}

}  // namespace kdt

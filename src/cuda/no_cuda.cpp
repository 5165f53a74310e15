// The CUDA backend of a build without CUDA.
#include "ops/backend.h"

namespace kdt {

const Backend* cuda_backend() {
  return nullptr;
}
const Backend* cuda_backend_with_attention(std::string_view) {
  return nullptr;
}

}  // namespace kdt

// The CUDA backend of a build without CUDA.
#include "ops/backend.h"

namespace kdt {

const Backend* cuda_backend() { return nullptr; }

}  // namespace kdt

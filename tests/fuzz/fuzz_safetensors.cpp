// Any bytes as a .safetensors file: either an Error, or views that stay inside the bytes.
#include <cstdlib>

#include "base/error.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    for (const kdt::checkpoint::TensorView& tensor :
         kdt::checkpoint::parse_safetensors({data, size}, "fuzz")) {
      uint64_t bytes = kdt::dtype_bytes(tensor.dtype);
      for (const int64_t n : tensor.shape) bytes *= static_cast<uint64_t>(n);
      const bool inside =
          tensor.data.data() >= data && tensor.data.data() + tensor.data.size() <= data + size;
      if (!inside || bytes != tensor.data.size()) std::abort();
    }
  } catch (const kdt::Error& error) {
    if (error.code() == kdt::ErrorCode::kInternal) std::abort();
  }
  return 0;
}

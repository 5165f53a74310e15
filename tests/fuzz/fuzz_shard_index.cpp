// Any bytes as model.safetensors.index.json: either an Error, or shards that lie in the
// checkpoint's own directory, each with tensors, and each tensor in one shard.
#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "checkpoint/checkpoint.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  try {
    const auto shards = kdt::checkpoint::parse_shard_index("fuzz", json);
    require(!shards.empty());
    std::set<std::string> seen;
    for (const auto& [shard, tensors] : shards) {
      require(std::filesystem::path("dir") == (std::filesystem::path("dir") / shard).parent_path());
      require(shard == shard.c_str());  // what the system opens is the whole name
      require(!tensors.empty());
      for (const std::string& tensor : tensors) require(seen.insert(tensor).second);
    }
  } catch (const kdt::Error& error) {
    require(error.code() == kdt::ErrorCode::kBadFile);
  }
  return 0;
}

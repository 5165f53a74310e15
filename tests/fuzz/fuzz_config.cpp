// Any bytes as config.json of a target and of a drafter: either an Error, or a config whose derived
// numbers can be computed. A zero byte splits off generation_config.json.
#include <cmath>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "checkpoint/config.h"
#include "checkpoint/rope.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void use(const kdt::checkpoint::RopeConfig& rope) {
  for (const float frequency : kdt::checkpoint::inv_freq(rope)) require(std::isfinite(frequency));
  require(std::isfinite(kdt::checkpoint::rope_amplitude(rope)));
  require(std::isfinite(kdt::checkpoint::draft_rope_amplitude(rope)));
}

template <typename Body>
void attempt(Body body) {
  try {
    body();
  } catch (const kdt::Error& error) {
    require(error.code() != kdt::ErrorCode::kInternal);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string all(reinterpret_cast<const char*>(data), size);
  const size_t split = all.find('\0');
  const std::string config = all.substr(0, split);
  const std::string generation = split == all.npos ? "" : all.substr(split + 1);
  attempt([&] {
    const auto target = kdt::checkpoint::parse_target_config("fuzz", config, generation);
    use(target.rope);
    require(std::isfinite(kdt::checkpoint::attention_scale(target)));
    require(target.n_experts_per_tok <= target.n_routed_experts);
  });
  attempt([&] {
    const auto draft = kdt::checkpoint::parse_draft_config("fuzz", config);
    use(draft.rope);
    require(draft.mask_token_id < draft.vocab_size);
  });
  return 0;
}

#include "apps/bench_timed_backend.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace kdt::apps {

TimedBackend* TimedBackend::active_ = nullptr;

template <typename Params>
TimedBackend::Key TimedBackend::key_of(const char* op, const Params& p) {
  if constexpr (std::is_same_v<Params, LinearParams>) {
    const LinearWeight& w = *p.weight;
    return {op, w.format, w.n_groups, w.out_features, w.in_features};
  }
  return {op, WeightFormat::kF32, 0, 0, 0};
}

// Stands in for the op behind `Member`.
template <OpName Name, auto Member, typename Params>
void TimedBackend::timed(const Params& p, Stream stream) {
  using Clock = std::chrono::steady_clock;
  const Backend& inner = active_->inner_;
  const auto start = Clock::now();
  (inner.*Member)(p, stream);
  inner.synchronize(stream);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  active_->record(key_of(Name.text, p), seconds, cost(inner, p));
}

template <OpName Name, auto Member>
void TimedBackend::replace() {
  table_.*Member = timed<Name, Member>;
}

TimedBackend::TimedBackend(const Backend& inner) : inner_(inner), table_(inner) {
  KDT_CHECK(!active_);
  active_ = this;
  replace<"linear", &Backend::linear>();
  replace<"embedding", &Backend::embedding>();
  replace<"rms_norm", &Backend::rms_norm>();
  replace<"rope", &Backend::rope>();
  replace<"silu_mul", &Backend::silu_mul>();
  replace<"moe_route", &Backend::moe_route>();
  replace<"moe_experts", &Backend::moe_experts>();
  replace<"verify_attention", &Backend::verify_attention>();
  replace<"lse_merge", &Backend::lse_merge>();
  replace<"draft_attention", &Backend::draft_attention>();
  replace<"draft_topk", &Backend::draft_topk>();
  replace<"tree_build", &Backend::tree_build>();
  replace<"tree_accept", &Backend::tree_accept>();
  replace<"kv_commit", &Backend::kv_commit>();
}

TimedBackend::~TimedBackend() {
  active_ = nullptr;
}

void TimedBackend::clear() {
  times_.clear();
  std::fill(std::begin(phases_), std::end(phases_), 0.0);
}

void TimedBackend::record(const Key& key, double seconds, const OpCost& cost) {
  const std::string_view op = std::get<0>(key);
  if (op == "tree_build") phase_ = Phase::kTree;
  if (op == "tree_accept") phase_ = Phase::kAccept;
  if (op == "embedding" && phase_ == Phase::kCommit) phase_ = Phase::kDraft;
  if (counting_) {
    OpTime& time = times_[key];
    ++time.calls;
    time.seconds += seconds;
    time.cost.bytes += cost.bytes;
    time.cost.flops += cost.flops;
    phases_[static_cast<int>(phase_)] += seconds;
  }
  if (phase_ == Phase::kTree) phase_ = Phase::kVerify;
  if (phase_ == Phase::kAccept) {
    phase_ = Phase::kCommit;
    counting_ = true;
  }
}

std::vector<OpTime> TimedBackend::ops() const {
  constexpr const char* kFormats[] = {"f32", "f16", "bf16", "int4", "fp8"};
  std::vector<OpTime> ops;
  for (const auto& [key, time] : times_) {
    const auto& [op, format, groups, out, in] = key;
    ops.push_back(time);
    ops.back().name = std::string(op);
    if (out > 0)
      ops.back().name =
          fmt::format("{} {}[{}, {}] {}", op, groups > 1 ? fmt::format("{} x ", groups) : "", out,
                      in, kFormats[static_cast<int>(format)]);
  }
  std::sort(ops.begin(), ops.end(),
            [](const OpTime& a, const OpTime& b) { return a.seconds > b.seconds; });
  return ops;
}

}  // namespace kdt::apps

// A backend that does what another one does and keeps the time of every op.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "apps/bench_cost.h"

namespace kdt::apps {

// The parts of a decode round, told apart by the ops that end them.
enum class Phase { kDraft, kTree, kVerify, kAccept, kCommit };
inline constexpr int kPhaseCount = 5;
inline constexpr const char* kPhaseNames[kPhaseCount] = {"draft", "tree", "verify", "accept",
                                                         "commit"};

// A string as a template argument.
struct OpName {
  char text[24] = {};
  template <size_t N>
  constexpr OpName(const char (&literal)[N]) {
    for (size_t i = 0; i < N; ++i) text[i] = literal[i];
  }
};

struct OpTime {
  std::string name;  // of a linear, with its weight's shape
  int64_t calls = 0;
  double seconds = 0.0;
  OpCost cost;
};

// Function pointers carry no state, so one object at a time. Ops of one thread only.
class TimedBackend {
 public:
  explicit TimedBackend(const Backend& inner);
  ~TimedBackend();
  TimedBackend(const TimedBackend&) = delete;
  TimedBackend& operator=(const TimedBackend&) = delete;

  const Backend& table() const { return table_; }

  // Call before a request starts. Counting begins behind the first tree_accept, which draws the
  // prompt's last token: all before it is prefill, all behind it decode rounds.
  void expect_prefill() { counting_ = false; }
  void clear();

  std::vector<OpTime> ops() const;  // slowest first
  double phase_seconds(Phase phase) const { return phases_[static_cast<int>(phase)]; }

 private:
  using Key = std::tuple<std::string_view, WeightFormat, int64_t, int64_t, int64_t>;

  template <typename Params>
  static Key key_of(const char* op, const Params& p);
  template <OpName Name, auto Member, typename Params>
  static void timed(const Params& p, Stream stream);
  template <OpName Name, auto Member>
  void replace();
  void record(const Key& key, double seconds, const OpCost& cost);

  static TimedBackend* active_;

  const Backend& inner_;
  Backend table_;
  std::map<Key, OpTime> times_;
  double phases_[kPhaseCount] = {};
  Phase phase_ = Phase::kCommit;
  bool counting_ = false;
};

}  // namespace kdt::apps

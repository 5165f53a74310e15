#include "apps/generate_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tree/tree.h"

namespace kdt::apps {
namespace {

using engine::FinishReason;

const char* reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    default:
      return "error";
  }
}

// Whether the accepted path holds a node that is not its parent's best: a chain has none.
bool leaves_the_chain(const engine::RoundTree& round) {
  const std::vector<int32_t>& parents = round.tree.parents;
  return std::any_of(round.accepted.begin(), round.accepted.end(), [&](int32_t node) {
    return std::find(parents.begin(), parents.begin() + node, parents[node]) !=
           parents.begin() + node;
  });
}

// Better to look at: where a chain would have accepted less, then by acceptance length.
bool tells_more(const engine::RoundTree& a, const engine::RoundTree& b) {
  const auto rank = [](const engine::RoundTree& round) {
    return std::pair(leaves_the_chain(round), round.accepted.size());
  };
  return rank(a) > rank(b);
}

}  // namespace

void Run::add(const engine::Event& event) {
  token_ids.insert(token_ids.end(), event.tokens.begin(), event.tokens.end());
  if (event.acceptance_length > 0) {
    if (event.round_tree && (!tree || tells_more(*event.round_tree, *tree)))
      tree = event.round_tree;
    acceptance_lengths.push_back(event.acceptance_length);
  }
  reason = event.reason;
  error = event.error;
}

double Run::tokens_per_s() const {
  const double n = static_cast<double>(token_ids.size()) - 1;
  return n > 0 && timing.decode_s > 0 ? n / timing.decode_s : 0.0;
}

double Run::mean_acceptance() const {
  if (acceptance_lengths.empty()) return 0.0;
  return std::accumulate(acceptance_lengths.begin(), acceptance_lengths.end(), 0.0) /
         static_cast<double>(acceptance_lengths.size());
}

std::string answer_text(const Run& run, const text::Tokenizer* tokenizer) {
  if (!tokenizer) return "";
  std::vector<int32_t> visible;
  for (const int32_t id : run.token_ids)
    if (!tokenizer->is_special(id)) visible.push_back(id);
  return tokenizer->decode(visible);
}

std::string to_json(const std::vector<Run>& runs, const text::Tokenizer* tokenizer, double load_s) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Run& run : runs) {
    list.push_back({{"prompt_ids", run.prompt_ids},
                    {"token_ids", run.token_ids},
                    {"text", answer_text(run, tokenizer)},
                    {"finish_reason", reason_name(run.reason)},
                    {"acceptance_lengths", run.acceptance_lengths},
                    {"rounds", run.acceptance_lengths.size()},
                    {"timing",
                     {{"load_s", load_s},
                      {"prefill_s", run.timing.prefill_s},
                      {"decode_s", run.timing.decode_s},
                      {"tokens_per_s", run.tokens_per_s()}}}});
    if (!run.error.empty()) list.back()["error"] = run.error;
  }
  return (runs.size() == 1 ? list[0] : list)
      .dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string summary(const Run& run) {
  return fmt::format("{} tokens in {} rounds, acceptance length {:.2f}, {:.0f} tokens/s",
                     run.token_ids.size(), run.acceptance_lengths.size(), run.mean_acceptance(),
                     run.tokens_per_s());
}

std::string draw_tree(const Run& run, const text::Tokenizer* tokenizer, bool color) {
  if (!run.tree) return "(no draft tree: no round ran)\n";
  const auto label = [&](int32_t id) {
    return tokenizer ? std::string(tokenizer->decode(std::span(&id, 1))) : fmt::format("{}", id);
  };
  return tree::render(run.tree->tree, run.tree->accepted, label, color);
}

}  // namespace kdt::apps

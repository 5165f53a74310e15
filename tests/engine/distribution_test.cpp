// The first two tokens after a prompt, drawn with 2000 seeds through the tree, follow the target's
// probabilities: chi-square over the likely tokens, the rest in one bin.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/target_logits.h"
#include "tests/engine/tiny_pair.h"

namespace kdt {
namespace {

using engine::Engine;
using engine::Request;
using test::collect;
using test::with_budget;

constexpr float kTemperature = 1.5f;  // flat enough to fill several bins

// The target's probabilities of the token after `tokens`.
std::vector<double> probabilities(const std::vector<int32_t>& tokens) {
  model::TargetModel target(cpu_backend(), test::source_path("models/tiny-k2"), {}, {});
  const std::vector<float> logits = test::prompt_logits(target, tokens);
  std::vector<double> p(logits.end() - target.config().vocab_size, logits.end());
  double sum = 0.0;
  for (double& x : p) sum += x = std::exp(x / kTemperature);
  for (double& x : p) x /= sum;
  return p;
}

void expect_fit(const std::vector<double>& p, const std::vector<int>& counts, int n) {
  double rest_p = 0.0, statistic = 0.0;
  int rest = 0, bins = 0;
  const auto add = [&](double expected, int found) {
    statistic += (found - expected) * (found - expected) / expected;
    ++bins;
  };
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] * n >= 10) {
      add(p[i] * n, counts[i]);
    } else {
      rest_p += p[i];
      rest += counts[i];
    }
  }
  if (rest_p * n >= 5) add(rest_p * n, rest);
  // Mean bins - 1, deviation sqrt(2 (bins - 1)): five deviations is one failure in a million.
  ASSERT_GE(bins, 3);
  const double freedom = bins - 1;
  std::printf("chi-square %.1f with %.0f degrees of freedom, %d draws\n", statistic, freedom, n);
  EXPECT_LT(statistic, freedom + 5 * std::sqrt(2 * freedom) + 5);
}

TEST(Distribution, SampledTokensFollowTheTarget) {
  constexpr int kSeeds = 2000;
  Engine engine(cpu_backend(), test::tiny_options());
  const Request base = test::prompt(0, 2);
  std::vector<std::vector<int32_t>> outputs;
  for (int first = 0; first < kSeeds; first += 8) {
    std::vector<std::shared_ptr<engine::RequestStream>> streams;
    for (int seed = first; seed < first + 8; ++seed) {
      Request request = with_budget(base, 7);
      request.sampling = {.temperature = kTemperature, .seed = static_cast<uint64_t>(seed)};
      request.ignore_eos = true;
      streams.push_back(engine.submit(request));
    }
    for (auto& stream : streams) outputs.push_back(collect(*stream).tokens);
  }

  const int32_t vocab = engine.vocab_size();
  std::vector<int> first(vocab), second(vocab);
  for (const auto& tokens : outputs) ++first[tokens.at(0)];
  const int32_t likely =
      static_cast<int32_t>(std::max_element(first.begin(), first.end()) - first.begin());
  int n_second = 0;
  for (const auto& tokens : outputs)
    if (tokens[0] == likely) ++second[tokens.at(1)], ++n_second;
  std::vector<int32_t> longer = base.prompt;
  longer.push_back(likely);

  expect_fit(probabilities(base.prompt), first, kSeeds);
  expect_fit(probabilities(longer), second, n_second);
}

}  // namespace
}  // namespace kdt

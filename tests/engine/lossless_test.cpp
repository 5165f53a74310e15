// Speculation changes no token: every prompt, greedy and sampled, in every mode.
#include <gtest/gtest.h>

#include "tests/engine/tiny_pair.h"

namespace kdt {
namespace {

using engine::Request;
using test::collect;
using test::generate;
using test::prompt;
using test::reference;
using test::with_budget;

engine::Engine& tiny_engine() {
  static engine::Engine engine(cpu_backend(), test::tiny_options());
  return engine;
}

// The request in every mode; a round of 256 nodes takes long, so fewer of those.
std::vector<Request> in_every_mode(const Request& request) {
  std::vector<Request> requests;
  for (const int budget : {0, -1, 1, 7, 64, 256}) requests.push_back(with_budget(request, budget));
  requests.back().max_tokens = request.max_tokens / 2;
  return requests;
}

// The same tokens in every mode, alone and in a mixed batch beside two other prompts.
void expect_same_in_every_mode(const SamplingParams& sampling) {
  for (size_t i = 0; i < reference().size(); ++i) {
    Request request = prompt(i, 20);
    request.sampling = sampling;
    request.sampling.seed += i;
    const std::vector<int32_t> plain = generate(tiny_engine(), request).tokens;
    ASSERT_FALSE(plain.empty());
    const auto expect = [&](const std::vector<int32_t>& tokens, const Request& as,
                            const char* where) {
      const size_t n = std::min<size_t>(plain.size(), as.max_tokens);
      EXPECT_EQ(tokens, std::vector<int32_t>(plain.begin(), plain.begin() + n))
          << "prompt " << i << " budget " << as.budget << where;
    };
    const std::vector<Request> requests = in_every_mode(request);
    for (const Request& as : requests) expect(generate(tiny_engine(), as).tokens, as, "");

    std::vector<std::shared_ptr<engine::RequestStream>> streams;
    for (const Request& as : requests) streams.push_back(tiny_engine().submit(as));
    for (const size_t other : {i + 1, i + 5})
      streams.push_back(
          tiny_engine().submit(with_budget(prompt(other % reference().size(), 12), 15)));
    for (size_t s = 0; s < requests.size(); ++s)
      expect(collect(*streams[s]).tokens, requests[s], " in a batch");
    for (size_t s = requests.size(); s < streams.size(); ++s) collect(*streams[s]);
  }
}

TEST(Lossless, Greedy) {
  expect_same_in_every_mode({});
}

TEST(Lossless, Sampled) {
  expect_same_in_every_mode({.temperature = 0.8f, .seed = 11});
}

TEST(Lossless, SampledFromFilteredTokens) {
  expect_same_in_every_mode(
      {.temperature = 1.1f, .top_p = 0.9f, .min_p = 0.02f, .top_k = 40, .seed = 23});
}

}  // namespace
}  // namespace kdt

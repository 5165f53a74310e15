// What engine/CONTRACT.md promises, on the tiny pair.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <random>
#include <thread>

#include "base/error.h"
#include "tests/engine/tiny_pair.h"

namespace kdt {
namespace {

using engine::Engine;
using engine::FinishReason;
using engine::Request;
using test::collect;
using test::generate;
using test::Output;
using test::prompt;
using test::reference;
using test::tiny_options;
using test::with_budget;

Engine& tiny_engine() {
  static Engine engine(cpu_backend(), tiny_options());
  return engine;
}

TEST(Engine, OutputDoesNotDependOnChunksOrThePool) {
  const Output want = generate(tiny_engine(), with_budget(prompt(4, 30), 15));
  for (const int chunk : {1, 7, 64}) {
    engine::EngineOptions options = tiny_options();
    options.prefill_chunk = chunk;
    options.max_batch = 2;
    options.max_budget = 15;
    Engine engine(cpu_backend(), options);
    const Output output = generate(engine, with_budget(prompt(4, 30), 15));
    EXPECT_EQ(output.tokens, want.tokens) << "chunk " << chunk;
    EXPECT_EQ(output.acceptance, want.acceptance) << "chunk " << chunk;
  }
}

TEST(Engine, EndsAtTheContextLimit) {
  engine::EngineOptions options = tiny_options();
  options.context_len = 40;
  options.max_batch = 2;
  Engine engine(cpu_backend(), options);
  for (const int budget : {0, -1, 64}) {
    Request request = with_budget(prompt(0, 1000), budget);
    request.ignore_eos = true;
    const Output output = generate(engine, request);
    EXPECT_EQ(output.reason, FinishReason::kLength);
    EXPECT_EQ(output.tokens.size(), 40 - request.prompt.size());
  }
}

TEST(Engine, RefusesWhatCanNeverRun) {
  const auto message = [](Request request) -> std::string {
    try {
      tiny_engine().submit(std::move(request));
      return "accepted";
    } catch (const Error& error) {
      return error.what();
    }
  };
  const auto expect = [&](Request request, const char* words) {
    EXPECT_NE(message(request).find(words), std::string::npos) << message(request);
  };
  expect({.prompt = {}}, "the prompt has no tokens");
  expect({.prompt = std::vector<int32_t>(1024, 5)}, "context of 1024");
  expect({.prompt = {4096}}, "token id 4096");
  expect({.prompt = {-1}}, "token id -1");
  expect({.prompt = {5}, .max_tokens = 0}, "max_tokens");
  expect(with_budget({.prompt = {5}}, 257), "1..256");
  Request bad{.prompt = {5}};
  bad.sampling.temperature = std::numeric_limits<float>::quiet_NaN();
  expect(bad, "temperature");
  bad.sampling = {.top_p = 0.0f};
  expect(bad, "top_p");
  bad.sampling = {.min_p = 1.0f};
  expect(bad, "min_p");
  bad.sampling = {.top_k = -1};
  expect(bad, "top_k");
}

TEST(Engine, QueuesForPagesAndRefusesWhatExceedsThem) {
  engine::EngineOptions options = tiny_options();
  options.kv_pages = 3;  // 192 tokens: one of the requests below at a time
  Engine engine(cpu_backend(), options);
  std::vector<std::shared_ptr<engine::RequestStream>> streams;
  for (int i = 0; i < 5; ++i) streams.push_back(engine.submit(with_budget(prompt(0, 100), 15)));
  const Output want = generate(tiny_engine(), prompt(0, 100));
  for (auto& stream : streams) EXPECT_EQ(collect(*stream).tokens, want.tokens);
  EXPECT_THROW(engine.submit(prompt(0, 500)), Error);
}

TEST(Engine, CancelFreesPages) {
  engine::EngineOptions options = tiny_options();
  options.kv_pages = 16;  // one full context
  Engine engine(cpu_backend(), options);
  Request endless = with_budget(prompt(1, 900), 15);
  endless.ignore_eos = true;
  const auto first = engine.submit(endless);
  const auto waiting = engine.submit(endless);
  engine::Event event;
  ASSERT_TRUE(first->next(&event));
  waiting->cancel();
  EXPECT_EQ(collect(*waiting).reason, FinishReason::kCancelled);
  first->cancel();
  EXPECT_EQ(collect(*first).reason, FinishReason::kCancelled);
  EXPECT_EQ(generate(engine, prompt(3, 96)).tokens,
            reference()[3]["greedy_ids"].get<std::vector<int32_t>>());
}

TEST(Engine, DestructionCancels) {
  std::shared_ptr<engine::RequestStream> stream;
  {
    Engine engine(cpu_backend(), tiny_options());
    Request endless = prompt(1, 900);
    endless.ignore_eos = true;
    stream = engine.submit(endless);
  }
  EXPECT_EQ(collect(*stream).reason, FinishReason::kCancelled);
}

// A backend whose target logits turn to NaN for the request of seed 666 from position 20 on.
Backend poisoned_backend() {
  Backend backend = cpu_backend();
  backend.tree_accept = [](const TreeAcceptParams& p, Stream stream) {
    for (int32_t b = 0; b < p.batch; ++b)
      if (p.sampling[b].seed == 666 && p.positions[p.row_offset[b]] >= 20)
        const_cast<float*>(p.logits)[static_cast<int64_t>(p.row_offset[b]) * p.vocab + 7] = NAN;
    cpu_backend().tree_accept(p, stream);
  };
  return backend;
}

TEST(Engine, NanLogitsEndThatRequestOnly) {
  const Backend backend = poisoned_backend();
  Engine engine(backend, tiny_options());
  Request doomed = with_budget(prompt(0, 96), 15);
  doomed.sampling.seed = 666;
  const auto bad = engine.submit(doomed);
  const auto good = engine.submit(with_budget(prompt(0, 96), 15));
  const Output output = collect(*bad);
  EXPECT_EQ(output.reason, FinishReason::kError);
  EXPECT_NE(output.error.find("not finite"), std::string::npos);
  EXPECT_EQ(collect(*good).tokens, reference()[0]["greedy_ids"].get<std::vector<int32_t>>());
}

constexpr int kBudgets[] = {0, -1, 1, 7, 64, 256};

TEST(Engine, ServesManyClientThreads) {
  std::vector<std::thread> clients;
  std::vector<int> correct(6);
  for (int c = 0; c < 6; ++c)
    clients.emplace_back([&, c] {
      for (int round = 0; round < 3; ++round) {
        const size_t index = (c * 3 + round) % reference().size();
        auto stream = tiny_engine().submit(with_budget(prompt(index, 30), kBudgets[c]));
        if (round == 1) {
          stream->cancel();
          collect(*stream);
          continue;
        }
        auto want = reference()[index]["greedy_ids"].get<std::vector<int32_t>>();
        if (want.size() > 30) want.resize(30);
        correct[c] += collect(*stream).tokens == want;
      }
    });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(correct, std::vector<int>(6, 2));
}

// Clients submit, cancel early and late, drop their streams and go on; then the engine goes while
// requests run and wait. Every stream ends, and what ran to its end is right.
TEST(Engine, SurvivesAStorm) {
  constexpr int kClients = 4, kRequests = 6;
  engine::EngineOptions options = tiny_options();
  options.max_batch = 3;
  options.kv_pages = 6;  // two requests of the size below
  auto engine = std::make_unique<Engine>(cpu_backend(), options);
  std::mutex mutex;
  std::vector<std::shared_ptr<engine::RequestStream>> left;
  std::vector<int> wrong(kClients);
  const auto client = [&](int c) {
    std::mt19937 random(c);
    for (int i = 0; i < kRequests; ++i) {
      const size_t index = random() % reference().size();
      auto stream = engine->submit(with_budget(prompt(index, 24), kBudgets[random() % 6]));
      const int fate = random() % 5;
      engine::Event event;
      if (fate == 0) continue;  // dropped
      if (fate == 1) stream->cancel();
      if (fate == 2 && stream->next(&event)) stream->cancel();
      if (fate == 3) {
        const std::lock_guard lock(mutex);
        left.push_back(stream);
        continue;
      }
      const Output output = collect(*stream);
      auto want = reference()[index]["greedy_ids"].get<std::vector<int32_t>>();
      want.resize(std::min<size_t>(want.size(), 24));
      if (fate == 4) wrong[c] += output.tokens != want;
      wrong[c] += output.reason == FinishReason::kError || stream->next(&event);
    }
  };
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) clients.emplace_back(client, c);
  for (std::thread& thread : clients) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(kClients, 0));
  for (int i = 0; i < 8; ++i) left.push_back(engine->submit(prompt(0, 100)));
  engine.reset();
  for (const auto& stream : left) EXPECT_NE(collect(*stream).reason, FinishReason::kNone);
  left.back()->cancel();  // too late to matter
}

// Values at the edge of what is allowed: near-zero temperatures are greedy, filters beyond the
// vocabulary filter nothing, and no mode changes what is drawn.
TEST(Engine, ExtremeSampling) {
  constexpr float kLeast = std::numeric_limits<float>::denorm_min();
  constexpr float kMost = std::numeric_limits<float>::max();
  constexpr int32_t kMaxInt = std::numeric_limits<int32_t>::max();
  const std::vector<int32_t> greedy = generate(tiny_engine(), prompt(2, 12)).tokens;
  const auto sampled = [&](SamplingParams sampling, int budget) {
    Request request = with_budget(prompt(2, 12), budget);
    request.sampling = sampling;
    const Output output = generate(tiny_engine(), request);
    EXPECT_EQ(output.error, "");
    return output.tokens;
  };
  for (const int budget : {0, -1, 15}) {
    EXPECT_EQ(sampled({.temperature = kLeast}, budget), greedy);
    EXPECT_EQ(sampled({.temperature = 1.0f, .top_p = kLeast}, budget), greedy);
    EXPECT_EQ(sampled({.temperature = 1.0f, .min_p = std::nextafter(1.0f, 0.0f)}, budget), greedy);
    const SamplingParams wild{.temperature = kMost, .top_k = kMaxInt, .seed = ~uint64_t{0}};
    EXPECT_EQ(sampled(wild, budget), sampled(wild, 0));
  }
}

}  // namespace
}  // namespace kdt

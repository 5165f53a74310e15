// Whole sampled runs of the tiny pair against the golden bundles: the same tokens in every mode,
// alone and side by side.
#include <gtest/gtest.h>

#include "tests/engine/tiny_pair.h"
#include "tests/ops/golden.h"

namespace kdt {
namespace {

engine::Request request_of(const test::Golden& golden) {
  return {.prompt = golden.get<int32_t>("prompt_ids"),
          .max_tokens = golden.scalar<int32_t>("max_tokens"),
          .sampling = {.temperature = golden.scalar<float>("sampling.temperature"),
                       .top_p = golden.scalar<float>("sampling.top_p"),
                       .min_p = golden.scalar<float>("sampling.min_p"),
                       .top_k = golden.scalar<int32_t>("sampling.top_k"),
                       .seed = golden.scalar<uint64_t>("sampling.seed")},
          .ignore_eos = true};
}

TEST(GoldenGenerate, EveryModeAloneAndTogether) {
  engine::Engine engine(cpu_backend(), test::tiny_options());
  struct Run {
    std::string label;
    engine::Request request;
    std::vector<int32_t> want;
  };
  std::vector<Run> runs;
  for (const test::Golden& golden : test::golden_bundles("generate"))
    for (const int budget : {0, -1, 1, 15, 64})
      runs.push_back({fmt::format("{} budget {}", golden.label(), budget),
                      test::with_budget(request_of(golden), budget),
                      golden.get<int32_t>("tokens")});

  for (const Run& run : runs) {
    ASSERT_EQ(run.want.size(), 16u);
    EXPECT_EQ(test::generate(engine, run.request).tokens, run.want) << run.label;
  }
  std::vector<std::shared_ptr<engine::RequestStream>> streams;
  for (const Run& run : runs) streams.push_back(engine.submit(run.request));
  for (size_t i = 0; i < runs.size(); ++i)
    EXPECT_EQ(test::collect(*streams[i]).tokens, runs[i].want) << runs[i].label << ", in a batch";
}

}  // namespace
}  // namespace kdt

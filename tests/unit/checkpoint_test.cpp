#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include "base/dtype.h"
#include "checkpoint/config.h"
#include "checkpoint_files.h"

namespace kdt::checkpoint {
namespace {

constexpr const char* kIndex = "model.safetensors.index.json";

TestTensor floats(const std::string& name, const std::vector<float>& values) {
  return {name, "F32", {static_cast<int64_t>(values.size())}, bytes_of(values)};
}

std::string index_of(const TestJson& map) {
  return TestJson{{"weight_map", map}}.dump();
}

std::string open_error(const TempDir& dir) {
  return message_of([&] { Checkpoint checkpoint(dir.path()); });
}

TEST(Checkpoint, ReadsASingleFile) {
  const TempDir dir;
  dir.write("model.safetensors", safetensors({floats("a", {1, 2}), floats("b", {3})}));
  const Checkpoint checkpoint(dir.path());
  ASSERT_NE(checkpoint.find("a"), nullptr);
  EXPECT_EQ(checkpoint.find("c"), nullptr);
  float values[2] = {-1, -1};
  read_f32(checkpoint.get("a", {2}, {DType::kF32}), values);
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[1], 2.0f);
}

TEST(Checkpoint, ReadsShardsAndIgnoresUnlistedTensors) {
  const TempDir dir;
  dir.write("m-1.safetensors", safetensors({floats("a", {1}), floats("unlisted", {9})}));
  dir.write("m-2.safetensors", safetensors({floats("b", {2})}));
  dir.write(kIndex, index_of({{"a", "m-1.safetensors"}, {"b", "m-2.safetensors"}}));
  const Checkpoint checkpoint(dir.path());
  EXPECT_EQ(checkpoint.tensors().size(), 2u);
  EXPECT_EQ(checkpoint.find("b")->file->path(), dir.path() + "/m-2.safetensors");
  EXPECT_EQ(checkpoint.find("unlisted"), nullptr);
}

TEST(Checkpoint, GetNamesTensorFoundAndExpected) {
  const TempDir dir;
  dir.write("model.safetensors", safetensors({floats("a.weight", {1, 2})}));
  const Checkpoint checkpoint(dir.path());
  const auto get_error = [&](const char* name, std::vector<int64_t> shape, DType dtype) {
    return message_of([&] { checkpoint.get(name, shape, {dtype, DType::kBF16}); });
  };
  expect_has(get_error("a.weight", {3}, DType::kF32),
             "model.safetensors: tensor a.weight is f32 [2], expected f32 or bf16 [3]");
  expect_has(get_error("a.weight", {2}, DType::kF16), "is f32 [2], expected f16 or bf16 [2]");
  expect_has(get_error("a.weight", {2, 1}, DType::kF32), "expected f32 or bf16 [2, 1]");
  expect_has(get_error("b.weight", {2}, DType::kF32),
             dir.path() + ": tensor b.weight is missing, expected f32 or bf16 [2]");
}

TEST(Checkpoint, NoWeights) {
  const TempDir dir;
  expect_has(open_error(dir), dir.path() + ": no weights: expected ");
  expect_has(message_of([&] { Checkpoint(dir.path() + "/nowhere"); }), "nowhere: no weights");
}

TEST(Checkpoint, IndexProblems) {
  struct Case {
    std::string index;
    const char* expected;
  };
  const std::vector<Case> cases = {
      {"{", "index.json: not valid JSON"},
      {"{}", "weight_map is missing or empty"},
      {R"({"weight_map":{}})", "weight_map is missing or empty"},
      {R"({"weight_map":["a"]})", "weight_map is missing or empty"},
      {R"({"weight_map":{"a":1}})", "weight_map gives 1 for tensor a"},
      {index_of({{"a", "../m-1.safetensors"}}), "gives \"../m-1.safetensors\" for tensor a"},
      {index_of({{"a", "/etc/m.safetensors"}}), "expected the name of a .safetensors file"},
      {index_of({{"a", "config.json"}}), "expected the name of a .safetensors file"},
      {R"({"weight_map":{"a":"m-1\u0000.safetensors"}})", "expected the name of a .safetensors"},
      {R"({"weight_map":{"a":"m-1.safetensors","a":"m-1.safetensors"}})", "duplicate key \"a\""},
      {index_of({{"a", "m-1.safetensors"}, {"b", "m-9.safetensors"}}),
       "m-9.safetensors: shard is missing"},
      {index_of({{"a", "m-1.safetensors"}, {"x", "m-1.safetensors"}}),
       "m-1.safetensors: tensor x is missing"},
      {index_of({{"a", "m-2.safetensors"}, {"b", "m-1.safetensors"}}),
       "m-1.safetensors: tensor b is in "},
      {index_of({{"a", "m-1.safetensors"}, {"c", "m-3.safetensors"}}),
       "m-3.safetensors: tensor a is also in "},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.index);
    const TempDir dir;
    dir.write("m-1.safetensors", safetensors({floats("a", {1})}));
    dir.write("m-2.safetensors", safetensors({floats("b", {1})}));
    dir.write("m-3.safetensors", safetensors({floats("a", {1}), floats("c", {1})}));
    dir.write(kIndex, c.index);
    expect_has(open_error(dir), c.expected);
  }
}

TEST(Checkpoint, TruncatedShardIsNamed) {
  const TempDir dir;
  const std::string shard = safetensors({floats("a", {1, 2, 3})});
  dir.write(kIndex, index_of({{"a", "m-1.safetensors"}}));
  for (size_t n = 0; n < shard.size(); ++n) {
    dir.write("m-1.safetensors", shard.substr(0, n));
    expect_has(open_error(dir), "m-1.safetensors: ");
  }
}

// Resident pages that belong to files, from the kernel.
int64_t resident_file_pages() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0, shared = 0;
  statm >> size >> resident >> shared;
  return shared;
}

TEST(Checkpoint, ReleaseDropsPagesAndKeepsTheView) {
  const TempDir dir;
  std::vector<float> values(4 << 20);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  dir.write("model.safetensors", safetensors({floats("big", values)}));
  const Checkpoint checkpoint(dir.path());
  const TensorView& big = checkpoint.get("big", {4 << 20}, {DType::kF32});
  std::vector<float> out(values.size(), -1);
  read_f32(big, out.data());
  EXPECT_EQ(out, values);
  const int64_t before = resident_file_pages();
  release(big);
  EXPECT_LT(resident_file_pages(), before - 3000);  // of 4096 pages
  std::fill(out.begin(), out.end(), -1.0f);
  read_f32(big, out.data());
  EXPECT_EQ(out, values);
}

TEST(Checkpoint, SkippedNames) {
  TargetConfig config;
  config.weight_prefix = "language_model.";
  config.n_layers = 61;
  config.n_mtp_layers = 1;
  for (const char* name :
       {"vision_tower.encoder.blocks.0.wqkv.weight", "mm_projector.proj.0.weight",
        "language_model.model.layers.61.eh_proj.weight",
        "language_model.model.layers.0.self_attn.rotary_emb.inv_freq"})
    EXPECT_TRUE(is_skipped(config, name)) << name;
  for (const char* name :
       {"language_model.model.layers.60.mlp.gate.weight", "model.layers.61.eh_proj.weight",
        "language_model.model.layers.62.eh_proj.weight", "language_model.model.layers..weight",
        "language_model.model.layers.61x.weight", "language_model.model.layers.",
        "language_model.model.layers.99999999999999999999.weight", "", "vision_tower"})
    EXPECT_FALSE(is_skipped(config, name)) << name;
}

}  // namespace
}  // namespace kdt::checkpoint

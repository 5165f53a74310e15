#include "model/weight_loader.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/unit/checkpoint_files.h"

namespace kdt::model {
namespace {

using checkpoint::bytes_of;
using checkpoint::float_tensor;
using checkpoint::QuantizationConfig;
using checkpoint::TestTensor;
using test::expect_has;
using test::message_of;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const WeightLoader::Weight kLinear{.is_linear = true, .name = "m", .shape = {2, 3}};

// Loads with `load(loader)` from a checkpoint of these tensors.
template <typename Load>
void with_loader(const std::vector<TestTensor>& tensors, Load load) {
  const test::TempDir dir;
  dir.write("model.safetensors", checkpoint::safetensors(tensors));
  const checkpoint::Checkpoint opened(dir.path());
  const QuantizationConfig fp8{.format = QuantizationConfig::Format::kFp8Block, .block_size = 128};
  WeightLoader loader(cpu_backend(), opened, fp8, {});
  load(loader);
}

std::vector<TestTensor> fp8_module(uint8_t code, float scale) {
  return {{"m.weight", "F8_E4M3", {2, 3}, bytes_of<uint8_t>({1, 2, 3, 4, code, 6})},
          {"m.weight_scale_inv", "F32", {1, 1}, bytes_of<float>({scale})}};
}

TEST(WeightLoader, NonFiniteWeightsAreRefusedByName) {
  const auto linear_error = [](const std::vector<TestTensor>& tensors) {
    return message_of(
        [&] { with_loader(tensors, [](WeightLoader& loader) { loader.linear(kLinear); }); });
  };
  with_loader(fp8_module(5, 1.0f), [](WeightLoader& loader) { loader.linear(kLinear); });
  expect_has(linear_error(fp8_module(0x7f, 1.0f)), "tensor m.weight holds NaN or infinity");
  expect_has(linear_error(fp8_module(5, kInf)), "tensor m.weight_scale_inv holds NaN or infinity");
  for (const float bad : {kInf, -kInf, kNan})
    for (const char* dtype : {"F32", "BF16"})
      expect_has(linear_error({float_tensor("m.weight", dtype, {2, 3}, {1, 2, 3, 4, bad, 6})}),
                 "tensor m.weight holds NaN or infinity");

  const std::vector<TestTensor> vector = {float_tensor("v", "F32", {2}, {1, kNan})};
  expect_has(message_of([&] {
               with_loader(vector, [](WeightLoader& loader) {
                 loader.vector({.name = "v", .shape = {2}});
               });
             }),
             "tensor v holds NaN or infinity");
}

TEST(WeightLoader, ProgressEndsAtAllBytesWhateverIsLeftOut) {
  const test::TempDir dir;
  dir.write("model.safetensors",
            checkpoint::safetensors({float_tensor("used", "F32", {2}, {1, 2}),
                                     checkpoint::zeros("skipped", "F32", {5})}));
  const checkpoint::Checkpoint opened(dir.path());
  std::vector<std::pair<size_t, size_t>> seen;
  WeightLoader loader(cpu_backend(), opened, {},
                      [&](size_t done, size_t total) { seen.emplace_back(done, total); });
  loader.vector({.name = "used", .shape = {2}});
  loader.finish();
  EXPECT_EQ(seen, (std::vector<std::pair<size_t, size_t>>{{8, 28}, {28, 28}}));
}

}  // namespace
}  // namespace kdt::model

#include "tests/ops/golden.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "cpu/philox.h"

namespace kdt::test {
namespace {

std::string field(const std::string& text, const std::string& key) {
  const size_t start = text.find(" " + key + "=") + key.size() + 2;
  return text.substr(start, text.find(' ', start) - start);
}

std::vector<int64_t> numbers(const std::string& list) {
  std::vector<int64_t> values;
  std::istringstream stream(list);
  for (std::string item; std::getline(stream, item, ',');) values.push_back(std::stoll(item));
  return values;
}

// bf16 values of a seed, as fp32.
std::vector<float> seeded_values(const std::string& text) {
  const uint64_t seed = std::stoull(field(text, "seed"));
  const float step = std::stof(field(text, "scale")) / 148.0f;
  size_t n = 1;
  for (const int64_t size : numbers(field(text, "shape"))) n *= static_cast<size_t>(size);
  std::vector<float> values(n);
  std::array<uint32_t, 4> lanes{};
  for (size_t i = 0; i < n; ++i) {
    if (i % 4 == 0)
      lanes = cpu::philox4x32({static_cast<uint32_t>(i / 4), 0, 0, 0},
                              {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    const uint32_t word = lanes[i % 4];
    const auto total =
        static_cast<int32_t>((word & 255) + (word >> 8 & 255) + (word >> 16 & 255) + (word >> 24)) -
        510;
    values[i] = bf16_to_f32(f32_to_bf16(static_cast<float>(total) * step));
  }
  return values;
}

}  // namespace

std::string Golden::metadata(const std::string& wanted) const {
  for (const auto& [key, value] : reader_.metadata()) {
    if (key == wanted) return value;
  }
  return "";
}

bool Golden::has(const std::string& name) const {
  return reader_.find(name) != nullptr || !seeded(name).empty();
}

std::vector<int64_t> Golden::shape(const std::string& name) const {
  const std::string text = seeded(name);
  return text.empty() ? reader_.at(name).shape : numbers(field(text, "shape"));
}

DType Golden::dtype(const std::string& name) const {
  return seeded(name).empty() ? reader_.at(name).dtype : DType::kBF16;
}

std::vector<float> Golden::floats(const std::string& name) const {
  if (const std::string text = seeded(name); !text.empty()) return seeded_values(text);
  const DType type = dtype(name);
  if (type == DType::kF32) return get<float>(name);
  std::vector<float> values;
  for (const uint16_t code : reader_.at(name).as<uint16_t>(type))
    values.push_back(type == DType::kBF16 ? bf16_to_f32(code) : f16_to_f32(code));
  return values;
}

std::vector<Golden> golden_bundles(const std::string& op) {
  std::vector<std::string> paths;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(KDT_SOURCE_DIR) + "/tests/golden")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(op + ".") && name.ends_with(".kdtr"))
      paths.push_back(entry.path().string());
  }
  if (paths.empty()) throw_error(ErrorCode::kIo, "tests/golden holds no bundle of {}", op);
  std::sort(paths.begin(), paths.end());
  std::vector<Golden> bundles;
  for (const std::string& path : paths) bundles.emplace_back(path);
  return bundles;
}

}  // namespace kdt::test

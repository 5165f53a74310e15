#include "checkpoint/checkpoint.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/config.h"
#include "checkpoint/elements.h"

namespace kdt::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxIndexBytes = size_t{256} << 20;

// A shard lives in the checkpoint's own directory, whatever the index says.
bool is_plain_file_name(const std::string& name) {
  return name.ends_with(".safetensors") && name.find('/') == name.npos &&
         name.find('\0') == name.npos;
}

}  // namespace

ShardTensors parse_shard_index(const std::string& path, std::string_view json) {
  const Json document = parse_object(json, path);
  const auto map = document.find("weight_map");
  if (map == document.end() || !map->is_object() || map->empty())
    throw_error(ErrorCode::kBadFile, "{}: weight_map is missing or empty, expected tensor: shard",
                path);
  ShardTensors shards;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string() || !is_plain_file_name(shard.get<std::string>()))
      throw_error(ErrorCode::kBadFile,
                  "{}: weight_map gives {} for tensor {}, expected the name of a .safetensors file "
                  "in this directory",
                  path, shown(shard), printable(tensor));
    shards[shard.get<std::string>()].push_back(tensor);
  }
  return shards;
}

Checkpoint::Checkpoint(const std::string& dir) : dir_(dir) {
  const fs::path base(dir);
  const std::string single = (base / "model.safetensors").string();
  const std::string index = (base / "model.safetensors.index.json").string();
  if (file_exists(single)) {
    for (const TensorView& tensor : shards_.emplace_back(single).tensors()) add(tensor);
  } else if (file_exists(index)) {
    open_shards(index);
  } else {
    throw_error(ErrorCode::kIo, "{}: no weights: expected {} or {}", dir, single, index);
  }
}

void Checkpoint::add(const TensorView& tensor) {
  tensors_.push_back(&tensor);
  by_name_.emplace(tensor.name, &tensor);
}

void Checkpoint::open_shards(const std::string& index_path) {
  const ShardTensors promised =
      parse_shard_index(index_path, read_text_file(index_path, kMaxIndexBytes));
  std::unordered_map<std::string_view, const TensorView*> stored;  // every tensor of every shard
  for (const auto& [shard, names] : promised) {
    const std::string path = (fs::path(dir_) / shard).string();
    if (!file_exists(path))
      throw_error(ErrorCode::kIo, "{}: shard is missing; {} needs it for {} tensors, first {}",
                  path, index_path, names.size(), printable(names.front()));
    for (const TensorView& tensor : shards_.emplace_back(path).tensors()) {
      const auto [it, is_new] = stored.emplace(tensor.name, &tensor);
      if (!is_new)
        throw_error(ErrorCode::kBadFile, "{}: tensor {} is also in {}", path,
                    printable(tensor.name), it->second->file->path());
    }
  }
  for (const auto& [shard, names] : promised) {
    const std::string path = (fs::path(dir_) / shard).string();
    for (const std::string& name : names) {
      const auto it = stored.find(name);
      if (it == stored.end())
        throw_error(ErrorCode::kBadFile, "{}: tensor {} is missing; {} says it is here", path,
                    printable(name), index_path);
      if (it->second->file->path() != path)
        throw_error(ErrorCode::kBadFile, "{}: tensor {} is in {}; {} says it is here", path,
                    printable(name), it->second->file->path(), index_path);
      add(*it->second);
    }
  }
}

const TensorView* Checkpoint::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second;
}

const TensorView& Checkpoint::get(std::string_view name, const std::vector<int64_t>& shape,
                                  std::initializer_list<DType> dtypes) const {
  std::vector<std::string_view> names;
  for (const DType dtype : dtypes) names.push_back(dtype_name(dtype));
  const std::string expected =
      fmt::format("{} [{}]", fmt::join(names, " or "), fmt::join(shape, ", "));
  const TensorView* tensor = find(name);
  if (!tensor)
    throw_error(ErrorCode::kBadFile, "{}: tensor {} is missing, expected {}", dir_, name, expected);
  bool allowed = tensor->shape == shape;
  if (allowed) {
    allowed = false;
    for (const DType dtype : dtypes) allowed |= tensor->dtype == dtype;
  }
  if (!allowed)
    throw_error(ErrorCode::kBadFile, "{}: tensor {} is {}, expected {}", tensor->file->path(), name,
                describe(*tensor), expected);
  return *tensor;
}

void release(const TensorView& tensor) {
  if (tensor.file) tensor.file->release_pages(tensor.data);
}

void read_f32(const TensorView& tensor, float* out) {
  with_float_type(tensor.dtype, [&](auto element) {
    for (int64_t i = 0; i < tensor.numel(); ++i) out[i] = element.at(tensor.data.data(), i);
  });
}

bool is_skipped(const TargetConfig& config, std::string_view name) {
  if (name.starts_with("vision_tower.") || name.starts_with("mm_projector.")) return true;
  if (name.ends_with("rotary_emb.inv_freq")) return true;
  const std::string layers = config.weight_prefix + "model.layers.";
  if (!name.starts_with(layers)) return false;
  const std::string_view number =
      name.substr(layers.size(), name.find('.', layers.size()) - layers.size());
  // Longer numbers cannot be layer indices, and would overflow.
  if (number.empty() || number.size() > 6) return false;
  int64_t layer = 0;
  for (const char c : number) {
    if (c < '0' || c > '9') return false;
    layer = layer * 10 + (c - '0');
  }
  return layer >= config.n_layers && layer < config.n_layers + config.n_mtp_layers;
}

}  // namespace kdt::checkpoint

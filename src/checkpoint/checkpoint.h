// The tensors of a checkpoint directory: model.safetensors, or model.safetensors.index.json and
// the shards it lists. Everything stays mapped; nothing is copied.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/safetensors.h"

namespace kdt::checkpoint {

struct TargetConfig;

// Shard name -> the tensors that an index promises in it.
using ShardTensors = std::map<std::string, std::vector<std::string>>;

// The weight_map of model.safetensors.index.json. Throws kBadFile naming `path`; the shards are
// names of .safetensors files, never paths out of the checkpoint's directory.
ShardTensors parse_shard_index(const std::string& path, std::string_view json);

// Opens every shard at construction; kIo / kBadFile when a shard is missing or broken, or when
// index and shards disagree (naming shard and tensor). Thread-safe to read. Movable; views stay
// valid while it lives.
class Checkpoint {
 public:
  explicit Checkpoint(const std::string& dir);

  const std::string& dir() const { return dir_; }

  // Null when there is no such tensor.
  const TensorView* find(std::string_view name) const;

  // The tensor, of exactly this shape and one of these element types; otherwise kBadFile naming
  // tensor, expected and found.
  const TensorView& get(std::string_view name, const std::vector<int64_t>& shape,
                        std::initializer_list<DType> dtypes) const;

  // All tensors, shard by shard in payload order.
  const std::vector<const TensorView*>& tensors() const { return tensors_; }

 private:
  void add(const TensorView& tensor);
  void open_shards(const std::string& index_path);

  std::string dir_;
  std::vector<SafetensorsFile> shards_;
  std::vector<const TensorView*> tensors_;
  std::unordered_map<std::string_view, const TensorView*> by_name_;
};

// Tells the kernel the mapped pages of a tensor are no longer needed, so that a repacked weight is
// not resident twice. The view stays valid: touching it reads the file again.
void release(const TensorView& tensor);

// Copies a dense f32, bf16 or f16 tensor to fp32, `out` [numel].
void read_f32(const TensorView& tensor, float* out);

// Tensors of a target checkpoint that the text model does not use: vision_tower.*, mm_projector.*,
// rotary_emb.inv_freq buffers, and the MTP layers stored after the last layer.
bool is_skipped(const TargetConfig& config, std::string_view name);

}  // namespace kdt::checkpoint

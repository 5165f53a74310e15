// Whole decode rounds made of ops, with a model of tables in place of the networks: draft logits
// are a row of a table by root token, target logits, queries and keys rows by tree token or
// position. So every round depends on the one before, and all of it stays in backend memory.
#pragma once

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "tests/ops/arrays.h"
#include "tests/ops/random.h"

namespace kdt::test {

// The tables. `successor` is what the target most often says next, and what the drafter expects.
struct TableModel {
  static constexpr int kVocab = 1201, kDepth = 6, kHeads = 8, kLatent = 512, kWidth = 576;
  static constexpr int kLayers = 2, kPositions = 640;
  static constexpr int kNanToken = 700;  // its target logits hold a NaN

  static int successor(int token) { return (7 * token + 3) % kVocab; }

  std::vector<float> draft;   // [vocab, depth * vocab]
  std::vector<float> target;  // [vocab, vocab]
  // bf16 in pairs, so that `embedding` moves them as numbers of 32 bits.
  std::vector<float> queries;        // [vocab, heads * width / 2]
  std::vector<float> token_keys;     // [vocab, width / 2], the first layer's
  std::vector<float> position_keys;  // [positions, width / 2], the second's

  explicit TableModel(uint64_t seed) : random_(seed) {
    queries = pairs(size_t{kVocab} * kHeads * kWidth);
    token_keys = pairs(size_t{kVocab} * kWidth);
    position_keys = pairs(size_t{kPositions} * kWidth);
    target = noise(size_t{kVocab} * kVocab);
    draft = noise(size_t{kVocab} * kDepth * kVocab);
    for (int token = 0; token < kVocab; ++token) {
      prefer(&target[size_t(token) * kVocab], successor(token), 11.0f);
      for (int depth = 0, next = token; depth < kDepth; ++depth) {
        next = successor(next);
        // One guess in four is wrong.
        const int guess = random_.integer(0, 3) ? next : int(random_.integer(0, kVocab - 1));
        prefer(&draft[(size_t(token) * kDepth + depth) * kVocab], guess, 10.0f);
      }
    }
    target[size_t{kNanToken} * kVocab + 5] = std::numeric_limits<float>::quiet_NaN();
  }

 private:
  std::vector<float> noise(size_t count) {
    std::vector<float> x(count);
    for (float& v : x) v = 3.0f * static_cast<float>(random_.uniform());
    return x;
  }
  // Bit pairs of bf16 numbers between -2 and 2.
  std::vector<float> pairs(size_t count) {
    std::vector<uint16_t> codes(count);
    for (uint16_t& x : codes) x = f32_to_bf16(4.0f * static_cast<float>(random_.uniform()) - 2.0f);
    std::vector<float> x(count / 2);
    std::memcpy(x.data(), codes.data(), count * 2);
    return x;
  }
  static void prefer(float* logits, int token, float logit) {
    logits[token] = logit;
    logits[(token + 1) % kVocab] = logit - 0.7f;
  }

  Random random_;
};

struct RoundRequest {
  int32_t root = 0, prefix = 0, budget = 0, max_len = 0;
  SamplingParams sampling;
};

// What a round left in backend memory.
struct RoundState {
  std::vector<int32_t> n_nodes, accepted, n_accepted, bonus, status, prefix_len, root_token;
  std::vector<int32_t> max_depth, tokens, parents, depths, positions, first_child, next_sibling;
  std::vector<int32_t> targets;
  std::vector<double> scores;
  std::vector<uint64_t> ancestors;
  std::vector<char> pages, features;
  std::array<std::vector<float>, TableModel::kLayers> out, lse;
};

class RoundPipeline {
 public:
  using M = TableModel;

  RoundPipeline(const Backend& backend, const TableModel& model,
                const std::vector<RoundRequest>& requests);

  // One round, with no host value in it.
  void enqueue(Stream stream);
  RoundState state() const;

  int n_rows() const { return n_rows_; }
  int max_accepted() const { return M::kDepth + 1; }
  const std::vector<int32_t>& row_offset() const { return offsets_; }
  // The page that holds a position.
  int page(int request, int position) const {
    return table_[size_t(request) * max_blocks_ + position / kPageTokens];
  }
  int n_pages() const { return n_pages_; }

 private:
  void lookup(Array<float>& table, int width, const int32_t* ids, int n, void* out, Stream stream);
  void build_trees(Stream stream);
  void attend(Stream stream);
  void accept_and_commit(Stream stream);
  RowBatch rows();
  Workspace workspace(size_t bytes);

  static constexpr int kBudget = 64, kWords = 2;

  const Backend& backend_;
  int batch_, n_rows_ = 0, n_pages_ = 0, max_blocks_ = 0;
  std::vector<int32_t> offsets_, table_;

  Array<float> draft_table_, target_table_, query_table_, token_keys_, position_keys_;
  // Per request.
  Array<int32_t> row_offset_, budget_, max_rank_, max_len_, block_table_, feature_offset_;
  Array<int32_t> prefix_len_, root_token_, max_depth_;
  Array<SamplingParams> sampling_;
  Array<int32_t> topk_status_, n_nodes_, accepted_, n_accepted_, bonus_, status_;
  // Per row.
  Array<float> draft_logits_, logp_, logits_, features_, queries_, tail_;
  Array<int32_t> ids_, tokens_, parents_, depths_, positions_, first_child_, next_sibling_;
  Array<int32_t> targets_;
  Array<double> scores_;
  Array<uint64_t> ancestors_;
  std::array<Array<float>, M::kLayers> out_, lse_;
  Array<uint16_t> pages_;  // [layers, n_pages, 64, width]
  Array<char> workspace_;
};

}  // namespace kdt::test

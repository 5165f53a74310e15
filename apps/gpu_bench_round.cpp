// GPU bench of a whole round without the networks: top-k, tree, attention, greedy accept, commit
// and the step to the next round, as one graph. Logits, queries and keys are random and stay the
// same; lengths move on from replay to replay. The parts are measured around one layer's attention,
// beside which their times can be seen; the commit moves all layers.
#include <algorithm>

#include "apps/gpu_bench.h"

namespace kdt::apps {
namespace {

constexpr int32_t kVocab = 163840, kDepth = 15, kBudget = 64, kNodes = kBudget + 1, kHeads = 8;
constexpr int32_t kLayers = 61, kWidth = 576, kFeatures = 6, kHidden = 7168;
constexpr int32_t kSpare = 64 * (kDepth + 1);  // tokens for the replays

struct Part {
  const char* name;
  std::function<void(Stream)> run;
};

// One GPU's share of a Kimi K2.6 round (8 of 64 heads, all layers), for requests of equal length.
class BenchRound {
 public:
  BenchRound(const Backend& backend, int32_t batch, int32_t prefix)
      : backend_(backend), data_(backend), batch_(batch), n_rows_(batch * kNodes) {
    blocks_ = (prefix + kSpare + kPageTokens - 1) / kPageTokens;
    std::vector<int32_t> offsets, table, feature_offset;
    for (int32_t b = 0; b < batch; ++b) {
      offsets.push_back(b * kNodes);
      feature_offset.push_back(b * (kDepth + 1));
    }
    for (int32_t i = batch * blocks_; i-- > 0;) table.push_back(i);
    rows_ = {.n_requests = batch,
             .n_rows = n_rows_,
             .row_offset = data_.put(offsets),
             .n_nodes = per_request(0),
             .prefix_len = per_request(prefix),
             .block_table = data_.put(table),
             .max_blocks = blocks_};
    feature_offset_ = data_.put(feature_offset);
    root_ = per_request(1);
    max_depth_ = per_request(kDepth);
    make_tree();
    make_attention();
    make_accept();
    make_commit();
  }

  // What a round enqueues, in order.
  std::vector<Part> parts(int n_layers) {
    return {{"draft_topk", [this](Stream s) { draft_topk(backend_, topk_, s); }},
            {"tree_build", [this](Stream s) { tree_build(backend_, build_, s); }},
            {"verify_attention_plan",
             [this](Stream s) { verify_attention_plan(backend_, layer(0), s); }},
            {"verify_attention", [=, this](Stream s) { attend(n_layers, s); }},
            {"tree_accept", [this](Stream s) { tree_accept(backend_, accept_, s); }},
            {"kv_commit", [this](Stream s) { kv_commit(backend_, commit_, s); }},
            {"next_round", [this](Stream s) { next_round(backend_, next_, s); }}};
  }

 private:
  int32_t* per_request(int32_t value) { return data_.put(std::vector<int32_t>(batch_, value)); }
  int32_t* per_row() { return data_.zeros<int32_t>(n_rows_); }

  void make_tree() {
    const size_t entries = size_t{1} * batch_ * kDepth * kBudget;
    topk_ = {.logits = data_.bf16_normals(size_t{1} * batch_ * kDepth * kVocab, 2.0f),
             .dtype = DType::kBF16,
             .row_stride = kVocab,
             .batch = batch_,
             .depth = kDepth,
             .vocab = kVocab,
             .k = kBudget,
             .logp = data_.zeros<float>(entries),
             .ids = data_.zeros<int32_t>(entries),
             .status = per_request(0)};
    topk_.workspace = data_.workspace(draft_topk_workspace(backend_, topk_));
    build_ = {.logp = topk_.logp,
              .ids = topk_.ids,
              .budget = per_request(kBudget),
              .max_depth = max_depth_,
              .max_rank = per_request(kBudget),
              .root_token = root_,
              .prefix_len = rows_.prefix_len,
              .row_offset = rows_.row_offset,
              .batch = batch_,
              .depth = kDepth,
              .k = kBudget,
              .n_words = kNodes / 64 + 1,
              .max_budget = kBudget,
              .tokens = per_row(),
              .parents = per_row(),
              .depths = per_row(),
              .positions = per_row(),
              .scores = data_.zeros<double>(n_rows_),
              .ancestors = data_.zeros<uint64_t>(size_t{1} * n_rows_ * (kNodes / 64 + 1)),
              .first_child = per_row(),
              .next_sibling = per_row(),
              .n_nodes = const_cast<int32_t*>(rows_.n_nodes)};
    build_.workspace = data_.workspace(tree_build_workspace(backend_, build_));
  }

  void make_attention() {
    const size_t n_queries = size_t{1} * n_rows_ * kHeads;
    const size_t layer = size_t{1} * batch_ * blocks_ * kPageTokens * kWidth;
    pages_ = data_.zeros<uint16_t>(kLayers * layer);
    const uint16_t* random = data_.bf16_normals(layer);
    for (int i = 0; i < kLayers; ++i)
      backend_.copy(pages_ + i * layer, random, layer * sizeof(uint16_t), {});
    tail_ = data_.bf16_normals(size_t{kLayers} * n_rows_ * kWidth);
    attention_ = {.rows = rows_,
                  .q = data_.bf16_normals(n_queries * kWidth),
                  .ancestors = build_.ancestors,
                  .out = data_.zeros<uint16_t>(n_queries * 512),
                  .lse = data_.zeros<float>(n_queries),
                  .n_words = build_.n_words,
                  .n_heads = kHeads,
                  .n_pages = batch_ * blocks_,
                  .scale = 1.0f / 24.0f,
                  .q_dtype = DType::kBF16,
                  .kv_dtype = DType::kBF16,
                  .out_dtype = DType::kBF16};
    attention_.workspace = data_.workspace(verify_attention_workspace(backend_, attention_));
  }

  void attend(int n_layers, Stream stream) {
    for (int i = 0; i < n_layers; ++i) verify_attention(backend_, layer(i), stream);
  }

  VerifyAttentionParams layer(int i) const {
    VerifyAttentionParams p = attention_;
    p.kv_pages = pages_ + size_t{1} * i * p.n_pages * kPageTokens * kWidth;
    p.tail = tail_ + size_t{1} * i * n_rows_ * kWidth;
    return p;
  }

  void make_accept() {
    accept_ = {.logits = data_.normals(size_t{1} * n_rows_ * kVocab, 3.0f),
               .tokens = build_.tokens,
               .positions = build_.positions,
               .first_child = build_.first_child,
               .next_sibling = build_.next_sibling,
               .row_offset = rows_.row_offset,
               .n_nodes = rows_.n_nodes,
               .sampling = data_.put(std::vector<SamplingParams>(batch_)),
               .batch = batch_,
               .n_rows = n_rows_,
               .vocab = kVocab,
               .max_accepted = kDepth + 1,
               .accepted = data_.zeros<int32_t>(size_t{1} * batch_ * (kDepth + 1)),
               .n_accepted = per_request(0),
               .bonus = per_request(0),
               .status = per_request(0)};
    accept_.workspace = data_.workspace(tree_accept_workspace(backend_, accept_));
  }

  void make_commit() {
    commit_ = {
        .rows = rows_,
        .tail = tail_,
        .pages = pages_,
        .accepted = accept_.accepted,
        .n_accepted = accept_.n_accepted,
        .max_accepted = kDepth + 1,
        .n_layers = kLayers,
        .n_pages = attention_.n_pages,
        .width = kWidth,
        .tail_layer_stride = int64_t{n_rows_} * kWidth,
        .dtype = DType::kBF16,
        .features = data_.normals(size_t{kFeatures} * n_rows_ * kHidden),
        .features_out = data_.zeros<float>(size_t{1} * batch_ * (kDepth + 1) * kFeatures * kHidden),
        .feature_offset = feature_offset_,
        .n_features = kFeatures,
        .hidden = kHidden,
        .feature_stride = int64_t{n_rows_} * kHidden};
    next_ = {.n_accepted = accept_.n_accepted,
             .bonus = accept_.bonus,
             .max_len = per_request(blocks_ * kPageTokens),
             .prefix_len = const_cast<int32_t*>(rows_.prefix_len),
             .root_token = root_,
             .max_depth = max_depth_,
             .batch = batch_,
             .depth = kDepth};
  }

  const Backend& backend_;
  GpuData data_;
  int32_t batch_, n_rows_, blocks_;
  RowBatch rows_;
  int32_t *feature_offset_, *root_, *max_depth_;
  uint16_t *pages_, *tail_;
  DraftTopkParams topk_;
  TreeBuildParams build_;
  VerifyAttentionParams attention_;
  TreeAcceptParams accept_;
  KvCommitParams commit_;
  NextRoundParams next_;
};

}  // namespace

void bench_round(const Backend& backend, const GpuBenchOptions& options) {
  CsvFile csv(options, "composition.csv", "batch,heads,prefix,layers,part,alone_us,added_us");
  const double empty_us = gpu_us(backend, [](Stream) {});
  for (const auto& [batch, prefix] : {std::pair{1, 4096}, {1, 65536}, {8, 4096}}) {
    BenchRound round(backend, batch, prefix);
    for (const int layers : {1, kLayers}) {
      const std::vector<Part> parts = round.parts(layers);
      const auto first = [&](size_t n) {  // of the parts, in one graph
        return gpu_us(backend, [&](Stream stream) {
          for (size_t i = 0; i < n; ++i) parts[i].run(stream);
        });
      };
      const auto row = [&](const std::string& part, double alone_us, double added_us) {
        csv.row(fmt::format("{},{},{},{},{},{:.2f},{:.2f}", batch, kHeads, prefix, layers, part,
                            alone_us - empty_us, added_us));
      };
      first(parts.size());  // real trees and rows, for the parts alone
      double sum_us = empty_us, before_us = empty_us;
      for (size_t i = 0; i < parts.size(); ++i) {
        const double alone_us = gpu_us(backend, parts[i].run), until_us = first(i + 1);
        row(parts[i].name, alone_us, until_us - before_us);
        sum_us += alone_us - empty_us;
        before_us = until_us;
      }
      row("round", sum_us, before_us - empty_us);
    }
  }
}

}  // namespace kdt::apps

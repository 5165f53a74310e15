// GPU benches of the ops around the tree: build, accept, commit, merge.
#include <algorithm>
#include <functional>

#include "apps/gpu_bench.h"

namespace kdt::apps {
namespace {

constexpr int kVocab = 163840, kDepth = 15;

// Draft logits and the tree built from them, for B requests of one budget.
struct TreeProblem {
  DraftTopkParams topk;
  TreeBuildParams build;
};

TreeProblem tree_problem(const Backend& backend, GpuData& data, const uint16_t* logits, int batch,
                         int budget) {
  const size_t entries = static_cast<size_t>(batch) * kDepth * budget;
  const int rows = budget + 1;
  TreeProblem t;
  t.topk = {.logits = logits,
            .dtype = DType::kBF16,
            .row_stride = kVocab,
            .batch = batch,
            .depth = kDepth,
            .vocab = kVocab,
            .k = budget,
            .logp = data.zeros<float>(entries),
            .ids = data.zeros<int32_t>(entries),
            .log_z = data.zeros<float>(static_cast<size_t>(batch) * kDepth),
            .status = data.zeros<int32_t>(batch)};
  t.topk.workspace = data.workspace(draft_topk_workspace(backend, t.topk));
  std::vector<int32_t> offsets(batch);
  for (int b = 0; b < batch; ++b) offsets[b] = b * rows;
  const auto same = [&](int value) { return data.put(std::vector<int32_t>(batch, value)); };
  t.build = {.logp = t.topk.logp,
             .ids = t.topk.ids,
             .budget = same(budget),
             .max_depth = same(kDepth),
             .max_rank = same(budget),
             .root_token = same(1),
             .prefix_len = same(1000),
             .row_offset = data.put(offsets),
             .batch = batch,
             .depth = kDepth,
             .k = budget,
             .n_words = budget / 64 + 1,
             .max_budget = budget};
  const size_t n_rows = static_cast<size_t>(batch) * rows;
  for (int32_t** field : {&t.build.tokens, &t.build.parents, &t.build.depths, &t.build.positions,
                          &t.build.first_child, &t.build.next_sibling})
    *field = data.zeros<int32_t>(n_rows);
  t.build.scores = data.zeros<double>(n_rows);
  t.build.ancestors = data.zeros<uint64_t>(n_rows * t.build.n_words);
  t.build.n_nodes = data.zeros<int32_t>(batch);
  t.build.workspace = data.workspace(tree_build_workspace(backend, t.build));
  return t;
}

// A chain of nodes whose given targets accept all of it.
TreeAcceptParams given_chain(GpuData& data, int batch, int nodes, int accepted) {
  std::vector<int32_t> tokens, targets, child, sibling, offsets;
  for (int b = 0; b < batch; ++b) {
    offsets.push_back(b * nodes);
    for (int i = 0; i < nodes; ++i) {
      tokens.push_back(i);
      targets.push_back(i + 1 < accepted ? i + 1 : -2 + kVocab);
      child.push_back(i + 1 < nodes ? i + 1 : -1);
      sibling.push_back(-1);
    }
  }
  return {.tokens = data.put(tokens),
          .first_child = data.put(child),
          .next_sibling = data.put(sibling),
          .row_offset = data.put(offsets),
          .n_nodes = data.put(std::vector<int32_t>(batch, nodes)),
          .batch = batch,
          .n_rows = batch * nodes,
          .max_accepted = kDepth + 1,
          .accepted = data.zeros<int32_t>(static_cast<size_t>(batch) * (kDepth + 1)),
          .n_accepted = data.zeros<int32_t>(batch),
          .bonus = data.zeros<int32_t>(batch),
          .targets = data.put(targets),
          .status = data.zeros<int32_t>(batch)};
}

// 61 layers of bf16 latent rows and six captured layers' features, as in a K2.6 target.
KvCommitParams commit_problem(GpuData& data, int batch, int nodes, const TreeAcceptParams& accept) {
  constexpr int kLayers = 61, kWidth = 576, kFeatures = 6, kHidden = 7168, kPages = 4;
  const int n_rows = batch * nodes;
  std::vector<int32_t> table, offsets;
  for (int b = 0; b < batch; ++b) {
    offsets.push_back(b * accept.max_accepted);
    for (int i = 0; i < kPages; ++i) table.push_back(b * kPages + (i + 1) % kPages);
  }
  KvCommitParams p = {.rows = {.n_requests = batch,
                               .n_rows = n_rows,
                               .row_offset = accept.row_offset,
                               .prefix_len = data.put(std::vector<int32_t>(batch, 120)),
                               .block_table = data.put(table),
                               .max_blocks = kPages},
                      .accepted = accept.accepted,
                      .n_accepted = accept.n_accepted,
                      .max_accepted = accept.max_accepted,
                      .n_layers = kLayers,
                      .n_pages = batch * kPages,
                      .width = kWidth,
                      .tail_layer_stride = int64_t{n_rows} * kWidth,
                      .dtype = DType::kBF16,
                      .features = data.normals(size_t{kFeatures} * n_rows * kHidden),
                      .n_features = kFeatures,
                      .hidden = kHidden,
                      .feature_stride = int64_t{n_rows} * kHidden};
  p.tail = data.bf16_normals(size_t{kLayers} * n_rows * kWidth);
  p.pages = data.zeros<uint16_t>(size_t{kLayers} * batch * kPages * kPageTokens * kWidth);
  p.features_out =
      data.zeros<float>(static_cast<size_t>(batch) * accept.max_accepted * kFeatures * kHidden);
  p.feature_offset = data.put(offsets);
  return p;
}

}  // namespace

uint64_t* tree_ancestors(const Backend& backend, GpuData& data, int batch, int budget) {
  if (budget == 0) return data.put(std::vector<uint64_t>(batch, 1));
  const uint16_t* logits = data.bf16_normals(static_cast<size_t>(batch) * kDepth * kVocab, 2.0f);
  const TreeProblem t = tree_problem(backend, data, logits, batch, budget);
  draft_topk(backend, t.topk);
  tree_build(backend, t.build);
  return t.build.ancestors;
}

namespace {

void bench_trees(const Backend& backend, const GpuBenchOptions& options, const char* name,
                 const std::function<uint16_t*(GpuData&, int)>& logits_of) {
  CsvFile csv(options, name, "batch,vocab,depth,budget,topk_us,build_us,total_us");
  for (const int batch : {1, 8, 64}) {
    GpuData data(backend);
    const uint16_t* logits = logits_of(data, batch);
    for (const int budget : {16, 32, 64, 256, 1024}) {
      const TreeProblem t = tree_problem(backend, data, logits, batch, budget);
      const auto topk = [&](Stream stream) { draft_topk(backend, t.topk, stream); };
      const auto build = [&](Stream stream) { tree_build(backend, t.build, stream); };
      const double topk_us = gpu_us(backend, topk);
      const double build_us = gpu_us(backend, build);
      const double total_us = gpu_us(backend, [&](Stream stream) {
        topk(stream);
        build(stream);
      });
      csv.row(fmt::format("{},{},{},{},{:.2f},{:.2f},{:.2f}", batch, kVocab, kDepth, budget,
                          topk_us, build_us, total_us));
    }
  }
}

}  // namespace

void bench_tree_build(const Backend& backend, const GpuBenchOptions& options) {
  bench_trees(backend, options, "tree_build.csv", [](GpuData& data, int batch) {
    return data.bf16_normals(static_cast<size_t>(batch) * kDepth * kVocab, 2.0f);
  });
  bench_trees(backend, options, "tree_build_peaked.csv",
              [](GpuData& data, int batch) { return data.bf16_peaked(batch, kDepth, kVocab); });
}

void bench_tree_accept(const Backend& backend, const GpuBenchOptions& options) {
  CsvFile csv(options, "tree_accept.csv", "batch,nodes,vocab,mode,us,floor_us,ratio");
  const struct {
    const char* name;
    SamplingParams sampling;
  } modes[] = {{"greedy", {}},
               {"sampled", {.temperature = 1.0f, .seed = 1}},
               {"top_p_0.95", {.temperature = 1.0f, .top_p = 0.95f, .seed = 1}},
               {"top_k_50", {.temperature = 1.0f, .top_k = 50, .seed = 1}},
               {"min_p_0.05", {.temperature = 1.0f, .min_p = 0.05f, .seed = 1}}};
  for (const int batch : {1, 8}) {
    for (const int nodes : {1, 17, 65}) {
      GpuData data(backend);
      const size_t rows = static_cast<size_t>(batch) * nodes;
      TreeAcceptParams p = given_chain(data, batch, nodes, kDepth + 1);
      p.logits = data.normals(rows * kVocab, 3.0f);
      p.vocab = kVocab;
      p.positions = data.put(std::vector<int32_t>(rows, 1000));
      for (const auto& mode : modes) {
        p.sampling = data.put(std::vector<SamplingParams>(batch, mode.sampling));
        p.workspace = data.workspace(tree_accept_workspace(backend, p));
        const double us = gpu_us(backend, [&](Stream stream) { tree_accept(backend, p, stream); });
        const double floor = memory_floor_us(4.0 * rows * kVocab);
        csv.row(fmt::format("{},{},{},{},{:.2f},{:.2f},{:.2f}", batch, nodes, kVocab, mode.name, us,
                            floor, us / floor));
      }
    }
  }
}

void bench_kv_commit(const Backend& backend, const GpuBenchOptions& options) {
  CsvFile csv(options, "kv_commit.csv",
              "batch,nodes,accepted,accept_us,commit_us,both_us,floor_us");
  for (const int batch : {1, 8, 64}) {
    for (const int accepted : {1, 4, kDepth + 1}) {
      constexpr int kNodes = 65;
      GpuData data(backend);
      const TreeAcceptParams walk = given_chain(data, batch, kNodes, accepted);
      const KvCommitParams commit = commit_problem(data, batch, kNodes, walk);
      TreeAcceptParams accept = walk;
      accept.workspace = data.workspace(tree_accept_workspace(backend, accept));
      const auto first = [&](Stream stream) { tree_accept(backend, accept, stream); };
      const auto second = [&](Stream stream) { kv_commit(backend, commit, stream); };
      const double accept_us = gpu_us(backend, first);
      const double commit_us = gpu_us(backend, second);
      const double both_us = gpu_us(backend, [&](Stream stream) {
        first(stream);
        second(stream);
      });
      const double row_bytes =
          commit.n_layers * commit.width * 2.0 + commit.n_features * commit.hidden * 4.0;
      csv.row(fmt::format("{},{},{},{:.2f},{:.2f},{:.2f},{:.2f}", batch, kNodes, accepted,
                          accept_us, commit_us, both_us,
                          memory_floor_us(2 * row_bytes * batch * accepted)));
    }
  }
}

void bench_lse_merge(const Backend& backend, const GpuBenchOptions& options) {
  CsvFile csv(options, "lse_merge.csv", "rows,dim,us,floor_us");
  constexpr int kDim = 512;
  for (const int64_t rows : {17 * 8, 65 * 8, 65 * 64, 32 * 65 * 64}) {
    GpuData data(backend);
    const size_t n = static_cast<size_t>(rows) * kDim;
    const LseMergeParams p = {.out_a = data.normals(n),
                              .lse_a = data.normals(rows),
                              .out_b = data.normals(n),
                              .lse_b = data.normals(rows),
                              .out = data.zeros<float>(n),
                              .lse = data.zeros<float>(rows),
                              .n_rows = rows,
                              .dim = kDim};
    const double us = gpu_us(backend, [&](Stream stream) { lse_merge(backend, p, stream); });
    csv.row(fmt::format("{},{},{:.2f},{:.2f}", rows, kDim, us, memory_floor_us(12.0 * n)));
  }
}

}  // namespace kdt::apps

// Cases of the ops that know trees: attention, draft, build, accept, commit.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/bench_case_parts.h"

namespace kdt::apps {
namespace {

// Draft logits of one request and the candidates of its `depth` positions.
DraftTopkParams draft_candidates(CaseData& data, int32_t depth, int32_t vocab, int32_t k) {
  const size_t kept = static_cast<size_t>(depth) * k;
  DraftTopkParams p{.logits = data.put(data.zipf_logits(static_cast<size_t>(depth) * vocab)),
                    .row_stride = vocab,
                    .batch = 1,
                    .depth = depth,
                    .vocab = vocab,
                    .k = k,
                    .logp = data.output(kept),
                    .ids = data.zeros<int32_t>(kept),
                    .status = data.zeros<int32_t>(1)};
  p.workspace = data.workspace(draft_topk_workspace(data.backend(), p));
  data.expect([&data, p] { return data.get(p.status, 1)[0] == 0; });
  return p;
}

// The tree over candidates that draft_topk found.
TreeBuildParams draft_tree(CaseData& data, const BenchModel& model, int32_t budget,
                           int32_t prefix) {
  const auto depth = static_cast<int32_t>(model.draft.block_size - 1);
  const auto vocab = static_cast<int32_t>(model.target.vocab_size);
  const int32_t k = std::clamp(budget, 1, vocab), rows = budget + 1;
  const DraftTopkParams candidates = draft_candidates(data, depth, vocab, k);
  draft_topk(data.backend(), candidates);
  TreeBuildParams p{.logp = candidates.logp,
                    .ids = candidates.ids,
                    .budget = data.put<int32_t>({budget}),
                    .max_depth = data.put<int32_t>({depth}),
                    .max_rank = data.put<int32_t>({k}),
                    .root_token = data.put<int32_t>({1}),
                    .prefix_len = data.put<int32_t>({prefix}),
                    .row_offset = data.put<int32_t>({0}),
                    .batch = 1,
                    .depth = depth,
                    .k = k,
                    .n_words = (rows + 63) / 64,
                    .max_budget = budget};
  for (int32_t** field :
       {&p.tokens, &p.parents, &p.depths, &p.positions, &p.first_child, &p.next_sibling})
    *field = data.zeros<int32_t>(rows);
  p.scores = data.zeros<double>(rows);
  p.ancestors = data.zeros<uint64_t>(static_cast<size_t>(rows) * p.n_words);
  p.n_nodes = data.zeros<int32_t>(1);
  p.workspace = data.workspace(tree_build_workspace(data.backend(), p));
  data.expect([&data, p, rows] {
    const std::vector<double> scores = data.get(p.scores, rows);
    return data.get(p.n_nodes, 1)[0] == rows &&
           std::all_of(scores.begin(), scores.end(), [](double x) { return std::isfinite(x); });
  });
  return p;
}

TreeBuildParams built_tree(CaseData& data, const BenchModel& model, int32_t budget,
                           int32_t prefix) {
  const TreeBuildParams p = draft_tree(data, model, budget, prefix);
  tree_build(data.backend(), p);
  return p;
}

// Logits under which the target agrees with the draft along the tree's best path.
TreeAcceptParams agreeing_target(CaseData& data, const BenchModel& model, float temperature) {
  const TreeBuildParams tree = built_tree(data, model, kNodes - 1, 1000);
  const size_t vocab = model.target.vocab_size;
  std::vector<float> logits = data.zipf_logits(kNodes * vocab);
  const std::vector<int32_t> child = data.get(tree.first_child, kNodes);
  const std::vector<int32_t> tokens = data.get(tree.tokens, kNodes);
  for (int32_t node = 0; node < kNodes; ++node)
    if (child[node] >= 0) logits[node * vocab + tokens[child[node]]] += 100.0f;
  const int32_t longest = tree.depth + 1;
  SamplingParams sampling{.temperature = temperature, .seed = 1};
  if (temperature > 0) sampling.top_p = 0.95f;
  TreeAcceptParams p{.logits = data.put(logits),
                     .tokens = tree.tokens,
                     .positions = tree.positions,
                     .first_child = tree.first_child,
                     .next_sibling = tree.next_sibling,
                     .row_offset = tree.row_offset,
                     .n_nodes = tree.n_nodes,
                     .sampling = data.put<SamplingParams>({sampling}),
                     .batch = 1,
                     .n_rows = kNodes,
                     .vocab = static_cast<int32_t>(vocab),
                     .max_accepted = longest,
                     .accepted = data.zeros<int32_t>(longest),
                     .n_accepted = data.zeros<int32_t>(1),
                     .bonus = data.zeros<int32_t>(1),
                     .status = data.zeros<int32_t>(1)};
  p.workspace = data.workspace(tree_accept_workspace(data.backend(), p));
  data.expect(
      [&data, p] { return data.get(p.status, 1)[0] == 0 && data.get(p.n_accepted, 1)[0] > 1; });
  return p;
}

}  // namespace

void add_attention_cases(const BenchModel& model, std::vector<BenchCase>* cases) {
  const auto& t = model.target;
  const auto heads = static_cast<int32_t>(t.n_heads);
  const auto latent = static_cast<int32_t>(t.kv_lora_rank);
  const auto rope_dim = static_cast<int32_t>(t.qk_rope_head_dim);
  for (const int32_t prefix : {1000, 4000})
    for (const int32_t nodes : {1, 17, kNodes})
      cases->push_back(make_case<VerifyAttentionParams>(
          "verify_attention",
          fmt::format("{:>2} nodes x {} heads, prefix {}", nodes, heads, prefix), verify_attention,
          [=](CaseData& data) {
            const size_t width = latent + rope_dim, rows = nodes;
            VerifyAttentionParams p{
                .rows = data.row_batch(1, nodes, prefix),
                .q = data.uniform(rows * heads * width),
                .tail = data.uniform(rows * width),
                .ancestors = built_tree(data, model, nodes - 1, prefix).ancestors,
                .out = data.output(rows * heads * latent),
                .lse = data.output(rows * heads),
                .n_words = (nodes + 63) / 64,
                .n_heads = heads,
                .latent_dim = latent,
                .rope_dim = rope_dim,
                .scale = 0.07f};
            p.n_pages = p.rows.max_blocks;
            p.kv_pages = data.uniform(p.n_pages * kPageTokens * width);
            p.workspace = data.workspace(verify_attention_workspace(data.backend(), p));
            verify_attention_plan(data.backend(), p);
            return p;
          }));
  cases->push_back(make_case<LseMergeParams>(
      "lse_merge", fmt::format("{} x {} heads x {}", kNodes, heads, latent), lse_merge,
      [=](CaseData& data) -> LseMergeParams {
        const size_t rows = static_cast<size_t>(kNodes) * heads;
        return {.out_a = data.uniform(rows * latent),
                .lse_a = data.uniform(rows, 3.0f),
                .out_b = data.uniform(rows * latent),
                .lse_b = data.uniform(rows, 3.0f),
                .out = data.output(rows * latent),
                .lse = data.output(rows),
                .n_rows = static_cast<int64_t>(rows),
                .dim = latent};
      }));
}

void add_draft_cases(const BenchModel& model, std::vector<BenchCase>* cases) {
  const auto& d = model.draft;
  const auto block = static_cast<int32_t>(d.block_size), depth = block - 1;
  const auto heads = static_cast<int32_t>(d.n_heads), kv_heads = static_cast<int32_t>(d.n_kv_heads);
  const auto dim = static_cast<int32_t>(d.head_dim);
  const auto vocab = static_cast<int32_t>(model.target.vocab_size);
  constexpr int32_t kPrefix = 1000;
  cases->push_back(make_case<DraftAttentionParams>(
      "draft_attention",
      fmt::format("{} rows x {}/{} heads x {}, prefix {}", block, heads, kv_heads, dim, kPrefix),
      draft_attention, [=](CaseData& data) {
        const size_t kv = static_cast<size_t>(block) * kv_heads * dim;
        const size_t q = static_cast<size_t>(block) * heads * dim;
        DraftAttentionParams p{.rows = data.row_batch(1, block, kPrefix),
                               .q = data.uniform(q),
                               .k = data.uniform(kv),
                               .v = data.uniform(kv),
                               .out = data.output(q),
                               .n_heads = heads,
                               .n_kv_heads = kv_heads,
                               .head_dim = dim,
                               .scale = 1.0f / std::sqrt(static_cast<float>(dim))};
        const size_t pages = static_cast<size_t>(p.rows.max_blocks) * kPageTokens * kv_heads * dim;
        p.n_pages = p.rows.max_blocks;
        p.k_pages = data.uniform(pages);
        p.v_pages = data.uniform(pages);
        p.workspace = data.workspace(draft_attention_workspace(data.backend(), p));
        return p;
      }));
  for (const int32_t k : {1, 64})
    cases->push_back(make_case<DraftTopkParams>(
        "draft_topk", fmt::format("{} x {}, best {}", depth, vocab, k), draft_topk,
        [=](CaseData& data) { return draft_candidates(data, depth, vocab, k); }));
  for (const int32_t budget : {15, 64, 1024})
    cases->push_back(make_case<TreeBuildParams>(
        "tree_build", fmt::format("depth {}, budget {}", depth, budget), tree_build,
        [=](CaseData& data) { return draft_tree(data, model, budget, kPrefix); }));
}

void add_accept_cases(const BenchModel& model, std::vector<BenchCase>* cases) {
  const auto& t = model.target;
  for (const float temperature : {0.0f, 1.0f})
    cases->push_back(make_case<TreeAcceptParams>(
        "tree_accept",
        fmt::format("{} x {}, {}", kNodes, t.vocab_size, temperature > 0 ? "sampled" : "greedy"),
        tree_accept, [=](CaseData& data) { return agreeing_target(data, model, temperature); }));
  const auto n_layers = static_cast<int32_t>(t.n_layers);
  const auto width = static_cast<int32_t>(t.kv_lora_rank + t.qk_rope_head_dim);
  const auto hidden = static_cast<int32_t>(t.hidden_size);
  const auto n_features = static_cast<int32_t>(model.draft.target_layer_ids.size());
  constexpr int32_t kAccepted = 5;
  cases->push_back(make_case<KvCommitParams>(
      "kv_commit",
      fmt::format("{} of {} rows, {} layers x {}, {} x {} features", kAccepted, kNodes, n_layers,
                  width, n_features, hidden),
      kv_commit, [=](CaseData& data) {
        KvCommitParams p{
            .rows = data.row_batch(1, kNodes, 100),
            .tail = data.uniform(static_cast<size_t>(n_layers) * kNodes * width),
            .accepted = data.put<int32_t>({0, 2, 3, 17, 40}),
            .n_accepted = data.put<int32_t>({kAccepted}),
            .max_accepted = kAccepted,
            .n_layers = n_layers,
            .width = width,
            .tail_layer_stride = kNodes * width,
            .features = data.uniform(static_cast<size_t>(n_features) * kNodes * hidden),
            .features_out = data.output(kAccepted * n_features * hidden),
            .feature_offset = data.put<int32_t>({0}),
            .n_features = n_features,
            .hidden = hidden,
            .feature_stride = kNodes * hidden};
        p.n_pages = p.rows.max_blocks;
        p.pages = data.output(static_cast<size_t>(n_layers) * p.n_pages * kPageTokens * width);
        return p;
      }));
}

}  // namespace kdt::apps

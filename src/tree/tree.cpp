#include "tree/tree.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/rounding.h"

namespace kdt::tree {

void validate(const DraftTree& tree) {
  const size_t n = tree.tokens.size();
  if (n == 0 || tree.parents.size() != n || tree.depths.size() != n || tree.scores.size() != n)
    throw_error(ErrorCode::kInvalidArgument,
                "draft tree: {} tokens, {} parents, {} depths, {} scores, expected one of each per "
                "node and at least a root",
                n, tree.parents.size(), tree.depths.size(), tree.scores.size());
  std::vector<std::pair<int32_t, int32_t>> children;  // (parent, token)
  for (size_t i = 0; i < n; ++i) {
    const int32_t parent = tree.parents[i];
    if (i == 0 ? parent != -1 : parent < 0 || parent >= static_cast<int32_t>(i))
      throw_error(ErrorCode::kInvalidArgument, "draft tree: parent of node {} is {}, expected {}",
                  i, parent, i == 0 ? "-1" : "a node before it");
    const int32_t depth = i == 0 ? 0 : tree.depths[parent] + 1;
    if (tree.depths[i] != depth)
      throw_error(ErrorCode::kInvalidArgument, "draft tree: depth of node {} is {}, expected {}", i,
                  tree.depths[i], depth);
    if (std::isnan(tree.scores[i]))
      throw_error(ErrorCode::kInvalidArgument, "draft tree: score of node {} is not a number", i);
    if (i > 0) children.emplace_back(parent, tree.tokens[i]);
  }
  std::sort(children.begin(), children.end());
  const auto twins = std::adjacent_find(children.begin(), children.end());
  if (twins != children.end())
    throw_error(ErrorCode::kInvalidArgument,
                "draft tree: node {} has two children with token {}, expected different tokens",
                twins->first, twins->second);
}

std::vector<uint64_t> ancestor_words(const std::vector<int32_t>& parents, int32_t n_words) {
  const auto n = static_cast<int32_t>(parents.size());
  if (n_words < ceil_div(n, 64))
    throw_error(ErrorCode::kInvalidArgument,
                "ancestor words: {} words a node, expected {} for {} nodes", n_words,
                ceil_div(n, 64), n);
  std::vector<uint64_t> words(static_cast<size_t>(n) * n_words);
  for (int32_t i = 0; i < n; ++i) {
    uint64_t* own = &words[static_cast<size_t>(i) * n_words];
    if (parents[i] >= i || parents[i] < -1)
      throw_error(ErrorCode::kInvalidArgument,
                  "ancestor words: parent of node {} is {}, expected a node before it or -1", i,
                  parents[i]);
    if (parents[i] >= 0)
      std::copy_n(&words[static_cast<size_t>(parents[i]) * n_words], n_words, own);
    own[i / 64] |= uint64_t{1} << (i % 64);
  }
  return words;
}

}  // namespace kdt::tree

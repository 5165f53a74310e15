// The flat draft tree of one request, on the host: for inspection, tests and display. (Building,
// accepting and committing are ops.)
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kdt::tree {

// Structure of arrays, N >= 1 nodes; node 0 is the root and every parent precedes its children.
struct DraftTree {
  std::vector<int32_t> tokens;   // [N]
  std::vector<int32_t> parents;  // [N] node id; the root's is -1
  std::vector<int32_t> depths;   // [N] root 0
  std::vector<double> scores;    // [N] log-probability of the path; root 0

  int32_t n_nodes() const { return static_cast<int32_t>(tokens.size()); }
};

// Throws kInvalidArgument naming the node unless the arrays are equally long, parents precede
// children, depths count the edges to the root, siblings carry different tokens and no score is
// NaN.
void validate(const DraftTree& tree);

// [N, n_words] words: bit j % 64 of word j / 64 of row i says that node j is i or an ancestor of
// it. Throws kInvalidArgument when n_words < ceil(N / 64) or a parent does not precede its child.
std::vector<uint64_t> ancestor_words(const std::vector<int32_t>& parents, int32_t n_words);

// The tree as text for a terminal, one node a line: probability of its path exp(score), a bar of
// it, and the token's text, accepted nodes marked by a full circle (and green where `color`):
//
//    100% ████████ ● The
//     62% █████    ├─● ·capital
//     41% ███▎     │ ● ·of
//     12% █        └─○ ·city
//
// An only child stands below its parent without a new branch. `accepted` holds node ids; `label`
// gives a token's text, any bytes: control characters are escaped, a space is drawn as a dot. No
// line is wider than `width` columns (at least 15). Throws kInvalidArgument for an invalid tree or
// node id.
std::string render(const DraftTree& tree, const std::vector<int32_t>& accepted,
                   const std::function<std::string(int32_t token)>& label, bool color,
                   int width = 100);

}  // namespace kdt::tree

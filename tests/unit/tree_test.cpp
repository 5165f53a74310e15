#include "tree/tree.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"
#include "tests/errors.h"

namespace kdt::tree {
namespace {

// Tokens are the node ids.
DraftTree tree_of(const std::vector<int32_t>& parents) {
  DraftTree tree;
  tree.parents = parents;
  for (size_t i = 0; i < parents.size(); ++i) {
    tree.tokens.push_back(static_cast<int32_t>(i));
    tree.depths.push_back(i == 0 ? 0 : tree.depths[parents[i]] + 1);
    tree.scores.push_back(-0.25 * static_cast<double>(i));
  }
  return tree;
}

std::string refusal(const DraftTree& tree) {
  return test::message_of([&] { validate(tree); }, ErrorCode::kInvalidArgument);
}

TEST(DraftTree, ValidateNamesTheBrokenInvariant) {
  const DraftTree good = tree_of({-1, 0, 0, 1, 3});
  EXPECT_EQ(refusal(good), "no error");
  EXPECT_EQ(refusal(tree_of({-1})), "no error");
  EXPECT_EQ(
      refusal({}),
      "draft tree: 0 tokens, 0 parents, 0 depths, 0 scores, expected one of each per node and "
      "at least a root");
  DraftTree bad = good;
  bad.scores.pop_back();
  EXPECT_NE(refusal(bad).find("4 scores"), std::string::npos);
  bad = good;
  bad.parents[0] = 0;
  EXPECT_EQ(refusal(bad), "draft tree: parent of node 0 is 0, expected -1");
  bad = good;
  bad.parents[2] = 2;
  EXPECT_EQ(refusal(bad), "draft tree: parent of node 2 is 2, expected a node before it");
  bad.parents[2] = -1;
  EXPECT_EQ(refusal(bad), "draft tree: parent of node 2 is -1, expected a node before it");
  bad = good;
  bad.depths[4] = 2;
  EXPECT_EQ(refusal(bad), "draft tree: depth of node 4 is 2, expected 3");
  bad = good;
  bad.tokens[2] = bad.tokens[1];
  EXPECT_EQ(refusal(bad),
            "draft tree: node 0 has two children with token 1, expected different tokens");
  bad = good;
  bad.scores[3] = NAN;
  EXPECT_EQ(refusal(bad), "draft tree: score of node 3 is not a number");
}

TEST(DraftTree, AncestorWordsHoldThePath) {
  std::mt19937 rng(3);
  for (int n : {1, 2, 63, 64, 65, 200}) {
    std::vector<int32_t> parents = {-1};
    while (static_cast<int>(parents.size()) < n)
      parents.push_back(static_cast<int32_t>(rng() % parents.size()));
    const int n_words = (n + 63) / 64 + 1;
    const std::vector<uint64_t> words = ancestor_words(parents, n_words);
    ASSERT_EQ(words.size(), static_cast<size_t>(n) * n_words);
    for (int i = 0; i < n; ++i) {
      std::vector<bool> on_path(n);
      for (int node = i; node >= 0; node = parents[node]) on_path[node] = true;
      for (int j = 0; j < 64 * n_words; ++j)
        ASSERT_EQ(words[static_cast<size_t>(i) * n_words + j / 64] >> (j % 64) & 1,
                  j < n && on_path[j]);
    }
  }
  EXPECT_THROW(ancestor_words(std::vector<int32_t>(65, -1), 1), Error);
  EXPECT_THROW(ancestor_words({-1, 1}, 1), Error);
}

std::string words_of(int32_t token) {
  const char* kWords[] = {"The", " capital", " city", " of", " France", " Paris", " is"};
  return kWords[token % 7];
}

TEST(Render, DrawsBranchesOnlyChildrenAndTheAcceptedPath) {
  DraftTree tree = tree_of({-1, 0, 0, 1, 3, 3, 5});
  const double probability[] = {1, 0.62, 0.12, 0.41, 0.3, 0.05, 0.0001};
  for (int i = 0; i < 7; ++i) tree.scores[i] = std::log(probability[i]);
  EXPECT_EQ(render(tree, {0, 1, 3, 5}, words_of, false),
            " 100% ████████ ● The\n"
            "  62% █████    ├─● ·capital\n"
            "  41% ███▎     │ ● ·of\n"
            "  30% ██▍      │ ├─○ ·France\n"
            " 5.0% ▍        │ └─● ·Paris\n"
            "<0.1%          │   ○ ·is\n"
            "  12% █        └─○ ·city\n");
}

TEST(Render, ColorsOnlyWhenAsked) {
  const DraftTree tree = tree_of({-1, 0, 0});
  EXPECT_EQ(render(tree, {0}, words_of, false).find('\x1b'), std::string::npos);
  const std::string colored = render(tree, {0, 2}, words_of, true);
  EXPECT_NE(colored.find("\x1b[1;32m● The\x1b[0m"), std::string::npos);
  EXPECT_NE(colored.find("\x1b[1;32m● ·city\x1b[0m"), std::string::npos);
  EXPECT_EQ(colored.find("\x1b[1;32m○"), std::string::npos);
}

// Columns of a line without colors: every character of these tests but the ideographs takes one.
int columns(const std::string& line) {
  int n = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const auto byte = static_cast<unsigned char>(line[i]);
    if ((byte & 0xc0) != 0x80) ++n;
    if (byte == 0xe6) ++n;  // 日 and 本
  }
  return n;
}

TEST(Render, EscapesWhatATerminalWouldObey) {
  const DraftTree tree = tree_of({-1});
  const auto shown = [&](const std::string& text) {
    const std::string line = render(
        tree, {}, [&](int32_t) { return text; }, false);
    return line.substr(line.find("○ ") + 4);
  };
  EXPECT_EQ(shown("a\nb\tc"), "a\\nb\\tc\n");
  EXPECT_EQ(shown("\x1b[2J"), "\\x1b[2J\n");
  EXPECT_EQ(shown(std::string("\0\x7f", 2)), "\\x00\\x7f\n");
  EXPECT_EQ(shown("\xe6\x97"), "\uFFFD\uFFFD\n");
  EXPECT_EQ(shown("\xed\xa0\x80"), "\uFFFD\uFFFD\uFFFD\n");
  EXPECT_EQ(shown("\xc0\xaf\xff"), "\uFFFD\uFFFD\uFFFD\n");
  EXPECT_EQ(shown("\u202e"), "\\u202e\n");
  EXPECT_EQ(shown(" 日本"), "·日本\n");
}

TEST(Render, NoLineIsWiderThanAsked) {
  std::vector<int32_t> comb = {-1};  // every node branches: the deepest indentation
  for (int i = 0; i < 60; ++i) comb.push_back(i / 2 * 2);
  const DraftTree tree = tree_of(comb);
  for (int width : {0, 10, 15, 16, 20, 21, 40, 80, 100}) {
    const std::string text = render(
        tree, {0, 1}, [](int32_t) { return std::string("日本 a long token \n text"); }, false,
        width);
    size_t start = 0;
    int n_lines = 0;
    for (size_t end; (end = text.find('\n', start)) != std::string::npos; start = end + 1) {
      EXPECT_LE(columns(text.substr(start, end - start)), std::max(width, 15)) << width;
      ++n_lines;
    }
    EXPECT_EQ(n_lines, 61);
  }
}

TEST(Render, DeepChainsDoNotIndent) {
  std::vector<int32_t> chain;
  for (int i = 0; i < 1000; ++i) chain.push_back(i - 1);
  const std::string text = render(
      tree_of(chain), {}, [](int32_t) { return "x"; }, false);
  EXPECT_EQ(text.find("─"), std::string::npos);
  EXPECT_EQ(text.find("…"), std::string::npos);
}

TEST(Render, RefusesNodesThatDoNotExist) {
  EXPECT_THROW(render(tree_of({-1, 0}), {2}, words_of, false), Error);
  EXPECT_THROW(render(tree_of({-1, 0}), {-1}, words_of, false), Error);
  DraftTree bad = tree_of({-1, 0});
  bad.parents[1] = 1;
  EXPECT_THROW(render(bad, {}, words_of, false), Error);
}

}  // namespace
}  // namespace kdt::tree

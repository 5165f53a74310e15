#include "text/added_tokens.h"

namespace kdt::text {
namespace {

uint64_t child_key(uint32_t node, char byte) {
  return uint64_t{node} << 8 | static_cast<uint8_t>(byte);
}

}  // namespace

void AddedTokenMatcher::add(const AddedToken& token) {
  begins_token_[static_cast<uint8_t>(token.content[0])] = true;
  uint32_t node = 0;
  for (char byte : token.content) {
    const auto next = static_cast<uint32_t>(token_of_node_.size());
    const auto [child, is_new] = children_.emplace(child_key(node, byte), next);
    if (is_new) token_of_node_.push_back(-1);
    node = child->second;
  }
  token_of_node_[node] = token.id;
}

AddedTokenMatcher::Match AddedTokenMatcher::find(std::string_view text, size_t start) const {
  for (size_t begin = start; begin < text.size(); ++begin) {
    if (!begins_token_[static_cast<uint8_t>(text[begin])]) continue;
    Match longest{begin, begin, -1};
    uint32_t node = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      const auto child = children_.find(child_key(node, text[i]));
      if (child == children_.end()) break;
      node = child->second;
      if (token_of_node_[node] >= 0) longest = {begin, i + 1, token_of_node_[node]};
    }
    if (longest.id >= 0) return longest;
  }
  return {text.size(), text.size(), -1};
}

}  // namespace kdt::text

// Tokens outside the byte-pair vocabulary, found in text by their literal content.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kdt::text {

struct AddedToken {
  int32_t id;
  std::string content;
  bool special;     // dropped from shown text; false for e.g. <think>
  bool normalized;  // searched after the tokens that are not
};

// Immutable after construction; thread-safe.
class AddedTokenMatcher {
 public:
  struct Match {
    size_t begin;
    size_t end;
    int32_t id;
  };

  void add(const AddedToken& token);  // content must not be empty

  // The leftmost match at or after `start`, the longest if several begin there; id -1 if none.
  Match find(std::string_view text, size_t start) const;

 private:
  // A trie over bytes: node and byte -> next node. Node 0 is the root.
  std::unordered_map<uint64_t, uint32_t> children_;
  std::vector<int32_t> token_of_node_ = {-1};
  bool begins_token_[256] = {};
};

}  // namespace kdt::text

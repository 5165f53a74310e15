// Byte-level byte-pair encoding: a vocabulary of byte strings and the order in which adjacent
// tokens merge. The merge order is either given as pairs (Hugging Face) or follows from the ranks:
// two tokens merge when their concatenation is a token, lowest id first (tiktoken).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kdt::text {

struct VocabEntry {
  int32_t id;
  std::string bytes;
  bool decode_only = false;  // text never becomes this token, whatever its bytes
};

// Tokens `left` and `right` become `merged`. A merge's rank is its index in the list.
struct MergeRule {
  int32_t left;
  int32_t right;
  int32_t merged;
};

// Open-addressing map from an ordered pair of token ids to the merge it makes.
class MergeTable {
 public:
  struct Entry {
    uint64_t key = kEmpty;
    int32_t rank = 0;
    int32_t merged = 0;
  };
  explicit MergeTable(size_t n_merges);
  void insert(int32_t left, int32_t right, int32_t rank, int32_t merged);  // the last one wins
  const Entry* find(int32_t left, int32_t right) const;

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  size_t slot(uint64_t key) const;
  std::vector<Entry> entries_;
  int shift_;
};

// Scratch space of encode_piece, reused from piece to piece by one thread.
struct BpeWorkspace {
  struct Symbol {
    int32_t id;  // -1 once merged into its left neighbour
    int32_t previous;
    int32_t next;
  };
  struct Candidate {
    int32_t rank;
    int32_t position;
    int32_t left;
    int32_t right;
    int32_t merged;
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

// Immutable after construction; thread-safe.
class BytePairEncoder {
 public:
  struct FromRanks {};  // selects the constructor whose merges follow the ids, as in tiktoken

  // `vocab` holds distinct ids >= 0 and, apart from decode_only tokens, distinct byte strings of at
  // most 1024 bytes, all 256 single bytes among them; else throws kBadFile naming `source`. With
  // `whole_piece_first` a piece that is itself a token is that token, whatever the merges say.
  BytePairEncoder(const std::string& source, std::vector<VocabEntry> vocab,
                  const std::vector<MergeRule>& merges, bool whole_piece_first);
  BytePairEncoder(const std::string& source, std::vector<VocabEntry> vocab, FromRanks);
  BytePairEncoder(BytePairEncoder&&) = default;  // moves keep the strings that ids_ points into

  // Appends the tokens of `piece`. O(n log n) in its length.
  void encode_piece(std::string_view piece, BpeWorkspace* workspace,
                    std::vector<int32_t>* out) const;

  // The token's bytes, or null if no token has this id.
  const std::string* token_bytes(int32_t id) const;
  // -1 if these bytes are no token.
  int32_t find(std::string_view bytes) const;
  int32_t id_limit() const { return static_cast<int32_t>(bytes_of_.size()); }  // largest id + 1

 private:
  void index_vocabulary(const std::string& source, std::vector<VocabEntry> vocab);
  void merge_symbols(BpeWorkspace* workspace) const;

  std::vector<std::string> bytes_of_;  // by id; empty where no token has it
  std::unordered_map<std::string_view, int32_t> ids_;
  int32_t byte_ids_[256];
  MergeTable merges_;
  bool whole_piece_first_;
};

}  // namespace kdt::text

#include "text/bpe.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace kdt::text {
namespace {

constexpr size_t kMaxTokenBytes = 1024;  // finding the merges of ranks takes its square

uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

// Heap order: lowest rank first, leftmost among equals.
bool later(const BpeWorkspace::Candidate& a, const BpeWorkspace::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

}  // namespace

MergeTable::MergeTable(size_t n_merges) {
  const size_t capacity = std::bit_ceil(std::max<size_t>(16, 2 * n_merges));
  entries_.resize(capacity);
  shift_ = 64 - std::countr_zero(capacity);
}

size_t MergeTable::slot(uint64_t key) const {
  size_t i = (key ^ key >> 29) * 0x9E3779B97F4A7C15u >> shift_;
  while (entries_[i].key != key && entries_[i].key != kEmpty) i = (i + 1) & (entries_.size() - 1);
  return i;
}

void MergeTable::insert(int32_t left, int32_t right, int32_t rank, int32_t merged) {
  const uint64_t key = pair_key(left, right);
  entries_[slot(key)] = {key, rank, merged};
}

const MergeTable::Entry* MergeTable::find(int32_t left, int32_t right) const {
  const Entry& entry = entries_[slot(pair_key(left, right))];
  return entry.key == kEmpty ? nullptr : &entry;
}

BytePairEncoder::BytePairEncoder(const std::string& source, std::vector<VocabEntry> vocab,
                                 const std::vector<MergeRule>& merges, bool whole_piece_first)
    : merges_(merges.size()), whole_piece_first_(whole_piece_first) {
  index_vocabulary(source, std::move(vocab));
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const MergeRule& m = merges[rank];
    merges_.insert(m.left, m.right, static_cast<int32_t>(rank), m.merged);
  }
}

BytePairEncoder::BytePairEncoder(const std::string& source, std::vector<VocabEntry> vocab,
                                 FromRanks)
    : merges_(0), whole_piece_first_(true) {
  index_vocabulary(source, std::move(vocab));
  std::vector<MergeRule> merges;
  for (int32_t id = 0; id < id_limit(); ++id) {
    const std::string_view bytes = bytes_of_[id];
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const int32_t left = find(bytes.substr(0, cut));
      if (left < 0) continue;
      const int32_t right = find(bytes.substr(cut));
      if (right >= 0) merges.push_back({left, right, id});
    }
  }
  merges_ = MergeTable(merges.size());
  for (const MergeRule& m : merges) merges_.insert(m.left, m.right, m.merged, m.merged);
}

void BytePairEncoder::index_vocabulary(const std::string& source, std::vector<VocabEntry> vocab) {
  int32_t limit = 0;
  for (const VocabEntry& entry : vocab) limit = std::max(limit, entry.id + 1);
  bytes_of_.resize(limit);
  ids_.reserve(vocab.size());
  for (VocabEntry& entry : vocab) {
    if (entry.bytes.empty() || entry.bytes.size() > kMaxTokenBytes) {
      throw_error(ErrorCode::kBadFile, "{}: token {} has {} bytes, expected 1..{}", source,
                  entry.id, entry.bytes.size(), kMaxTokenBytes);
    }
    std::string& bytes = bytes_of_[entry.id];
    if (!bytes.empty()) {
      throw_error(ErrorCode::kBadFile, "{}: token id {} appears twice", source, entry.id);
    }
    bytes = std::move(entry.bytes);
    if (!entry.decode_only && !ids_.emplace(bytes, entry.id).second) {
      throw_error(ErrorCode::kBadFile, "{}: tokens {} and {} have the same bytes", source,
                  find(bytes), entry.id);
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    byte_ids_[byte] = find({&c, 1});
    if (byte_ids_[byte] < 0) {
      throw_error(ErrorCode::kBadFile,
                  "{}: no token for the single byte 0x{:02x}; byte-level BPE needs all 256", source,
                  byte);
    }
  }
}

const std::string* BytePairEncoder::token_bytes(int32_t id) const {
  return id >= 0 && id < id_limit() && !bytes_of_[id].empty() ? &bytes_of_[id] : nullptr;
}

int32_t BytePairEncoder::find(std::string_view bytes) const {
  const auto found = ids_.find(bytes);
  return found == ids_.end() ? -1 : found->second;
}

void BytePairEncoder::encode_piece(std::string_view piece, BpeWorkspace* workspace,
                                   std::vector<int32_t>* out) const {
  if (whole_piece_first_) {
    if (const int32_t id = find(piece); id >= 0) {
      out->push_back(id);
      return;
    }
  }
  const auto n = static_cast<int32_t>(piece.size());
  workspace->symbols.resize(n);
  for (int32_t i = 0; i < n; ++i) {
    workspace->symbols[i] = {byte_ids_[static_cast<uint8_t>(piece[i])], i - 1,
                             i + 1 < n ? i + 1 : -1};
  }
  merge_symbols(workspace);
  for (int32_t i = n == 0 ? -1 : 0; i >= 0; i = workspace->symbols[i].next) {
    out->push_back(workspace->symbols[i].id);
  }
}

void BytePairEncoder::merge_symbols(BpeWorkspace* workspace) const {
  auto& symbols = workspace->symbols;
  auto& heap = workspace->heap;
  const auto candidate_at = [&](int32_t position, BpeWorkspace::Candidate* candidate) {
    const int32_t next = symbols[position].next;
    if (next < 0) return false;
    const int32_t left = symbols[position].id, right = symbols[next].id;
    const MergeTable::Entry* merge = merges_.find(left, right);
    if (merge == nullptr) return false;
    *candidate = {merge->rank, position, left, right, merge->merged};
    return true;
  };
  const auto push = [&](int32_t position) {
    BpeWorkspace::Candidate candidate;
    if (position < 0 || !candidate_at(position, &candidate)) return;
    heap.push_back(candidate);
    std::push_heap(heap.begin(), heap.end(), later);
  };

  heap.clear();
  BpeWorkspace::Candidate candidate;
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (candidate_at(static_cast<int32_t>(i), &candidate)) heap.push_back(candidate);
  }
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const BpeWorkspace::Candidate best = heap.back();
    heap.pop_back();
    BpeWorkspace::Symbol& symbol = symbols[best.position];
    // A candidate whose tokens have since merged with others is stale.
    if (symbol.id != best.left || symbol.next < 0 || symbols[symbol.next].id != best.right) {
      continue;
    }
    BpeWorkspace::Symbol& absorbed = symbols[symbol.next];
    symbol.id = best.merged;
    symbol.next = absorbed.next;
    absorbed.id = -1;
    if (symbol.next >= 0) symbols[symbol.next].previous = best.position;
    push(symbol.previous);
    push(best.position);
  }
}

}  // namespace kdt::text

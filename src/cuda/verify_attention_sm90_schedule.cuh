// How the wgmma attention kernel cuts a batch into segments, computed by every block for itself
// from the lengths in device memory.
//
// An item is 64 query rows of one request (rows = node * heads + head) against all its key blocks
// of 64 keys (prefix pages, then tail). A segment is a run of key blocks of one item, done by one
// thread block; an item of several segments is combined afterwards.
//
// - If every request has the same shape and there are at least as many items as blocks, whole items
//   are dealt out in waves: blocks that run at the same time read the same keys, which stay in L2.
// - What remains is cut so that every block gets a quota of work, where a segment costs its key
//   blocks and a fixed overhead. An item longer than a quota first fills blocks of its own from key
//   0 on, so that all items of a request read the same keys at the same time; the rests of all
//   items form a line that is cut evenly among the other blocks.
#pragma once

#include <cstdint>

namespace kdt::cuda::sm90 {

inline constexpr int kRows = 64;  // query rows of an item
inline constexpr int kKeys = 64;  // keys of a key block
// Cost of a segment in key blocks: what was fastest on average, not what its start and end take.
inline constexpr int kSegmentOverhead = 14;

// What a second segment costs a thread block, in key blocks.
inline constexpr int kSecondSegment = 8;

// a / b for a >= 0, b > 0. A division is most of what planning costs a thread block before its
// first copy, and the general one is slow: this one guesses in fp32.
__host__ __device__ inline int quotient(int a, int b) {
#ifdef __CUDA_ARCH__
  int q = static_cast<int>(__fdividef(static_cast<float>(a), static_cast<float>(b)));
  int rest = a - q * b;
  for (; rest < 0; rest += b) --q;
  for (; rest >= b; rest -= b) ++q;
  return q;
#else
  return a / b;
#endif
}

struct BatchLengths {
  const int32_t* n_nodes;
  const int32_t* prefix_len;
  int32_t n_requests, n_heads;

  __host__ __device__ int items(int b) const { return items_of(n_nodes[b]); }
  __host__ __device__ int key_blocks(int b) const {
    return key_blocks_of(n_nodes[b], prefix_len[b]);
  }
  __host__ __device__ int items_of(int nodes) const {
    return (nodes * n_heads + kRows - 1) / kRows;
  }
  static __host__ __device__ int key_blocks_of(int nodes, int prefix) {
    return (prefix + kKeys - 1) / kKeys + (nodes + kKeys - 1) / kKeys;
  }
};

struct BatchTotals {
  int items = 0;
  int first_items = 0;  // of the first request
  int key_blocks = 0;   // summed over items
  int max_blocks = 0;   // of an item
  bool uniform = true;  // every request has the same number of items and of key blocks
};

struct Segment {
  int32_t request, item;      // item of the request
  int first_block, n_blocks;  // key blocks
  // Parts of the item; this is number `part`. Part i < full_parts was done by thread block
  // owner + i and is in slot owner + i; the next two are in slots rest_slot and last_slot.
  int32_t part, n_parts, full_parts, owner;
  int32_t rest_slot, last_slot;

  __host__ __device__ int slot(int i) const {
    return i < full_parts ? owner + i : i == full_parts ? rest_slot : last_slot;
  }
};

class Schedule {
 public:
  __host__ __device__ Schedule(const BatchLengths& lengths, const BatchTotals& totals, int n_blocks,
                               int overhead)
      : lengths_(lengths), totals_(totals), n_blocks_(n_blocks), overhead_(overhead) {
    if (totals.uniform) waves_ = quotient(totals.items, n_blocks);
    const int done = waves_ * n_blocks;
    rest_items_ = totals.items - done;
    rest_blocks_ = totals.key_blocks - done * totals.max_blocks;
    if (rest_items_ > 0 && rest_items_ <= n_blocks) {
      const int parts = quotient(n_blocks, rest_items_);
      largest_ = quotient(totals.max_blocks + parts - 1, parts);
    }
  }

  // Partial results of items in several parts: slots a kernel may use.
  static __host__ __device__ int slots(int n_blocks) { return 2 * n_blocks; }

  // The quota to try as number i: key blocks of a full part. Later ones are larger.
  __host__ __device__ int candidate(int i) const {
    const int even = quotient(rest_blocks_ + n_blocks_ - 1, n_blocks_);
    const int step = 1 + quotient(overhead_ * rest_items_, n_blocks_ * 16);
    return even + i * step;
  }

  // Whether parts of `full` key blocks fit; sets how many thread blocks the full parts fill.
  __host__ __device__ bool fits(int full, int* n_full) const {
    int parts = 0, line = 0;
    if (full < 1) return false;
    if (totals_.uniform) {
      const int f = quotient(totals_.max_blocks - 1, full);
      parts = f * rest_items_;
      if (parts + rest_items_ <= n_blocks_) {  // every rest has a thread block of its own
        *n_full = parts;
        return true;
      }
      if (full + kSecondSegment > largest_) return false;
      line = rest_items_ * (totals_.max_blocks - f * full + overhead_);
    } else {
      for (int b = 0; b < lengths_.n_requests; ++b) {
        const int n = lengths_.key_blocks(b), items = lengths_.items(b);
        if (items == 0) continue;
        const int f = quotient(n - 1, full);
        parts += f * items;
        line += items * (n - f * full + overhead_);
      }
    }
    *n_full = parts;
    return line <= (n_blocks_ - parts) * (full + overhead_);
  }

  __host__ __device__ void choose(int full, int n_full) {
    full_ = full;
    n_full_ = n_full;
    quota_ = full + overhead_;
    if (totals_.uniform && n_full + rest_items_ <= n_blocks_)
      quota_ = totals_.max_blocks - quotient(totals_.max_blocks - 1, full) * full + overhead_;
  }

  // If no candidate fits: whole items only, cut where a thread block has its share.
  __host__ __device__ void choose_largest() {
    const int line = rest_blocks_ + rest_items_ * overhead_;
    const int quota = quotient(line + n_blocks_ - 1, n_blocks_);
    const int most = totals_.max_blocks + overhead_;
    choose((quota > most ? quota : most) - overhead_, 0);
  }

  // How far a thread block has come in its segments.
  struct Cursor {
    int wave = 0;
    int run = 0;              // runs of items of the same length: the requests, or the whole rest
    int item = -1;            // of the run, -1 = at its start
    int owner = 0, line = 0;  // full parts and length of the line before this run
  };

  // The next segment of thread block `block`; false if there is none.
  __host__ __device__ bool next(int block, Cursor& c, Segment& s) const {
    if (c.wave < waves_) {
      const int items = totals_.first_items, i = c.wave * n_blocks_ + block;
      const int request = quotient(i, items);
      s = {request, i - request * items, 0, totals_.max_blocks, 0, 1, 0, 0, 0, 0};
      ++c.wave;
      return true;
    }
    const int n_runs = totals_.uniform ? rest_items_ > 0 : lengths_.n_requests;
    const int begin = (block - n_full_) * quota_, end = begin + quota_;
    for (; c.run < n_runs; ++c.run, c.item = -1) {
      const int count = totals_.uniform ? rest_items_ : lengths_.items(c.run);
      if (count == 0) continue;
      const int n = totals_.uniform ? totals_.max_blocks : lengths_.key_blocks(c.run);
      const int f = quotient(n - 1, full_);
      const int rest = n - f * full_;
      const int cost = rest + overhead_;
      if (block < n_full_) {
        if (block < c.owner + count * f) {
          const int x = quotient(block - c.owner, f);
          s = part_of(c, x, n, f, block - c.owner - x * f);
          c.run = n_runs;
          return true;
        }
      } else {
        if (c.item < 0) c.item = begin < c.line + cost ? 0 : quotient(begin - c.line, cost);
        for (; c.item < count; ++c.item) {
          const int start = c.line + c.item * cost + overhead_;  // of its key blocks on the line
          if (start >= end) {
            c.run = n_runs;
            return false;
          }
          if (start + rest <= begin) continue;
          s = part_of(c, c.item, n, f, start >= begin ? f : f + 1);
          ++c.item;
          return true;
        }
      }
      c.owner += count * f;
      c.line += count * cost;
    }
    return false;
  }

 private:
  // Part `part` of item x of a run of items of n key blocks, of which f full parts come first.
  __host__ __device__ Segment part_of(const Cursor& c, int x, int n, int f, int part) const {
    const int rest = n - f * full_;
    const int start = c.line + x * (rest + overhead_) + overhead_;
    const int quotas = quotient(start, quota_);
    const int block = n_full_ + quotas;  // that begins the rest
    const int room = (quotas + 1) * quota_ - start;
    const int head = room < rest ? room : rest;
    Segment s;
    s.request = c.run;
    s.item = x;
    if (totals_.uniform) {
      const int items = totals_.first_items, i = waves_ * n_blocks_ + x;
      s.request = quotient(i, items);
      s.item = i - s.request * items;
    }
    s.part = part;
    s.n_parts = f + (head < rest ? 2 : 1);
    s.full_parts = f;
    s.owner = f > 0 ? c.owner + x * f : block;
    s.rest_slot = n_blocks_ + s.owner;
    s.last_slot = block + 1;
    s.first_block = part < f ? part * full_ : f * full_ + (part == f ? 0 : head);
    s.n_blocks = part < f ? full_ : part == f ? head : rest - head;
    return s;
  }

  BatchLengths lengths_;
  BatchTotals totals_;
  int n_blocks_, overhead_;
  int waves_ = 0;
  int rest_items_ = 0, rest_blocks_ = 0;
  int full_ = 1;     // key blocks of a full part
  int n_full_ = 0;   // thread blocks that do one full part each; the others share the line
  int quota_ = 1;    // of the line, to each of them
  int largest_ = 0;  // key blocks of a part if every thread block has one
};

}  // namespace kdt::cuda::sm90

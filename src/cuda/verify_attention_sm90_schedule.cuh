// How the wgmma attention kernel cuts a batch into segments, computed by every block for itself
// from the lengths in device memory.
//
// An item is 64 query rows of one request (rows = node * heads + head) against all its key blocks
// of 64 keys (prefix pages, then tail). A segment is a run of key blocks of one item, done by one
// thread block; an item of several segments is combined afterwards.
//
// Where every request has the same shape:
//
// - If there are at least as many items as blocks, whole items are dealt out in waves: blocks that
//   run at the same time read the same keys, which stay in L2.
// - What remains goes to gangs of blocks: a gang has one block for each item that remains, or one
//   for each item of a request. Its blocks do the same key blocks of different items at the same
//   time. The keys of an item, or those of all requests in a line, are cut evenly among the gangs.
//
// Where shapes differ, or where gangs would leave many blocks idle: items longer than a quota first
// fill blocks of their own from key 0 on, so that all items of a request read the same keys at the
// same time; the rests of all items form a line that is cut evenly among the other blocks.
#pragma once

#include <cstdint>

#include "base/rounding.h"

namespace kdt::cuda::sm90 {

inline constexpr int kRows = 64;  // query rows of an item
inline constexpr int kKeys = 64;  // keys of a key block
// What a segment costs beyond its key blocks, in key blocks: on the line of the requests of gangs,
// and on the line of rests, whose combines come one after the other.
inline constexpr int kGangOverhead = 4, kRestOverhead = 14;
// What a combine costs that follows a thread block's segments, in key blocks.
inline constexpr int kCombine = 4;
// How much shorter parts must be for a line of rests to be better than gangs.
inline constexpr int kRestPenalty = 8;
// Quotas that are tried before whole items are dealt out.
inline constexpr int kCandidates = 128;

// a / b for 0 <= a / b < 2^22. Divisions are most of what planning costs a thread block before its
// first copy, and the general one is slow.
__host__ __device__ inline int quotient(int a, int b) {
#ifdef __CUDA_ARCH__
  const int q = static_cast<int>(__fdividef(static_cast<float>(a), static_cast<float>(b)));
  const int rest = a - q * b;
  return q + (rest >= b) - (rest < 0);
#else
  return a / b;
#endif
}

__host__ __device__ inline int quotient_up(int a, int b) {
  return quotient(a + b - 1, b);
}

struct BatchLengths {
  const int32_t* n_nodes;
  const int32_t* prefix_len;
  int32_t n_requests, n_heads;

  __host__ __device__ int items(int b) const { return items_of(n_nodes[b]); }
  __host__ __device__ int key_blocks(int b) const {
    return key_blocks_of(n_nodes[b], prefix_len[b]);
  }
  __host__ __device__ int items_of(int nodes) const { return ceil_div(nodes * n_heads, kRows); }
  static __host__ __device__ int key_blocks_of(int nodes, int prefix) {
    return ceil_div(prefix, kKeys) + ceil_div(nodes, kKeys);
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
  // Parts of the item; this is number `part`. Part i < full_parts is in slot owner + i, the number
  // of the thread block that did it, the next one in rest_slot, those after it from next_slot on,
  // `stride` apart. The item's counters are number `owner`.
  int32_t part, n_parts, full_parts, owner;
  int32_t rest_slot, next_slot, stride;

  __host__ __device__ int slot(int i) const {
    if (i < full_parts) return owner + i;
    return i == full_parts ? rest_slot : next_slot + (i - full_parts - 1) * stride;
  }
};

class Schedule {
 public:
  __host__ __device__ Schedule(const BatchLengths& lengths, const BatchTotals& totals, int n_blocks)
      : lengths_(lengths), totals_(totals), n_blocks_(n_blocks) {
    if (totals.uniform) waves_ = quotient(totals.items, n_blocks);
    const int done = waves_ * n_blocks;
    rest_items_ = totals.items - done;
    rest_blocks_ = totals.key_blocks - done * totals.max_blocks;
    even_ = quotient_up(rest_blocks_, n_blocks);
    if (totals.uniform && rest_items_ > 0) choose_gangs();
  }

  // Partial results of items in several parts: slots a kernel may use.
  static __host__ __device__ int slots(int n_blocks) { return 2 * n_blocks; }

  // Whether rests should be tried too, with quotas below `limit()`.
  __host__ __device__ bool try_rests() const {
    return rest_items_ > 0 && even_ + even_ / 16 + kRestPenalty < limit();
  }
  __host__ __device__ int limit() const { return gang_ > 0 ? quota_ - kRestPenalty : 1 << 30; }

  // The quota to try as number i: key blocks of a full part. Later ones are larger.
  __host__ __device__ int candidate(int i) const {
    return even_ + i * (1 + quotient(kRestOverhead * rest_items_, n_blocks_ * 16));
  }

  // Whether parts of `full` key blocks fit; sets how many thread blocks the full parts fill.
  __host__ __device__ bool fits(int full, int* n_full) const {
    int parts = 0, line = 0;
    if (full < 1 || full >= limit()) return false;
    for (int r = 0; r < n_runs(); ++r) {
      const Run run = this->run(r);
      if (run.items == 0) continue;
      const int f = quotient(run.blocks - 1, full);
      parts += f * run.items;
      line += run.items * (run.blocks - f * full + kRestOverhead);
    }
    *n_full = parts;
    return line <= (n_blocks_ - parts) * (full + kRestOverhead);
  }

  __host__ __device__ void choose(int full, int n_full) {
    gang_ = 0;
    full_ = full;
    n_full_ = n_full;
    quota_ = full + kRestOverhead;
  }

  // If no candidate fits: gangs, or whole items only, cut where a thread block has its share.
  __host__ __device__ void choose_largest() {
    if (gang_ > 0) return;
    const int quota = quotient_up(rest_blocks_ + rest_items_ * kRestOverhead, n_blocks_);
    const int most = totals_.max_blocks + kRestOverhead;
    choose((quota > most ? quota : most) - kRestOverhead, 0);
  }

  // How far a thread block has come in its segments.
  struct Cursor {
    int wave = 0;
    int run = 0;
    int item = -1;            // of the run, -1 = at its start; for gangs, a request
    int owner = 0, line = 0;  // full parts and length of the line before this run
  };

  // The next segment of thread block `block`; false if there is none.
  __host__ __device__ bool next(int block, Cursor& c, Segment& s) const {
    if (c.wave >= waves_) return gang_ > 0 ? next_of_gang(block, c, s) : next_rest(block, c, s);
    s = {0, 0, 0, totals_.max_blocks, 0, 1, 0, 0, 0, 0, 0};
    locate(c.wave * n_blocks_ + block, s);
    ++c.wave;
    return true;
  }

 private:
  // Item i of all in a uniform batch.
  __host__ __device__ void locate(int i, Segment& s) const {
    s.request = quotient(i, totals_.first_items);
    s.item = i - s.request * totals_.first_items;
  }

  __host__ __device__ void choose_gangs() {
    gang_ = rest_items_;
    n_gangs_ = quotient(n_blocks_, gang_);
    gang_requests_ = 1;
    quota_ = quotient_up(totals_.max_blocks, n_gangs_);
    const int cost = quota_ + (n_gangs_ > 1 ? kCombine : 0);
    if (waves_ > 0 || lengths_.n_requests == 1) return;
    const int n_gangs = quotient(n_blocks_, totals_.first_items);
    const int line = lengths_.n_requests * (totals_.max_blocks + kGangOverhead);
    const int quota = quotient_up(line, n_gangs);
    if (quota + 2 * kCombine >= cost) return;  // first and last segment are parts
    gang_ = totals_.first_items;
    n_gangs_ = n_gangs;
    gang_requests_ = lengths_.n_requests;
    quota_ = quota;
  }

  __host__ __device__ bool next_of_gang(int block, Cursor& c, Segment& s) const {
    const int gang = quotient(block, gang_), member = block - gang * gang_;
    if (gang >= n_gangs_) return false;
    const int n = totals_.max_blocks, overhead = gang_requests_ > 1 ? kGangOverhead : 0;
    const int begin = gang * quota_, end = begin + quota_;
    if (c.item < 0) c.item = gang_requests_ > 1 ? quotient(begin, n + overhead) : 0;
    for (; c.item < gang_requests_; ++c.item) {
      const int start = c.item * (n + overhead) + overhead;  // of its key blocks on the line
      if (start >= end) return false;
      const int from = start > begin ? start : begin, to = start + n < end ? start + n : end;
      if (from >= to) continue;
      const int first = quotient(start, quota_), last = quotient(start + n - 1, quota_);  // gangs
      s.request = c.item;
      s.item = member;
      if (gang_requests_ == 1) locate(waves_ * n_blocks_ + member, s);
      s.first_block = from - start;
      s.n_blocks = to - from;
      s.part = gang - first;
      s.n_parts = last - first + 1;
      s.full_parts = 0;
      s.owner = first * gang_ + member;
      s.rest_slot = n_blocks_ + s.owner;
      s.next_slot = s.owner + gang_;
      s.stride = gang_;
      ++c.item;
      return true;
    }
    return false;
  }

  // Items of the same length that follow each other: those of a request, or the whole rest of a
  // uniform batch.
  struct Run {
    int items, blocks;
  };
  __host__ __device__ int n_runs() const { return totals_.uniform ? 1 : lengths_.n_requests; }
  __host__ __device__ Run run(int r) const {
    if (totals_.uniform) return {rest_items_, totals_.max_blocks};
    return {lengths_.items(r), lengths_.key_blocks(r)};
  }

  __host__ __device__ bool next_rest(int block, Cursor& c, Segment& s) const {
    const int begin = (block - n_full_) * quota_, end = begin + quota_;
    for (; c.run < n_runs(); ++c.run, c.item = -1) {
      const Run run = this->run(c.run);
      if (run.items == 0) continue;
      const int f = quotient(run.blocks - 1, full_);
      const int rest = run.blocks - f * full_, cost = rest + kRestOverhead;
      if (block < n_full_) {
        if (block < c.owner + run.items * f) {
          const int x = quotient(block - c.owner, f);
          part_of(c, x, run.blocks, f, block - c.owner - x * f, s);
          c.run = n_runs();
          return true;
        }
      } else {
        if (c.item < 0) c.item = begin < c.line + cost ? 0 : quotient(begin - c.line, cost);
        for (; c.item < run.items; ++c.item) {
          const int start = c.line + c.item * cost + kRestOverhead;  // of its key blocks
          if (start >= end) {
            c.run = n_runs();
            return false;
          }
          if (start + rest <= begin) continue;
          part_of(c, c.item, run.blocks, f, start >= begin ? f : f + 1, s);
          ++c.item;
          return true;
        }
      }
      c.owner += run.items * f;
      c.line += run.items * cost;
    }
    return false;
  }

  // Part `part` of item x of a run of items of n key blocks, of which f full parts come first.
  __host__ __device__ void part_of(const Cursor& c, int x, int n, int f, int part,
                                   Segment& s) const {
    const int rest = n - f * full_;
    const int start = c.line + x * (rest + kRestOverhead) + kRestOverhead;
    const int quotas = quotient(start, quota_);
    const int block = n_full_ + quotas;  // that begins the rest
    const int room = (quotas + 1) * quota_ - start;
    const int head = room < rest ? room : rest;
    s.request = c.run;
    s.item = x;
    if (totals_.uniform) locate(waves_ * n_blocks_ + x, s);
    s.part = part;
    s.n_parts = f + (head < rest ? 2 : 1);
    s.full_parts = f;
    s.owner = f > 0 ? c.owner + x * f : block;
    s.rest_slot = n_blocks_ + s.owner;
    s.next_slot = block + 1;
    s.stride = 0;
    s.first_block = part < f ? part * full_ : f * full_ + (part == f ? 0 : head);
    s.n_blocks = part < f ? full_ : part == f ? head : rest - head;
  }

  BatchLengths lengths_;
  BatchTotals totals_;
  int n_blocks_;
  int waves_ = 0;
  int rest_items_ = 0, rest_blocks_ = 0;
  int even_ = 0;  // key blocks of the rest to each thread block
  // Blocks of a gang, 0 if there are none; the requests whose keys the gangs share.
  int gang_ = 0, n_gangs_ = 0, gang_requests_ = 0;
  int full_ = 1;    // key blocks of a full part
  int n_full_ = 0;  // thread blocks that do one full part each; the others share the line
  int quota_ = 1;   // of a line, to each gang or thread block
};

}  // namespace kdt::cuda::sm90

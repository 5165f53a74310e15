// How the wgmma attention kernel cuts a batch into segments, from the lengths in device memory.
//
// An item is 64 query rows of one request (rows = node * heads + head) against all its key blocks
// of 64 keys (prefix pages, then tail). A segment is a run of key blocks of one item, done by one
// thread block. The parts of an item of several segments are combined afterwards, except where one
// gang leaves the item to the next: there the earlier one adds the other part to its own
// (of_two_gangs()).
//
// A gang of g thread blocks does g items at a time, a unit: each block the same key blocks of its
// item. Units lie one after the other on a line, which is cut evenly among the gangs. There are two
// ways to lay it out:
//
// - Items of all requests one after the other, as if all had the length of the longest. Where the
//   last unit has fewer than g items, as many teams as the gang has room for share their keys, and
//   it is that much shorter. A single gang of all thread blocks thus does waves of whole items,
//   then a last one of items cut evenly.
// - By request, where lengths differ: units end with their request and have its length.
//
// Both are tried with some sizes of gangs. Large gangs read keys from memory once for many items;
// small ones leave no thread blocks over.
#pragma once

#include <cstdint>

#include "cuda/verify_attention_sm90_batch.cuh"

namespace kdt::cuda::sm90 {

// Costs in key blocks: of a unit, where it is not the only one, and of what a thread block does for
// one item that it did a part of, or for two.
inline constexpr int kUnitOverhead = 4, kOnePart = 3, kTwoParts = 5;
// Key blocks take longer the more different ones are read at a time: by 1 of so many for each.
inline constexpr int kReadPenalty = 448;
// Sizes of gangs that are tried, by request only small ones and those made of a request's items.
inline constexpr int kFirstSmall = 11, kFirstOfItems = 22, kCandidates = 27;

struct Segment {
  int32_t request, item;      // item of the request
  int first_block, n_blocks;  // key blocks; none where the thread block only helps to combine
  // Parts of the item; this is number `part`. Each team has one in each of `gangs` gangs, the last
  // team perhaps in fewer. The first is thread block `owner`'s; a team's are `size` thread blocks
  // apart, and `members` from those of the next one.
  int32_t part, n_parts, owner, gangs, size, members;
  int32_t n_sharers;  // that combine the parts, numbered as the parts and on from there
  int32_t index;      // this thread block's among the members

  // Whether the item's parts are two, of gangs that follow each other. The later gang begins with
  // its part (1) and stores it; the earlier one ends with its own (0), adds that and stores the
  // item. So a thread block waits only behind its last part, for one that another begins with.
  __host__ __device__ bool of_two_gangs() const { return n_parts == 2 && gangs == 2; }
  // Whether this part goes to the workspace, and whether all are combined when that is done.
  __host__ __device__ bool is_stored() const {
    return n_parts > 1 && !(of_two_gangs() && part == 0);
  }
  __host__ __device__ bool is_combined() const { return n_parts > 1 && !of_two_gangs(); }

  // Thread blocks that read the same keys at the same time, of a request of `items`, and the number
  // of this one among them.
  __host__ __device__ int n_readers(int items) const {
    return reader() + min(members - index, items - item);
  }
  __host__ __device__ int reader() const { return min(index, item); }

  // Where part i is: a thread block has a slot for an item that it begins and one for an item that
  // it goes on with.
  __host__ __device__ int slot(int i) const {
    const int team = gangs == 1 ? i : gangs >= n_parts ? 0 : quotient(i, gangs);
    const int gang = i - team * gangs;
    return 2 * (owner + team * members + gang * size) + (gang == 0);
  }
};

// How a batch is dealt out.
struct Gangs {
  int size = 0, n = 0;  // thread blocks of each, gangs
  int overhead = 0;     // of a unit on the line, before its key blocks
  int quota = 0;        // of the line, to each gang
  int last_blocks = 0;  // key blocks of a team
  int by_request = false;
  int cost = 1 << 30;  // in key blocks
};

class Schedule {
 public:
  __host__ __device__ Schedule(const BatchLengths& lengths, const BatchTotals& totals, int n_blocks,
                               const Gangs& gangs = {})
      : lengths_(lengths), totals_(totals), n_blocks_(n_blocks), gangs_(gangs) {}

  // Partial results of items in several parts: slots a kernel may use.
  static __host__ __device__ int slots(int n_blocks) { return 2 * n_blocks; }

  // The size of gangs to try as number i, 0 for none: those that leave few thread blocks over, the
  // largest first; then all up to 11; then those that cut the items of the largest request evenly.
  // One division for all numbers, since each is tried by another lane.
  __host__ __device__ int candidate(int i) const {
    if (i >= kCandidates) return 0;
    const int n = i - kFirstOfItems + 1;
    const int parts = i < kFirstSmall ? i + 1 : max(n, 1);
    const int size = quotient(i < kFirstSmall ? n_blocks_ : totals_.most_items + parts - 1, parts);
    return i < kFirstSmall || n > 0 ? size : kFirstOfItems - i;
  }

  // Gangs of `size`, the items of all requests one after the other.
  __host__ __device__ Gangs gangs(int size) const {
    Gangs g;
    if (size < 1 || size > n_blocks_) return g;
    const int full = quotient(totals_.items, size), left = totals_.items - full * size;
    const int teams = left > 0 ? quotient(size, left) : 1, units = full + (left > 0);
    g.size = size;
    g.n = quotient(n_blocks_, size);
    g.overhead = units > 1 ? kUnitOverhead : 0;
    g.last_blocks = left > 0 ? quotient_up(totals_.most_blocks, teams) : 0;
    const int line = full * totals_.most_blocks + g.last_blocks + units * g.overhead;
    g.quota = long_quotient(line + g.n - 1, g.n);
    if (g.n > 1 && units > 1)
      g.cost = g.quota + kTwoParts + (teams > 1);  // of gangs and of teams are many parts
    else
      g.cost = g.quota + (g.n > 1 || teams > 1 ? kOnePart : 0);
    return g;
  }

  // What a request takes of the line by request.
  static __host__ __device__ int line_of(int items, int key_blocks, int size) {
    return quotient_up(items, size) * (key_blocks + kUnitOverhead);
  }

  // Changes gangs to those of the same size by request, whose line is `line` long, if that is
  // better.
  static __host__ __device__ void try_by_request(int line, Gangs& g) {
    if (g.size == 0) return;
    const int quota = long_quotient(line + g.n - 1, g.n);
    if (quota + kTwoParts >= g.cost) return;
    g = {g.size, g.n, kUnitOverhead, quota, 0, true, quota + kTwoParts};
  }

  // Adds what reading keys costs. A gang reads a key block at a time, or one for each request in a
  // unit: all of them as many as `n_requests`, the gangs that would be of the largest request's
  // size.
  static __host__ __device__ void add_reads(int n_requests, Gangs& g) {
    if (g.size == 0) return;
    g.cost += g.cost * max(g.n, n_requests) / kReadPenalty;
  }

  // How far a thread block has come: the next unit of a run and where the run begins on the line.
  struct Cursor {
    int run = -1, unit = 0, line = 0;
  };

  // The next segment of thread block `block`; false if there is none. All lanes call it.
  __host__ __device__ bool next(int block, Cursor& c, Segment& s) const {
    const Gangs& g = gangs_;
    const int gang = gang_of(block, g.size), member = block - gang * g.size;
    const int begin = gang * g.quota, end = begin + g.quota;
    if (gang >= g.n || member >= g.size) return false;
    if (c.run < 0) {
      const auto line = [&](int b) {
        return line_of(lengths_.items(b), lengths_.key_blocks(b), g.size);
      };
      const Place place = g.by_request ? find(lengths_.n_requests, begin, line) : Place{0, 0};
      c.run = place.request;
      c.line = place.before;
    }
    for (; c.run < n_runs(); ++c.run, c.unit = 0) {
      const Run run = this->run(c.run);
      const int length = run.blocks + g.overhead;
      if (c.line + c.unit * length < begin) c.unit = long_quotient(begin - c.line, length);
      for (; c.unit * g.size < run.items; ++c.unit) {
        const int start = c.line + c.unit * length + g.overhead;  // of the unit's key blocks
        if (start >= end) return false;
        const int left = run.items - c.unit * g.size;
        const bool in_teams = !g.by_request && left < g.size;
        const int team = in_teams ? quotient(member, left) : 0;
        const int share = in_teams ? g.last_blocks : run.blocks;  // key blocks of a team
        s.members = in_teams ? left : g.size;
        const int index = member - team * s.members;
        if (index >= left) continue;
        const int blocks = take_item(c.run, c.unit * g.size + index, s);
        s.index = index;
        const int from = max(start, begin);
        const int to = min(start + min(share, blocks - team * share), end);
        const int teams =
            in_teams && g.n == 1 ? quotient(g.size, left) : 0;  // that share a combine
        if (from >= to && team >= teams) continue;
        const int first = gang_of(start, g.quota);
        const auto gangs_of = [&](int n) { return gang_of(start + n - 1, g.quota) - first + 1; };
        s.gangs = gangs_of(min(share, blocks));
        s.n_parts = s.gangs;
        if (in_teams) {
          const int full_teams = quotient_up(blocks, share) - 1;
          s.n_parts = full_teams * s.gangs + gangs_of(blocks - full_teams * share);
        }
        s.n_sharers = max(teams, s.n_parts);
        s.first_block = team * share + from - start;
        s.n_blocks = max(to - from, 0);
        s.part = team * s.gangs + gang - first;
        s.owner = first * g.size + index;
        s.size = g.size;
        ++c.unit;
        return true;
      }
      c.line += quotient_up(run.items, g.size) * length;
    }
    return false;
  }

 private:
  // Items in units of one length: those of a request, or of all.
  struct Run {
    int items, blocks;
  };
  __host__ __device__ int n_runs() const { return gangs_.by_request ? lengths_.n_requests : 1; }
  __host__ __device__ Run run(int r) const {
    if (!gangs_.by_request) return {totals_.items, totals_.most_blocks};
    return {lengths_.items(r), lengths_.key_blocks(r)};
  }

  __host__ __device__ int gang_of(int at, int each) const {
    return gangs_.n == 1 ? 0 : long_quotient(at, each);
  }

  // Item number i of a run becomes the segment's. Returns its key blocks.
  __host__ __device__ int take_item(int run, int i, Segment& s) const {
    s.request = run;
    s.item = i;
    if (!gangs_.by_request) {
      Place place;
      if (totals_.same_items()) {
        place.request = quotient(i, totals_.most_items);
        place.before = place.request * totals_.most_items;
      } else {
        place = find(lengths_.n_requests, i, [&](int b) { return lengths_.items(b); });
      }
      s.request = place.request;
      s.item -= place.before;
    }
    return totals_.uniform() ? totals_.most_blocks : lengths_.key_blocks(s.request);
  }

  BatchLengths lengths_;
  BatchTotals totals_;
  int n_blocks_;
  Gangs gangs_;
};

}  // namespace kdt::cuda::sm90

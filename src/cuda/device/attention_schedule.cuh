// How the keys of a batch are cut over CTAs, from lengths that only the device knows.
//
// The (node, head) rows of a request form tiles of `row_tile` rows, its keys (prefix, then tail)
// blocks of `key_tile` keys. A segment is one row tile times a run of key blocks; a tile whose keys
// lie in several segments is split, and its parts are combined in ascending order of keys.
//
// Balanced cut: CTAs form `n_parts` groups of `lanes`. All requests' key blocks, plus kOverhead
// blocks a request for starting and ending it, lie on one line; each group takes an equal piece of
// the line, each lane of it another row tile, so that the CTAs which run together read the same
// keys and the L2 serves all but the first. A request of more tiles than lanes lies on the line
// once for every `lanes` of them.
//
// Batch-invariant cut: the number of pieces of a request follows from its own sizes.
#pragma once

#include <cstdint>

#include "cuda/device/lanes.cuh"

namespace kdt::cuda::device {

struct ScheduleParams {
  const int32_t* n_nodes;     // [n_requests]
  const int32_t* prefix_len;  // [n_requests]
  int n_requests;             // at most kMaxScheduled
  int n_heads;
  int n_ctas;
  bool batch_invariant;
};

inline constexpr int kMaxScheduled = 512;

// Row tiles that the workspace must have room for: at most 2 segments of each of 2 n_ctas lanes are
// parts of a split; with the batch-invariant cut the parts of a request are at most kInvariantParts
// times 64 rows, as many as a large GPU has multiprocessors, and to each 64 rows at most one for
// every kInvariantKeys keys begun.
inline constexpr int kSlotsPerCta = 4;
inline constexpr int kInvariantParts = 132;
inline constexpr int kInvariantKeys = 256;
// Keys that are worth a CTA.
inline constexpr int kShortestKeys = 128;

struct Segment {
  int request, tile, first_block, end_block;
  int n_splits;  // of the tile; 1 = this segment is all of it
  int slot;      // of this segment's partial result, when n_splits > 1
};

// Where the partial results of a tile are: that of split s in slot first + s * stride, that of
// split 0 `bump` slots further.
struct Splits {
  int n, first, stride, bump;
  __device__ int slot(int s) const { return first + s * stride + (s == 0 ? bump : 0); }
};

// How far a CTA has come.
struct Cursor {
  int index;       // of the lane (batch-invariant cut: of the segment)
  int offset = 0;  // in its group's piece of the line
};

// Lives in shared memory; all threads of the CTA call build(). kRowTile and kKeyTile: rows of a
// tile, keys of a block.
template <int kRowTile, int kKeyTile>
class Schedule {
 public:
  __device__ void build(const ScheduleParams& p);

  // The next segment of a CTA, whose cursor starts as {its index}; false when there is none.
  __device__ bool next(const ScheduleParams& p, Cursor& cursor, Segment& segment) const;

  __device__ Splits splits(const ScheduleParams& p, int request, int tile) const;

  // For combining: all tiles of the requests that have split ones. list_split() comes behind
  // build(), from all threads; what it leaves serves these three and splits().
  __device__ void list_split(const ScheduleParams& p) {
    scan(p.n_requests, listed(p),
         [&](int request) { return is_split(p, request) ? n_tiles(p, request) : 0; });
  }
  __device__ int n_listed(const ScheduleParams& p) { return listed(p)[p.n_requests]; }
  __device__ void find_listed(const ScheduleParams& p, int index, int& request, int& tile) {
    request = last_from(listed(p), p.n_requests, index);
    tile = index - listed(p)[request];
  }

  __device__ static int n_tiles(const ScheduleParams& p, int request) {
    return ceil_div(p.n_nodes[request] * p.n_heads, kRowTile);
  }
  __device__ static int n_blocks(const ScheduleParams& p, int request) {
    return ceil_div(p.prefix_len[request] + p.n_nodes[request], kKeyTile);
  }

 private:
  // What starting, ending and combining a segment costs, in key blocks.
  static constexpr int kOverhead = 128 / kKeyTile;

  __device__ static int ceil_div(int a, int b) { return (a + b - 1) / b; }

  // Pieces of a request's keys in the batch-invariant cut; the same for every row tile size.
  __device__ static int invariant_blocks(const ScheduleParams& p, int request) {
    const int rows64 = ceil_div(p.n_nodes[request] * p.n_heads, 64);
    const int blocks = n_blocks(p, request);
    const int pieces = min(kInvariantParts / rows64, ceil_div(blocks, kInvariantKeys / kKeyTile));
    return ceil_div(blocks, max(pieces, 1));
  }

  // Length of a request on the line.
  __device__ int line_length(const ScheduleParams& p, int request) const {
    const int tiles = n_tiles(p, request);
    if (tiles == 0) return 0;
    if (p.batch_invariant)
      return tiles * ceil_div(n_blocks(p, request), invariant_blocks(p, request));
    return ceil_div(tiles, lanes_) * (n_blocks(p, request) + kOverhead);
  }
  // Slots that a request takes in the batch-invariant cut.
  __device__ int slots_taken(const ScheduleParams& p, int request) const {
    const int tiles = n_tiles(p, request);
    if (tiles == 0 || !p.batch_invariant) return 0;
    const int pieces = ceil_div(n_blocks(p, request), invariant_blocks(p, request));
    return pieces > 1 ? pieces * tiles : 0;
  }

  // Lanes and pieces for the least time of the slowest CTA. Thread 0.
  __device__ void choose(const ScheduleParams& p);
  // Exclusive prefix sums of value(request), the total behind them. All threads.
  template <typename Fn>
  __device__ void scan(int n, int* sums, const Fn& value);
  // Whether any tile of a request may be split.
  __device__ bool is_split(const ScheduleParams& p, int request) const {
    if (n_tiles(p, request) == 0) return false;
    if (p.batch_invariant) return slots_taken(p, request) > 0;
    return start_[request] / piece_ != (start_[request + 1] - kOverhead - 1) / piece_;
  }
  // Tiles before each request's in the list of split ones: where this cut has no use for the array.
  __device__ int* listed(const ScheduleParams& p) { return p.batch_invariant ? start_ : slots_; }
  // The request at a place of the line, or of another sequence: the last that starts there or
  // before.
  __device__ static int last_from(const int* starts, int n, int place) {
    int low = 0, high = n;  // starts[low] <= place < starts[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (starts[middle] <= place ? low : high) = middle;
    }
    return low;
  }

  int start_[kMaxScheduled + 1];  // of each request on the line (invariant: among the segments)
  int slots_[kMaxScheduled + 1];  // batch-invariant cut only
  int warp_sums_[32];
  int lanes_, n_parts_, piece_;
  int most_tiles_;
  unsigned long long work_, tile_work_;  // sums of blocks + overhead: a request each, a tile each
};

template <int kRowTile, int kKeyTile>
template <typename Fn>
__device__ void Schedule<kRowTile, kKeyTile>::scan(int n, int* sums, const Fn& value) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
  int before = 0;
  for (int base = 0; base < n; base += blockDim.x) {
    const int request = base + static_cast<int>(threadIdx.x);
    const int own = request < n ? value(request) : 0;
    int sum = own;
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, sum, step);
      if (lane >= step) sum += other;
    }
    if (lane == 31) warp_sums_[warp] = sum;
    __syncthreads();
    int total = 0;
    for (int w = 0; w < n_warps; ++w) {
      if (w < warp) sum += warp_sums_[w];
      total += warp_sums_[w];
    }
    if (request < n) sums[request] = before + sum - own;
    before += total;
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[n] = before;
  __syncthreads();
}

template <int kRowTile, int kKeyTile>
__device__ void Schedule<kRowTile, kKeyTile>::choose(const ScheduleParams& p) {
  lanes_ = max(min(most_tiles_, p.n_ctas), 1);
  const float line = static_cast<float>(work_);
  const int whole = p.n_ctas / lanes_, twice = 2 * p.n_ctas / lanes_;
  const float once_time = line / whole + kOverhead;
  // Twice as many pieces, two a CTA, waste less of an uneven division.
  const float twice_time = 2.0f * (line / twice + kOverhead);
  n_parts_ = twice_time < once_time ? twice : whole;
  // Requests of very different tile counts leave lanes idle; then each tile goes its own way, at
  // the price of reading keys again.
  const float apart_time = static_cast<float>(tile_work_) / p.n_ctas + kOverhead;
  long long total = work_;
  if (apart_time < 0.7f * fminf(once_time, twice_time) && tile_work_ < (1ull << 30)) {
    lanes_ = 1;
    n_parts_ = p.n_ctas;
    total = tile_work_;
  }
  piece_ = max(static_cast<int>((total + n_parts_ - 1) / n_parts_), kShortestKeys / kKeyTile);
}

template <int kRowTile, int kKeyTile>
__device__ void Schedule<kRowTile, kKeyTile>::build(const ScheduleParams& p) {
  if (threadIdx.x == 0) {
    most_tiles_ = 0;
    work_ = tile_work_ = 0;
  }
  __syncthreads();
  if (!p.batch_invariant) {
    for (int request = threadIdx.x; request < p.n_requests; request += blockDim.x) {
      const int tiles = n_tiles(p, request);
      if (tiles == 0) continue;
      const unsigned long long line = n_blocks(p, request) + kOverhead;
      atomicMax(&most_tiles_, tiles);
      atomicAdd(&tile_work_, tiles * line);
    }
    __syncthreads();
    const int lanes = max(min(most_tiles_, p.n_ctas), 1);
    for (int request = threadIdx.x; request < p.n_requests; request += blockDim.x) {
      const int tiles = n_tiles(p, request);
      if (tiles > 0)
        atomicAdd(&work_, static_cast<unsigned long long>(ceil_div(tiles, lanes)) *
                              (n_blocks(p, request) + kOverhead));
    }
    __syncthreads();
    if (threadIdx.x == 0) choose(p);
    __syncthreads();
  }
  scan(p.n_requests, start_, [&](int request) { return line_length(p, request); });
  if (p.batch_invariant)
    scan(p.n_requests, slots_, [&](int request) { return slots_taken(p, request); });
  else if (threadIdx.x == 0)
    n_parts_ = ceil_div(start_[p.n_requests], piece_);
  __syncthreads();
}

template <int kRowTile, int kKeyTile>
__device__ Splits Schedule<kRowTile, kKeyTile>::splits(const ScheduleParams& p, int request,
                                                       int tile) const {
  const int blocks = n_blocks(p, request);
  if (p.batch_invariant) {
    const int tiles = n_tiles(p, request);
    return {ceil_div(blocks, invariant_blocks(p, request)), slots_[request] + tile, tiles, 0};
  }
  // Group g's lane l has slots 2 (g lanes + l) for the end of a tile begun in another group and the
  // next one for the start of a tile that another group ends.
  const int begin = start_[request] + tile / lanes_ * (blocks + kOverhead);
  const int first = begin / piece_, last = (begin + blocks - 1) / piece_;
  return {last - first + 1, 2 * (first * lanes_ + tile % lanes_), 2 * lanes_, 1};
}

template <int kRowTile, int kKeyTile>
__device__ bool Schedule<kRowTile, kKeyTile>::next(const ScheduleParams& p, Cursor& cursor,
                                                   Segment& segment) const {
  const int total = start_[p.n_requests];
  if (p.batch_invariant) {
    if (cursor.index >= total) return false;
    const int request = last_from(start_, p.n_requests, cursor.index);
    const int tiles = n_tiles(p, request), piece = invariant_blocks(p, request);
    const int tile = (cursor.index - start_[request]) % tiles;
    const int split = (cursor.index - start_[request]) / tiles;
    const Splits s = splits(p, request, tile);
    segment = {request, tile,         split * piece, min((split + 1) * piece, n_blocks(p, request)),
               s.n,     s.slot(split)};
    cursor.index += p.n_ctas;
    return true;
  }
  const int n_lanes = n_parts_ * lanes_;
  for (; n_lanes > cursor.index; cursor = {cursor.index + p.n_ctas}) {
    const int group = cursor.index / lanes_, lane = cursor.index % lanes_;
    const int end = min((group + 1) * piece_, total);
    while (group * piece_ + cursor.offset < end) {
      const int place = group * piece_ + cursor.offset;
      const int request = last_from(start_, p.n_requests, place);
      const int blocks = n_blocks(p, request), length = blocks + kOverhead;
      const int turn = (place - start_[request]) / length;
      const int begin = start_[request] + turn * length;
      const int first = place - begin, last = min(end - begin, blocks);
      const int tile = turn * lanes_ + lane;
      cursor.offset = begin + length - group * piece_;
      if (first >= last || tile >= n_tiles(p, request)) continue;
      const Splits s = splits(p, request, tile);
      segment = {request, tile, first, last, s.n, s.slot(group - begin / piece_)};
      return true;
    }
  }
  return false;
}

}  // namespace kdt::cuda::device

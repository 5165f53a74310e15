// One CTA per request: all its warps stage the log-probabilities, one warp pops the nodes, and all
// write the rows.
//
// The search keeps its frontier ranked: a lane's elements each know how many others pop before them
// and where they stand in the lexicographic order of rank tuples. When an element pops, its left
// child takes its place in that order and its right sibling the place behind it, so both numbers
// change by compares with the two new scores alone: no search for the maximum, no walk to break a
// tie. The next node is the child, the sibling, or the old runner-up. Half the budget's elements
// are enough: once that many nodes have popped, no more than that many will follow.
//
// Scores are sums of log-probabilities, never above 0 whatever the rounding, so their bits as
// unsigned integers ascend from the best; -inf and NaN come last.
#include "cuda/device/dependency.cuh"
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace kdt::cuda {
namespace {

constexpr int kThreads = 256;
constexpr uint32_t kAllLanes = 0xffffffffu;
constexpr uint64_t kNever = 0xfff0000000000000u;    // bits from here on are no score
constexpr uint64_t kNothing = 0xfffffffffffffffeu;  // the frontier's unused elements
constexpr double kMinusInf = -INFINITY;

// An element in one word: place in the order of rank tuples, number of elements that pop before it,
// and the node whose child it would be.
constexpr int kPlaceShift = 21, kRankShift = 11;
constexpr uint32_t kOne = 1u << kPlaceShift, kFirst = 1u << kRankShift;
constexpr uint32_t kRankMask = kOne - kFirst, kParentMask = kFirst - 1;

// A candidate and what follows when it pops. An entry is an index into the staged
// log-probabilities.
struct alignas(16) Offer {
  double child, sibling;  // scores
  double self;
  uint32_t entries;  // its right sibling's entry, its child's << 16
  uint32_t origin;   // its left sibling's node or 0, its rank << 16
};

// Both halves are on their way before the first is used.
__device__ __forceinline__ Offer load(const Offer& offer) {
  Offer o;
  uint64_t rest;
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(&offer));
  asm volatile("ld.shared.v2.f64 {%0, %1}, [%2];"
               : "=d"(o.child), "=d"(o.sibling)
               : "r"(at)
               : "memory");
  asm volatile("ld.shared.v2.b64 {%0, %1}, [%2];"
               : "=d"(o.self), "=l"(rest)
               : "r"(at + 16)
               : "memory");
  o.entries = static_cast<uint32_t>(rest);
  o.origin = static_cast<uint32_t>(rest >> 32);
  return o;
}

struct alignas(16) Node {
  double score;
  uint32_t entries;
  uint16_t parent, left_node;
};

// Shared memory of a search whose frontier is kSets elements a lane: budgets up to 64 kSets.
template <int kSets>
struct Tables {
  static constexpr int kElements = 32 * kSets, kMaxNodes = 2 * kElements + 1;
  // A rank pops after all ranks before it, so ranks below the budget are enough.
  static constexpr int kStaged = kSets == 1 ? 64 : 256;
  static constexpr bool kAllStaged = kMaxNodes - 1 <= kStaged;
  static constexpr int kWidth = kStaged + 2;

  Offer offers[kMaxNodes];  // by parent: a node offers one child at a time
  Node nodes[kMaxNodes];    // by pop; the root's is not used
  int16_t first_child[kMaxNodes], next_sibling[kMaxNodes];
  int n_nodes;
  double logp[kWidth];  // [depth + 3, kWidth], -inf past the request's depths and ranks

  static size_t bytes(int depth) { return sizeof(Tables) + (depth + 2) * sizeof(logp); }

  __device__ static int depth_of(const Node& node) { return (node.entries >> 16) / kWidth; }
  __device__ static int rank_of(const Node& node) {
    return (node.entries & 0xffff) - 1 - ((node.entries >> 16) - kWidth);
  }
};

// What enters: anything that is not a log-probability counts as -inf.
__device__ __forceinline__ double score_of(float logp) {
  return logp <= 0.0f ? logp + 0.0 : kMinusInf;
}

__device__ __forceinline__ uint64_t bits_of(double score) {
  return static_cast<uint64_t>(__double_as_longlong(score));
}

// The search of one request, run by one full warp. Members are the same in all lanes unless marked.
template <int kSets>
class Search {
 public:
  using T = Tables<kSets>;

  __device__ Search(const TreeBuildParams& p, T& tables, int request)
      : t_(tables),
        logp_(p.logp + static_cast<int64_t>(request) * p.depth * p.k),
        k_(p.k),
        limit_(p.max_depth[request]),
        n_ranks_(p.max_rank[request]),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  // Returns the number of nodes, the root included.
  __device__ int run(int budget) {
    start();
    // Loaded at the end of the round before, where nothing else waits.
    Offer best = load(t_.offers[parent_]);
    int node = 1;
    for (; node <= budget && bits_of(best.self) < kNever; ++node) {
      pop(best, node);
      best = load(t_.offers[parent_]);
    }
    return node;
  }

 private:
  // The log-probabilities at `entry` and behind it, whose rank is given.
  __device__ double2 step(uint32_t entry, int rank) const {
    if (T::kAllStaged || rank + 1 < T::kStaged) return {t_.logp[entry], t_.logp[entry + 1]};
    const int row = (entry - rank) / T::kWidth;
    const auto at = [&](int r) {
      return row < limit_ && r < n_ranks_ ? score_of(logp_[static_cast<int64_t>(row) * k_ + r])
                                          : kMinusInf;
    };
    return {at(rank), at(rank + 1)};
  }

  __device__ void start() {
    const double score = t_.logp[0];
    if (lane_ == 0)
      t_.offers[0] = {score + t_.logp[T::kWidth], (score - score) + t_.logp[1], score,
                      1 | T::kWidth << 16, 0};
#pragma unroll
    for (int s = 0; s < kSets; ++s) {
      const uint32_t element = s * 32 + lane_;
      bits_[s] = element == 0 ? bits_of(score) : kNothing;
      word_[s] = element << kPlaceShift | element << kRankShift;
    }
    __syncwarp();
  }

  // Makes the best candidate, a child of parent_, the node `node`, and finds the next one. Even
  // lanes make its sibling's offer, odd lanes its child's.
  __device__ void pop(const Offer& popped, int node) {
    const bool is_child = lane_ & 1;
    const int parent = parent_;
    const uint32_t below = popped.entries >> 16;
    const uint32_t entry = is_child ? below : popped.entries & 0xffff;
    const uint32_t next_below = is_child ? below + T::kWidth : below;
    const uint32_t origin = is_child ? 0 : (popped.origin & 0xffff0000u) + 0x10000u + node;
    const double2 here = step(entry, origin >> 16);  // on their way while the element is inserted
    const double child_logp = t_.logp[next_below];
    insert(bits_of(popped.child), bits_of(popped.sibling), node);
    const double score = is_child ? popped.child : popped.sibling;
    __syncwarp();  // all lanes have read the offer
    // The order of operations is part of the contract: it decides near-ties.
    t_.offers[is_child ? node : parent] = {score + child_logp, (score - here.x) + here.y, score,
                                           next_below << 16 | (entry + 1), origin};
    t_.nodes[node] = {popped.self, popped.entries, static_cast<uint16_t>(parent),
                      static_cast<uint16_t>(popped.origin)};
    __syncwarp();
  }

  // Replaces the first element by its child and sibling; drops the last one.
  __device__ void insert(uint64_t child, uint64_t sibling, int node) {
    const uint32_t runner_up = second();
    const uint32_t here = place_ << kPlaceShift | (kOne - 1);
    int before_child = 0, before_sibling = 0;  // elements of this lane that precede them
    bool popped[kSets];
#pragma unroll
    for (int s = 0; s < kSets; ++s) {
      const bool behind = word_[s] > here;
      popped[s] = (word_[s] & kRankMask) == 0;
      const uint64_t bound = bits_[s] + behind;
      const bool after_child = child < bound, after_sibling = sibling < bound;
      before_child += !popped[s] && !after_child;
      before_sibling += !popped[s] && !after_sibling;
      word_[s] +=
          (after_child ? kFirst : 0u) + (after_sibling ? 0u : 0u - kFirst) + (behind ? kOne : 0u);
    }
    const bool sibling_first = sibling < child;
    const bool child_next = sum(before_child) && !sibling_first;
    const bool sibling_next = sum(before_sibling) && sibling_first;
    const uint32_t child_rank = before_child + sibling_first;
    const uint32_t sibling_rank = before_sibling + !sibling_first;
    const uint32_t child_word = place_ << kPlaceShift | child_rank << kRankShift | node;
    const uint32_t sibling_word =
        (place_ + 1) << kPlaceShift | sibling_rank << kRankShift | parent_;
#pragma unroll
    for (int s = 0; s < kSets; ++s) {
      if (popped[s]) {
        bits_[s] = sibling;
        word_[s] = sibling_word;
      }
      if ((word_[s] & kRankMask) == T::kElements * kFirst) {
        bits_[s] = child;
        word_[s] = child_word;
      }
    }
    const uint32_t place = runner_up >> kPlaceShift;
    parent_ = child_next     ? node
              : sibling_next ? parent_
                             : static_cast<int>(runner_up & kParentMask);
    place_ = child_next ? place_ : sibling_next ? place_ + 1 : place + (place > place_);
  }

  // The word of the element behind the first.
  __device__ uint32_t second() const {
    uint32_t word = 0;
#pragma unroll
    for (int s = 0; s < kSets; ++s)
      if ((word_[s] & kRankMask) == kFirst) word = word_[s];
    return __reduce_or_sync(kAllLanes, word);
  }

  // Adds up over the lanes; true if the sum is 0.
  __device__ static bool sum(int& count) {
    if (kSets == 1) {
      const unsigned lanes = __ballot_sync(kAllLanes, count != 0);
      count = __popc(lanes);
      return lanes == 0;
    }
    count = __reduce_add_sync(kAllLanes, count);
    return count == 0;
  }

  T& t_;
  const float* const logp_;
  const int k_, limit_, n_ranks_, lane_;
  uint64_t bits_[kSets];  // of this lane's elements
  uint32_t word_[kSets];
  int parent_ = 0;  // of the first element
  uint32_t place_ = 0;
};

// Fills the tables that the search reads, by all threads.
template <int kSets>
__device__ void stage(const TreeBuildParams& p, Tables<kSets>& t, int request) {
  constexpr int kWidth = Tables<kSets>::kWidth, kInFlight = 5;
  const float* logp = p.logp + static_cast<int64_t>(request) * p.depth * p.k;
  const int32_t* ids = p.ids + static_cast<int64_t>(request) * p.depth * p.k;
  const int limit = p.max_depth[request], n_ranks = p.max_rank[request];
  const int n = (p.depth + 3) * kWidth;
  for (int first = threadIdx.x; first < n; first += kInFlight * kThreads) {
    float values[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const int i = first + j * kThreads, row = i / kWidth, rank = i % kWidth;
      const bool there = row < p.depth && rank < p.k;
      const int64_t entry = static_cast<int64_t>(row) * p.k + rank;
      values[j] = there ? logp[entry] : 1.0f;
      // The ids are wanted when the tree is done.
      if (there && rank % 32 == 0)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(ids + entry)));
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const int i = first + j * kThreads, row = i / kWidth, rank = i % kWidth;
      if (i < n) t.logp[i] = row < limit && rank < n_ranks ? score_of(values[j]) : kMinusInf;
    }
  }
}

struct Root {
  int row, token, position;
};

// Row `node` of the outputs; a node at or past n_nodes is padding.
template <int kSets>
__device__ void write_row(const TreeBuildParams& p, const Tables<kSets>& t, int request,
                          const Root& root, int node) {
  const int64_t row = int64_t{root.row} + node;
  const bool is_node = node > 0 && node < t.n_nodes;
  const Node n = t.nodes[node];
  const int depth = is_node ? t.depth_of(n) : 0;
  const int64_t entry = (int64_t{request} * p.depth + depth - 1) * p.k + t.rank_of(n);
  p.tokens[row] = is_node ? p.ids[entry] : root.token;
  p.parents[row] = is_node ? n.parent : -1;
  p.depths[row] = depth;
  p.positions[row] = root.position + depth;
  p.scores[row] = is_node ? n.score : 0.0;
  p.first_child[row] = t.first_child[node];
  p.next_sibling[row] = t.next_sibling[node];
  // Ancestors have descending ids on the way up, so words fill from the last to the first.
  uint64_t* words = p.ancestors + row * p.n_words;
  int ancestor = is_node ? node : 0;
  for (int word = p.n_words - 1; word >= 0; --word) {
    uint64_t bits = 0;
    for (; ancestor > 0 && ancestor / 64 == word; ancestor = t.nodes[ancestor].parent)
      bits |= uint64_t{1} << (ancestor % 64);
    words[word] = bits | (word == 0);
  }
}

template <int kSets>
__global__ void __launch_bounds__(kThreads) tree_build_kernel(const TreeBuildParams p) {
  extern __shared__ __align__(16) char shared[];
  auto& t = *reinterpret_cast<Tables<kSets>*>(shared);
  device::wait_for_previous();
  device::let_next_start();
  const int request = blockIdx.x, thread = threadIdx.x;
  const int budget = p.budget[request];
  const Root root = {p.row_offset[request], p.root_token[request], p.prefix_len[request]};
  stage(p, t, request);
  for (int i = thread; i <= budget; i += kThreads) t.first_child[i] = t.next_sibling[i] = -1;
  __syncthreads();
  if (thread < 32) {
    const int n = Search<kSets>(p, t, request).run(budget);
    if (thread == 0) p.n_nodes[request] = t.n_nodes = n;
  }
  __syncthreads();
  for (int node = 1 + thread; node < t.n_nodes; node += kThreads) {
    const Node n = t.nodes[node];
    (n.left_node ? t.next_sibling[n.left_node] : t.first_child[n.parent]) =
        static_cast<int16_t>(node);
  }
  __syncthreads();
  for (int node = thread; node <= budget; node += kThreads) write_row(p, t, request, root, node);
}

template <int kSets>
void launch_for(const TreeBuildParams& p, Stream stream) {
  launch(tree_build_kernel<kSets>,
         {.grid = dim3(p.batch),
          .block = dim3(kThreads),
          .shared_bytes = Tables<kSets>::bytes(p.depth)},
         stream, p);
}

}  // namespace

size_t tree_build_workspace(const TreeBuildParams&) {
  return 0;
}

void tree_build(const TreeBuildParams& p, Stream stream) {
  if (p.batch == 0) return;
  if (p.max_budget <= 64)
    launch_for<1>(p, stream);
  else if (p.max_budget <= 256)
    launch_for<4>(p, stream);
  else
    launch_for<16>(p, stream);
}

}  // namespace kdt::cuda

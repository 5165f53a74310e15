// The schedule of the wgmma attention kernel, on the host: every key block of every item is done
// once, parts agree on where their partial results are, and no thread block has much more to do
// than others. Divisions are the device's, as wrong as its manual lets them be.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "tests/ops/random.h"

namespace kdt::cuda::sm90 {
namespace {
// Units in the last place that the next reciprocals are wrong by: -1 .. 1, in turn if not fixed.
constexpr int kInTurn = 2;
int reciprocal_error = kInTurn;

float reciprocal(float x) {
  static int turn = 0;
  if (reciprocal_error == kInTurn) turn = (turn + 1) % 3;
  const int error = reciprocal_error == kInTurn ? turn - 1 : reciprocal_error;
  const float infinity = std::numeric_limits<float>::infinity();
  return error == 0 ? 1 / x : std::nextafter(1 / x, error < 0 ? -infinity : infinity);
}
}  // namespace
}  // namespace kdt::cuda::sm90

#ifndef __CUDACC__
#define __host__
#define __device__
#endif
#define __CUDA_ARCH__ 900
#include "cuda/verify_attention_sm90_schedule.cuh"
#undef __CUDA_ARCH__

namespace kdt::cuda::sm90 {
namespace {

// As the kernel chooses, on one thread.
Schedule chosen(const BatchLengths& lengths, int n_blocks) {
  BatchTotals totals;
  for (int b = 0; b < lengths.n_requests; ++b) totals.add(lengths.items(b), lengths.key_blocks(b));
  const Schedule schedule(lengths, totals, n_blocks);
  const int n_requests = schedule.gangs(schedule.candidate(kFirstOfItems)).n;
  Gangs best;
  for (int i = 0; i < kCandidates; ++i) {
    const int size = schedule.candidate(i);
    Gangs gangs = schedule.gangs(size);
    int line = 0;
    for (int b = 0; b < lengths.n_requests && size > 0; ++b)
      line += Schedule::line_of(lengths.items(b), lengths.key_blocks(b), size);
    if (!totals.uniform() && i >= kFirstSmall) Schedule::try_by_request(line, gangs);
    Schedule::add_reads(n_requests, gangs);
    if (gangs.cost < best.cost) best = gangs;
  }
  return {lengths, totals, n_blocks, best};
}

void expect_complete(const BatchLengths& lengths, int n_blocks) {
  const Schedule schedule = chosen(lengths, n_blocks);
  using Item = std::pair<int, int>;
  std::map<Item, std::vector<Segment>> parts;
  std::map<int, Item> slots;
  // Those who read the same keys at the same time: gang, request, first item, keys.
  std::map<std::array<int, 5>, std::vector<Segment>> readers;
  for (int block = 0; block < n_blocks; ++block) {
    Schedule::Cursor cursor;
    bool first = true, waited = false;
    for (Segment s; schedule.next(block, cursor, s); first = false) {
      const Item item = {s.request, s.item};
      ASSERT_FALSE(waited) << "a part that takes up another one is not its block's last";
      ASSERT_TRUE(first || !s.of_two_gangs() || s.part == 0)
          << "a part that is waited for comes late";
      waited = s.of_two_gangs() && s.part == 0;
      parts[item].push_back(s);
      ASSERT_EQ(s.n_blocks > 0, s.part < s.n_parts);
      if (s.n_blocks > 0)
        readers[{block / s.size, s.request, s.item - s.reader(), s.first_block, s.n_blocks}]
            .push_back(s);
      ASSERT_LT(s.request, lengths.n_requests);
      ASSERT_LT(s.item, lengths.items(s.request));
      ASSERT_LE(s.n_parts, n_blocks);
      if (s.n_parts == 1 || s.n_blocks == 0) continue;
      ASSERT_LT(s.owner, n_blocks);
      if (!s.is_stored()) continue;
      ASSERT_TRUE(slots.try_emplace(s.slot(s.part), item).second) << "two parts in one slot";
      ASSERT_LT(s.slot(s.part), Schedule::slots(n_blocks));
    }
  }
  for (const auto& [key, group] : readers) {
    for (size_t i = 0; i < group.size(); ++i) {
      ASSERT_EQ(group[i].reader(), static_cast<int>(i));
      ASSERT_EQ(group[i].n_readers(lengths.items(key[1])), static_cast<int>(group.size()));
    }
  }
  for (int b = 0; b < lengths.n_requests; ++b) {
    for (int i = 0; i < lengths.items(b); ++i) {
      std::vector<Segment>& item = parts[{b, i}];
      std::sort(item.begin(), item.end(),
                [](const Segment& x, const Segment& y) { return x.part < y.part; });
      int at = 0;
      for (size_t part = 0; part < item.size(); ++part) {
        ASSERT_EQ(item[part].part, static_cast<int>(part));
        ASSERT_EQ(item[part].n_parts, item[0].n_parts);
        ASSERT_EQ(item[part].n_sharers, static_cast<int>(item.size()));
        if (item[part].n_blocks > 0) {
          ASSERT_EQ(item[part].first_block, at);
        }
        ASSERT_EQ(item[0].slot(item[part].part), item[part].slot(item[part].part));
        at += item[part].n_blocks;
      }
      ASSERT_EQ(at, lengths.key_blocks(b)) << "request " << b << ", item " << i;
    }
  }
}

TEST(AttentionSchedule, CoversEveryKeyBlockOnce) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    test::Random random(seed);
    const int n_requests = static_cast<int>(random.integer(1, random.integer(0, 4) ? 6 : 40));
    const bool uniform = random.integer(0, 1);
    std::vector<int32_t> n_nodes(n_requests), prefix(n_requests);
    for (int b = 0; b < n_requests; ++b) {
      n_nodes[b] = static_cast<int32_t>(random.integer(0, 3) ? random.integer(0, 129) : 0);
      prefix[b] = static_cast<int32_t>(random.integer(0, random.integer(0, 4) ? 600 : 20000));
      if (uniform) {
        n_nodes[b] = b == 0 ? std::max(n_nodes[0], 1) : n_nodes[0];
        prefix[b] = prefix[0];
      }
    }
    const int heads[] = {1, 2, 4, 8, 16, 64, 128}, blocks[] = {1, 7, 66, 114, 132};
    expect_complete({n_nodes.data(), prefix.data(), n_requests, heads[random.integer(0, 6)]},
                    blocks[random.integer(0, 4)]);
    if (HasFatalFailure()) return;
  }
}

// Many requests, many nodes and long prefixes, on few and many thread blocks.
TEST(AttentionSchedule, CoversEveryKeyBlockOfLargeBatches) {
  for (uint64_t seed = 0; seed < test::seeds(150); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    test::Random random(seed);
    const auto n_requests = static_cast<int>(random.integer(1, random.integer(0, 1) ? 1024 : 8));
    const auto n_heads = static_cast<int>(random.integer(1, n_requests > 8 ? 16 : 128));
    std::vector<int32_t> n_nodes(n_requests), prefix(n_requests);
    for (int b = 0; b < n_requests; ++b) {
      n_nodes[b] = static_cast<int32_t>(random.integer(0, n_requests > 8 && b > 0 ? 17 : 1025));
      prefix[b] = static_cast<int32_t>(random.integer(0, random.integer(0, 7) ? 4096 : 262144));
    }
    expect_complete({n_nodes.data(), prefix.data(), n_requests, n_heads},
                    static_cast<int>(random.integer(1, 134)));
    if (HasFatalFailure()) return;
  }
}

// Numbers below 2^21, and quotients below it, as they are where the schedule divides, are right
// with any error.
TEST(AttentionSchedule, DividesExactly) {
  constexpr int64_t kMost = (int64_t{1} << 21) - 1;
  test::Random random(1);
  for (reciprocal_error = -1; reciprocal_error <= 1; ++reciprocal_error) {
    for (int i = 0; i < 100000; ++i) {
      const int64_t b = random.integer(1, int64_t{1} << random.integer(0, 28));
      const int64_t most = std::min(kMost, (int64_t{1} << 30) / b);
      const int64_t q = random.integer(0, 3) ? random.integer(0, most) : most;
      for (const int64_t rest : {int64_t{0}, b - 1, random.integer(0, b - 1)}) {
        const int64_t a = q * b + rest;
        ASSERT_EQ(long_quotient(static_cast<int>(a), static_cast<int>(b)), q)
            << a << " / " << b << ", error " << reciprocal_error;
        if (a <= kMost) {
          ASSERT_EQ(quotient(static_cast<int>(a), static_cast<int>(b)), q)
              << a << " / " << b << ", error " << reciprocal_error;
        }
      }
    }
  }
  reciprocal_error = kInTurn;
}

// One request of few items: no thread block does two segments while others have none.
TEST(AttentionSchedule, GivesEveryRestABlockOfItsOwn) {
  for (int n_items = 1; n_items <= 66; ++n_items) {
    const int32_t n_nodes = n_items * 8, prefix = 1000;
    const BatchLengths lengths = {&n_nodes, &prefix, 1, 8};
    const Schedule schedule = chosen(lengths, 132);
    for (int block = 0; block < 132; ++block) {
      Schedule::Cursor cursor;
      Segment s;
      int n = 0;
      while (schedule.next(block, cursor, s)) ++n;
      EXPECT_LE(n, 1) << n_items << " items, block " << block;
    }
  }
}

// The batches of AttentionImplementations.ItemsOfTwoGangs and, of the first one, the requests that
// NanStaysWithItsRequestAmongItemsOfTwoGangs spoils.
TEST(AttentionSchedule, GangsLeaveItemsToTheNextOne) {
  struct Case {
    int n_requests, heads, nodes, prefix, step;
    int least;  // such items
  };
  for (const Case& c :
       {Case{28, 16, 17, 200, 0, 56}, {28, 16, 17, 200, 9, 56}, {27, 4, 66, 64, 0, 20}}) {
    SCOPED_TRACE(testing::Message() << c.nodes << " nodes, lengths " << c.step << " apart");
    std::vector<int32_t> n_nodes(c.n_requests, c.nodes), prefix(c.n_requests, c.prefix);
    for (int b = 0; b < c.n_requests; ++b) prefix[b] += c.step * b;
    const BatchLengths lengths = {n_nodes.data(), prefix.data(), c.n_requests, c.heads};
    const Schedule schedule = chosen(lengths, 132);
    int items = 0, of_last_block = 0;
    std::map<int, int> first_block;  // of a request's parts that are added
    for (int block = 0; block < 132; ++block) {
      Schedule::Cursor cursor;
      for (Segment s; schedule.next(block, cursor, s);) {
        if (!s.of_two_gangs() || s.part != 1) continue;
        ++items;
        of_last_block += s.first_block == lengths.key_blocks(s.request) - 1;
        first_block[s.request] = s.first_block;
      }
    }
    EXPECT_GE(items, c.least);
    EXPECT_GE(of_last_block, 10);
    if (c.step != 0 || c.nodes != 17) continue;
    EXPECT_GE(first_block[14], 1);  // keys 0 .. 63 are the other part's
    EXPECT_EQ(first_block[20], 3);  // keys 192 .. 199, then the tail
    EXPECT_EQ(first_block[24], 4);  // the tail
  }
}

struct Load {
  int most = 0;     // of a thread block, in key blocks, with a few for every segment
  int64_t all = 0;  // of all of them
};

Load load_of(const BatchLengths& lengths, int n_blocks) {
  constexpr int kStart = 4;
  const Schedule schedule = chosen(lengths, n_blocks);
  Load load;
  for (int block = 0; block < n_blocks; ++block) {
    Schedule::Cursor cursor;
    int own = 0;
    for (Segment s; schedule.next(block, cursor, s);) own += s.n_blocks + kStart;
    load.most = std::max(load.most, own);
    load.all += own;
  }
  return load;
}

// Requests of very different lengths, as servers have them.
TEST(AttentionSchedule, BalancesMixedLengths) {
  constexpr int kBlocks = 132;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    test::Random random(seed);
    const auto n_requests = static_cast<int>(random.integer(8, 64));
    const bool same_nodes = random.integer(0, 1);
    std::vector<int32_t> n_nodes(n_requests), prefix(n_requests);
    for (int b = 0; b < n_requests; ++b) {
      n_nodes[b] = static_cast<int32_t>(random.integer(9, 65));
      if (same_nodes) n_nodes[b] = n_nodes[0];
      prefix[b] = static_cast<int32_t>(1024 * std::exp2(7 * random.uniform()));
    }
    const int heads[] = {16, 64, 128};
    const Load load =
        load_of({n_nodes.data(), prefix.data(), n_requests, heads[random.integer(0, 2)]}, kBlocks);
    EXPECT_LE(load.most, 1.2 * static_cast<double>(load.all) / kBlocks + kTwoParts);
  }
}

// One request a page longer than the others costs no more than if all were; idle ones cost
// nothing.
TEST(AttentionSchedule, TakesAlmostEqualLengthsForEqual) {
  constexpr int kBlocks = 132;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    test::Random random(seed);
    const auto n_requests = static_cast<int>(random.integer(2, 64));
    const auto nodes = static_cast<int32_t>(random.integer(1, 65));
    const auto length =
        static_cast<int32_t>(random.integer(64, random.integer(0, 1) ? 4096 : 65536));
    const int n_heads = int{1} << random.integer(3, 6);
    std::vector<int32_t> n_nodes(n_requests, nodes), prefix(n_requests, length + kKeys);
    const Load all_longer = load_of({n_nodes.data(), prefix.data(), n_requests, n_heads}, kBlocks);
    std::fill(prefix.begin(), prefix.end(), length);
    prefix[random.integer(0, n_requests - 1)] += kKeys;
    const int most = load_of({n_nodes.data(), prefix.data(), n_requests, n_heads}, kBlocks).most;
    EXPECT_LE(most, all_longer.most + kTwoParts);
    for (int idle = 0; idle < 3; ++idle) {
      const auto at = random.integer(0, static_cast<int64_t>(n_nodes.size()));
      n_nodes.insert(n_nodes.begin() + at, 0);
      prefix.insert(prefix.begin() + at, length);
    }
    const int with_idle =
        load_of({n_nodes.data(), prefix.data(), n_requests + 3, n_heads}, kBlocks).most;
    EXPECT_LE(with_idle, most + kTwoParts);
  }
}

}  // namespace
}  // namespace kdt::cuda::sm90

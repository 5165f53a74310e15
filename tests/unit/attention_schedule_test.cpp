// The schedule of the wgmma attention kernel, on the host: every key block of every item is done
// once, parts agree on where their partial results are, and no thread block has much more to do
// than others. Divisions are the device's, as wrong as its manual lets them be.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "tests/ops/random.h"

namespace kdt::cuda::sm90 {
namespace {
// Units in the last place that the next divisions are wrong by: -2 .. 2, in turn if not fixed.
constexpr int kInTurn = 3;
int division_error = kInTurn;

float __fdividef(float a, float b) {
  static int turn = 0;
  if (division_error == kInTurn) turn = (turn + 1) % 5;
  const int error = division_error == kInTurn ? turn - 2 : division_error;
  const float infinity = std::numeric_limits<float>::infinity();
  float q = a / b;
  for (int i = 0; i < std::abs(error); ++i) q = std::nextafter(q, error < 0 ? -infinity : infinity);
  return q;
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

// As the kernel sums them up, on one thread.
BatchTotals totals_of(const BatchLengths& lengths) {
  BatchTotals t;
  int items0 = 0, blocks0 = 0;
  for (int b = 0; b < lengths.n_requests; ++b) {
    const int items = lengths.items(b), blocks = items > 0 ? lengths.key_blocks(b) : 0;
    if (b == 0) {
      t.first_items = items0 = items;
      blocks0 = blocks;
    }
    t.items += items;
    t.key_blocks += items * blocks;
    t.max_blocks = std::max(t.max_blocks, blocks);
    t.uniform = t.uniform && items == items0 && blocks == blocks0;
  }
  return t;
}

Schedule chosen(const BatchLengths& lengths, int n_blocks) {
  Schedule schedule(lengths, totals_of(lengths), n_blocks);
  if (!schedule.try_rests()) return schedule;
  for (int i = 0; i < kCandidates; ++i) {
    int n_full = 0;
    const int full = schedule.candidate(i);
    if (!schedule.fits(full, &n_full)) continue;
    schedule.choose(full, n_full);
    return schedule;
  }
  schedule.choose_largest();
  return schedule;
}

void expect_complete(const BatchLengths& lengths, int n_blocks) {
  const Schedule schedule = chosen(lengths, n_blocks);
  using Item = std::pair<int, int>;
  std::map<Item, std::vector<Segment>> parts;
  std::map<int, Item> slots, owners;
  for (int block = 0; block < n_blocks; ++block) {
    Schedule::Cursor cursor;
    for (Segment s; schedule.next(block, cursor, s);) {
      const Item item = {s.request, s.item};
      parts[item].push_back(s);
      ASSERT_GT(s.n_blocks, 0);
      ASSERT_LT(s.request, lengths.n_requests);
      ASSERT_LT(s.item, lengths.items(s.request));
      ASSERT_LE(s.n_parts, n_blocks);
      if (s.n_parts == 1) continue;
      ASSERT_TRUE(slots.try_emplace(s.slot(s.part), item).second) << "two parts in one slot";
      ASSERT_EQ(owners.try_emplace(s.owner, item).first->second, item);
      ASSERT_LT(s.slot(s.part), Schedule::slots(n_blocks));
      ASSERT_LT(s.owner, n_blocks);
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
        ASSERT_EQ(item[part].n_parts, static_cast<int>(item.size()));
        ASSERT_EQ(item[part].first_block, at);
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

// Quotients below 2^22, as they are where the schedule divides, are right with any error.
TEST(AttentionSchedule, DividesExactly) {
  test::Random random(1);
  for (division_error = -2; division_error <= 2; ++division_error) {
    for (int i = 0; i < 100000; ++i) {
      const int64_t b = random.integer(1, int64_t{1} << random.integer(0, 28));
      const int64_t most = std::min<int64_t>((int64_t{1} << 22) - 2, ((int64_t{1} << 30) / b));
      const int64_t q = random.integer(0, 3) ? random.integer(0, most) : most;
      const int64_t rest[] = {0, b - 1, random.integer(0, b - 1)};
      for (const int64_t r : rest)
        ASSERT_EQ(quotient(static_cast<int>(q * b + r), static_cast<int>(b)), q)
            << q * b + r << " / " << b << ", error " << division_error;
    }
  }
  division_error = kInTurn;
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

// Requests of very different lengths, as servers have them: what the busiest thread block does over
// the mean, in key blocks, with a few for every segment.
TEST(AttentionSchedule, BalancesMixedLengths) {
  constexpr int kBlocks = 132, kStart = 4;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    test::Random random(seed);
    const auto n_requests = static_cast<int>(random.integer(8, 64));
    std::vector<int32_t> n_nodes(n_requests), prefix(n_requests);
    for (int b = 0; b < n_requests; ++b) {
      n_nodes[b] = static_cast<int32_t>(random.integer(9, 65));
      prefix[b] = static_cast<int32_t>(1024 * std::exp2(7 * random.uniform()));
    }
    const int heads[] = {16, 64, 128};
    const BatchLengths lengths = {n_nodes.data(), prefix.data(), n_requests,
                                  heads[random.integer(0, 2)]};
    const Schedule schedule = chosen(lengths, kBlocks);
    int most = 0;
    int64_t all = 0;
    for (int block = 0; block < kBlocks; ++block) {
      Schedule::Cursor cursor;
      int own = 0;
      for (Segment s; schedule.next(block, cursor, s);) own += s.n_blocks + kStart;
      most = std::max(most, own);
      all += own;
    }
    EXPECT_LE(most, 1.1 * static_cast<double>(all) / kBlocks + kRestOverhead);
  }
}

}  // namespace
}  // namespace kdt::cuda::sm90
